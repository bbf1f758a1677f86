"""Handles of pipelines that run."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pandas as pd

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.watchdog import fetch_values
from dask_exo.config import Config
from dask_exo.errors import ValueLostError
from dask_exo.execution.background import stop_with_all
from dask_exo.execution.run_metrics import StoreSampler, observed
from dask_exo.partitions.batching import rebatch
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.recovery import can_recompute
from dask_exo.pipeline.streaming.types import Block
from dask_exo.report.progress import showing

SOON = 0.02  # seconds until it is looked again whether the consumer wants something
EVERY = 1.0  # seconds between two reports of how the stages are


class StageReporter:
    """Reporter of events about the stages of a pipeline."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._last = 0.0

    def report(self) -> None:
        """Emit an event for each stage."""
        self._last = time.monotonic()
        for seen in self._executor.stage_events():
            events.emit(seen)

    def report_occasionally(self) -> None:
        """Report, unless there was a report lately."""
        if time.monotonic() - self._last > EVERY:
            self.report()


class PipelineRun(Iterator[Block]):
    """A pipeline that runs in a thread of its own; iterates over blocks of its last stage.

    Attributes
    ----------
    left : int or None
        Rows that are still wanted; None for all.
    futures : Futures
        Where its blocks are.
    """

    def __init__(self, executor: Executor, futures: Futures, rows: int | None) -> None:
        self._executor, self.futures = executor, futures
        self.left = rows
        self._patience = Config.current().stall_timeout
        self._out: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
        self._lost: queue.SimpleQueue[Block] = queue.SimpleQueue()
        self._recomputed: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
        self._asked = threading.Semaphore(0)
        self._stopped = False
        self._shown = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._main, name="dask_exo-pipeline", daemon=True)
        stop_with_all(self)
        self._thread.start()

    def __next__(self) -> Block:
        """Return the next block; raise the error of a stage that failed."""
        if self._stopped or self.left == 0:
            self.stop()
            raise StopIteration
        self._asked.release()
        got = self._out.get()
        if isinstance(got, Block):
            if self.left is not None:
                self.left -= min(got.rows, self.left)
            return got
        self.stop()
        if got is None:
            raise StopIteration
        raise got

    def fetch(self, block: Block) -> pd.DataFrame:
        """Return the frame of the last block; recompute it if it was lost with a node."""
        frame: pd.DataFrame
        try:
            frame = fetch_block(self.futures, block.value, patience=self._patience)
        except ValueLostError:
            recomputed = self._recompute(block) if can_recompute(block) else None
            if recomputed is None:
                raise
            frame = fetch_block(self.futures, recomputed.value, patience=self._patience)
        return frame

    def _recompute(self, block: Block) -> Block | None:
        """Return a recomputed block; None if the pipeline has ended."""
        self._lost.put(block)
        got = self._recomputed.get()
        if isinstance(got, BaseException):
            raise got
        return got

    def stop(self) -> None:
        """End the run, and stop its tasks."""
        self._stopped = True
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def __enter__(self) -> PipelineRun:
        self._shown.enter_context(showing(Config.current().progress))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._shown.close()

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            with observed(self.futures) as looks:
                events.emit(events.RunStarted({}))
                self._run(looks)
        except BaseException as raised:  # noqa: BLE001  raised where the next block is requested
            error = raised
        finally:
            self._out.put(error)
            self._recomputed.put(error)

    def _run(self, looks: StoreSampler) -> None:
        executor, owed, reporter = self._executor, 0, StageReporter(self._executor)
        try:
            while not self._stopped:
                while self._asked.acquire(blocking=False):
                    owed += 1
                while not self._lost.empty():
                    executor.recompute(self._lost.get())
                while executor.recomputed:
                    self._recomputed.put(executor.recomputed.pop())
                while owed and executor.outputs:
                    self._out.put(executor.take())
                    owed -= 1
                if executor.finished:
                    if owed:
                        break
                    executor.step(0)  # releases actors; the last block may have to be recomputed
                    owed += self._asked.acquire(timeout=SOON)
                    continue
                executor.step(SOON if owed or executor.outputs else 0.1)
                reporter.report_occasionally()
                looks.look(executor.bottleneck)
        finally:
            reporter.report()
            executor.cancel()


class Batches(Iterator[Any]):
    """Batches of the output of a pipeline, which starts with the first one."""

    def __init__(
        self,
        start: Callable[[], PipelineRun],
        size: int | None,
        form: Callable[[pd.DataFrame], Any],
    ) -> None:
        self._steps = self._run(start, size, form)

    def __next__(self) -> Any:
        """Return the next batch."""
        return next(self._steps)

    def close(self) -> None:
        """End the pipeline."""
        self._steps.close()

    @staticmethod
    def _run(
        start: Callable[[], PipelineRun], size: int | None, form: Callable[[pd.DataFrame], Any]
    ) -> Generator[Any, None, None]:
        with start() as running:
            frames = _frames(running)
            for batch in frames if size is None else rebatch(frames, size):
                yield form(batch)


def fetch_block(futures: Futures, ref: Ref, *, patience: float | None) -> Any:
    """Return the value of a block; ``patience`` is `Config.stall_timeout`."""
    return fetch_values(futures, [ref], patience, lambda _: "a block")[0]


def _frames(running: PipelineRun) -> Iterator[pd.DataFrame]:
    """Yield the frames of a pipeline, up to the wanted number of rows."""
    left = running.left
    for block in running:
        frame = running.fetch(block)
        if left is not None:
            frame, left = frame.iloc[:left], left - min(left, len(frame))
        yield frame
