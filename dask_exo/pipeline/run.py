"""Runs of a pipeline: preparation, the thread that drives them, and what users hold of them."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Watchdog, fetch_values
from dask_exo.config import Config
from dask_exo.errors import ValueLostError
from dask_exo.execution.accounting import StoreSampler, observed
from dask_exo.execution.background import stop_with_all
from dask_exo.partitions.batching import rebatch
from dask_exo.pipeline.operators import (
    Part,
    check_needs,
    code_of,
    planned,
    sources_of,
    stage_of,
    without_gpus,
)
from dask_exo.pipeline.policies import POLICIES
from dask_exo.pipeline.sources import PipelineSource, start_sources
from dask_exo.pipeline.streaming.blocks import Block, Origin
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.report.progress import showing
from dask_exo.scheduler import Scheduler

if TYPE_CHECKING:
    from dask_exo.pipeline.api import Pipeline

SOON = 0.02  # seconds until it is looked again whether the consumer wants something
EVERY = 1.0  # seconds between two reports of how the stages are


def execute(pipelines: Sequence[Pipeline]) -> tuple[Executor, Futures]:
    """Prepare a run of pipelines, with memory and target size of the first; common parts run once.

    Raises
    ------
    PipelineError
        No node has the resources that a stage requests.
    """
    config, futures = Config.current(), Scheduler().cluster()
    total = futures.resources()
    simulate = config.gpu_simulate and not total.get("GPU")
    parts, _ = _planned(pipelines, lambda _: True, simulate=simulate)
    check_needs([part.steps for part in parts], total, list(futures.activity([]).nodes.values()))
    first, store = pipelines[0], sum(node.store for node in futures.nodes())
    memory = first.memory or int(config.stream_memory_fraction * store)
    target = min(first.target or config.stream_target, max(1, memory // 8))
    started = start_sources(sources_of(pipelines), config, futures.put)
    parts, sinks = _planned(pipelines, lambda source: started[id(source)][1], simulate=simulate)
    stages = [stage_of(part.steps)._replace(takes=part.takes) for part in parts]
    codes = [code_of(part.steps, target, part.error_policy, config) for part in parts]
    executor = Executor(
        stages,
        [started[id(part.source)][0] for part in parts if part.source is not None],
        StreamRunner(futures, stages, codes),
        POLICIES[config.stream_policy](),
        limit=memory,
        target=target,
        sinks=sinks,
        watchdog=Watchdog(futures, config.stall_timeout),
    )
    get = partial(fetch_block, futures, patience=config.stall_timeout)
    for pipeline in pipelines:
        pipeline._runs[:] = [Rejects(executor.rejects, get)]
    return executor, futures


def _planned(
    ends: Sequence[Pipeline], makes: Callable[[PipelineSource], bool], *, simulate: bool
) -> tuple[list[Part], list[tuple[int, ...]]]:
    """Return the result of `planned`, without requests of GPUs if these are simulated."""
    parts, sinks = planned(ends, makes)
    if simulate:
        parts = [part._replace(steps=without_gpus(part.steps)) for part in parts]
    return parts, sinks


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
        The cluster that stores its blocks.
    """

    def __init__(self, executor: Executor, futures: Futures, rows: int | None) -> None:
        self._executor, self.futures = executor, futures
        self.left = rows
        self._patience = Config.current().stall_timeout
        self._out: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
        self._lost: queue.SimpleQueue[Block] = queue.SimpleQueue()
        self._recomputed: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
        self._requests = threading.Semaphore(0)
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
        self._requests.release()
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
            recomputed = self._recompute(block) if block.can_recompute else None
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
            with observed(self.futures) as sampler:
                events.emit(events.RunStarted({}))
                self._run(sampler)
        except BaseException as raised:  # noqa: BLE001  raised where the next block is requested
            error = raised
        finally:
            self._out.put(error)
            self._recomputed.put(error)

    def _run(self, sampler: StoreSampler) -> None:
        executor, owed, reporter = self._executor, 0, StageReporter(self._executor)
        try:
            while not self._stopped:
                while self._requests.acquire(blocking=False):
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
                    owed += self._requests.acquire(timeout=SOON)
                    continue
                executor.step(SOON if owed or executor.outputs else 0.1)
                reporter.report_occasionally()
                sampler.sample(executor.bottleneck)
        finally:
            reporter.report()
            executor.cancel()


def iter_batches(
    start: Callable[[], PipelineRun], size: int | None, form: Callable[[pd.DataFrame], Any]
) -> Generator[Any, None, None]:
    """Yield batches of the output of a pipeline, which starts with the first one."""
    with start() as running:
        frames = _frames(running)
        for batch in frames if size is None else rebatch(frames, size):
            yield form(batch)


def _frames(running: PipelineRun) -> Iterator[pd.DataFrame]:
    """Yield the frames of a pipeline, up to the wanted number of rows."""
    left = running.left
    for block in running:
        frame = running.fetch(block)
        if left is not None:
            frame, left = frame.iloc[:left], left - min(left, len(frame))
        yield frame


def fetch_block(futures: Futures, ref: Ref, *, patience: float | None) -> Any:
    """Return the value of a block; ``patience`` is `Config.stall_timeout`."""
    return fetch_values(futures, [ref], patience, lambda _: "a block")[0]


@dataclass(frozen=True)
class Reject:
    """An input that was set aside (a dead letter).

    Attributes
    ----------
    stage, function : str
        The place of the failure; the function "source" makes partitions.
    origin : Origin
        The rows of the source that the input was made of: partition, first row and the one after
        the last of each range in ``origin.rows``. ``origin.exact`` is False if functions before it
        returned another number of rows than they took.
    error : BaseException
        Raised by the function.
    traceback : str
        Text of the error.
    """

    stage: str
    function: str
    origin: Origin
    error: BaseException
    traceback: str
    _fetch: Callable[[], Any] = field(repr=False, compare=False)

    @property
    def partition(self) -> int:
        """Number of the first partition of the source that it was made of."""
        return self.origin.rows[0].partition

    @property
    def frame(self) -> pd.DataFrame | None:
        """The input; None if making it has failed."""
        found = self._fetch()
        return found if isinstance(found, pd.DataFrame) else None


class Rejects(Sequence[Reject]):
    """Inputs that a run of a pipeline has set aside so far, also while it runs.

    The inputs stay in the object store as long as they or the pipeline are referenced.
    """

    def __init__(
        self, blocks: Sequence[Block] = (), get: Callable[[Any], Any] = lambda value: value
    ) -> None:
        self._blocks, self._get = blocks, get

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, at: Any) -> Any:
        """Return one of them, or a slice."""
        if isinstance(at, slice):
            return Rejects(self._blocks[at], self._get)
        block = self._blocks[at]
        assert block.rejected is not None
        stage, function, origin, failure = block.rejected
        fetch = partial(self._get, block.value)
        return Reject(stage, function, origin, failure.error(), failure.text, fetch)

    def table(self) -> pd.DataFrame:
        """Return a table with a row for each: stage, function, rows and error."""
        columns = ["stage", "function", "partition", "start", "stop", "exact", "rows", "error"]
        found = []
        for one, block in zip(self, self._blocks, strict=False):
            error = f"{type(one.error).__name__}: {one.error}"
            found.append(
                (one.stage, one.function, *one.origin.rows[0], one.origin.exact, block.rows, error)
            )
        return pd.DataFrame(found, columns=columns).astype({"stop": "Int64"})

    def __repr__(self) -> str:
        """Return their number as text."""
        return f"Rejects of a pipeline: {len(self)}"
