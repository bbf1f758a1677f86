"""Dask dataframes of a pipeline: lazy, or of a run that has ended."""

from __future__ import annotations

import threading
import traceback
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import dask.dataframe as dd
import pandas as pd
from dask.dataframe.dispatch import make_meta, meta_nonempty
from dask.delayed import delayed

from dask_exo.cluster.futures import Futures
from dask_exo.errors import CancelledError, PipelineError
from dask_exo.execution.background import stop_with_all
from dask_exo.execution.persisted import Local, Promise, Remote, fetch
from dask_exo.pipeline.operators import Operator
from dask_exo.pipeline.run import REPORT_INTERVAL, PipelineRun
from dask_exo.pipeline.sources import DataFrameSource
from dask_exo.pipeline.streaming.blocks import Block, Frame
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.transforms import CallError, apply, on_host

Start = Callable[[], tuple[Executor, Futures]]


class LazyPromise(Promise):
    """A promise whose computation starts when its value is requested."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    @property
    def known(self) -> bool:
        """True if there is a value; see `Promise.known`."""
        self._begin()
        return super().known

    def location(self) -> Local | Remote:
        """Return the value; see `Promise.location`."""
        self._begin()
        return super().location()


class PartitionProducer:
    """A pipeline in a thread that fulfils the promise of each partition when it is complete.

    References to promises are weak: when all are dropped, the pipeline ends.
    """

    def __init__(self, start: Start, meta: pd.DataFrame) -> None:
        self._start, self._meta = start, meta
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._promises = weakref.WeakValueDictionary[int, LazyPromise]()

    def promises(self, count: int) -> list[Promise]:
        """Return a promise for the output of each partition of the source."""
        promises = [LazyPromise(self.begin) for _ in range(count)]
        self._promises.update(enumerate(promises))
        return list(promises)

    def begin(self) -> None:
        """Start the run, unless it runs or has run."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._main, name="dask_exo-pipeline", daemon=True
                )
                stop_with_all(self)
                self._thread.start()

    def stop(self) -> None:
        """End the run; promises without a value fail."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _main(self) -> None:
        error: BaseException = CancelledError("the pipeline was stopped before its end")
        try:
            executor, futures = self._start()
            try:
                self._run(executor, futures)
            finally:
                executor.cancel()
        except BaseException as raised:  # noqa: BLE001  raised where a partition is requested
            error = raised
        traceback.clear_frames(error.__traceback__)  # they hold refs
        for promise in list(self._promises.values()):
            promise.fail(error)

    def _run(self, executor: Executor, futures: Futures) -> None:
        blocks = defaultdict[int, list[Block]](list)
        complete: list[int] = []
        executor.queues.complete = complete.append
        while not self._stopped and self._promises and not executor.finished:
            executor.step(0.1)
            while executor.outputs:
                block = executor.take()
                blocks[block.place[0]].append(block)
            while complete:
                i = complete.pop()
                self._fulfil(i, blocks.pop(i, []), futures)
            executor.report(REPORT_INTERVAL)
        executor.report()

    def _fulfil(self, i: int, blocks: Sequence[Block], futures: Futures) -> None:
        """Fulfil the promise of a partition with all its blocks."""
        promise = self._promises.pop(i, None)
        if promise is None:  # it was dropped
            return
        promise.futures = futures
        refs = [block.value for block in sorted(blocks, key=lambda block: block.place)]
        nbytes = sum(block.nbytes for block in blocks)
        if not refs:
            promise.fulfil(Local(self._meta))
        elif len(refs) == 1:
            promise.fulfil(Remote(refs[0], nbytes))
        else:
            promise.fulfil(Remote(futures.submit(_concat, *refs), nbytes))


def _concat(*frames: Any) -> Any:
    nonempty = [frame for frame in frames if len(frame)] or frames[:1]
    return pd.concat(nonempty)


def lazy_dataframe(start: Start, count: int | None, meta: pd.DataFrame) -> dd.DataFrame:
    """Return a Dask dataframe of a pipeline that starts when it is computed."""
    if count is None:
        raise PipelineError(
            "to_dask() has to know how many partitions the source has, and an iterator does not "
            "say: use materialize(), or begin with a list"
        )
    return _collection(PartitionProducer(start, meta).promises(count), meta)


def infer_meta(source: Any, steps: Sequence[Operator], meta: Any) -> pd.DataFrame:
    """Return the output without rows: as declared, or of a call with made-up rows."""
    if meta is not None:
        result: pd.DataFrame = make_meta(meta)
        return result
    if not isinstance(source, DataFrameSource):
        raise PipelineError(
            "to_dask() knows the columns of Dask dataframes only: give those of the output with "
            "meta=, as a frame without rows"
        )
    stateful = [step.transform.name for step in steps if step.transform.stateful]
    if stateful:
        raise PipelineError(
            f"to_dask() does not make a {stateful[0]} only to see which columns it returns: give "
            f"them with meta=, as a frame without rows"
        )
    frames = iter([Frame(meta_nonempty(source.frame._meta), last=True)])
    for step in steps:
        frames = apply(step.transform, step.transform.make(), frames)
    try:
        outputs = [on_host(frame.data) for frame in frames if frame.data is not None]
    except CallError as error:
        raise PipelineError(
            f"to_dask() has called the functions with made-up rows to see which columns come out, "
            f"and {error} failed: give the columns with meta=, as a frame without rows"
        ) from error.__cause__
    return outputs[0].iloc[:0] if outputs else pd.DataFrame()


def collect_dataframes(running: PipelineRun, ends: int = 1) -> list[dd.DataFrame]:
    """Run to the end; return a Dask dataframe of each of ``ends``, in the order of the input."""
    left = running.left
    outputs: list[list[tuple[Block, int | None]]] = [[] for _ in range(ends)]
    with running:
        for block in running:
            whole = left is None or block.rows <= left
            outputs[block.sink].append((block, None if whole else left))
            left = None if left is None else max(0, left - block.rows)
    return [_arranged(running, blocks) for blocks in outputs]


def _arranged(running: PipelineRun, blocks: list[tuple[Block, int | None]]) -> dd.DataFrame:
    """Return a Dask dataframe of blocks, or of some rows of them."""
    if not blocks:  # an output without rows is one block
        empty: dd.DataFrame = dd.from_pandas(pd.DataFrame(), npartitions=1)
        return empty
    blocks.sort(key=lambda item: item[0].place)
    meta = running.fetch(blocks[0][0]).iloc[:0]
    promises = [Promise(running.futures, Remote(b.value, b.nbytes)) for b, _ in blocks]
    return _collection(promises, meta, [rows for _, rows in blocks])


def _collection(
    promises: Sequence[Promise], meta: pd.DataFrame, rows: Sequence[int | None] = ()
) -> dd.DataFrame:
    """Return a Dask dataframe of promised partitions, or of some rows of them."""
    parts = [delayed(fetch)(promise) for promise in promises]
    for i, count in enumerate(rows):
        if count is not None:
            parts[i] = parts[i].head(count)
    frame: dd.DataFrame = dd.from_delayed(parts, meta=meta, verify_meta=False)
    return frame
