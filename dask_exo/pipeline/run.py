"""Runs of a pipeline: preparation, the thread that drives them, and the objects that users get."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from dask_exo import events
from dask_exo.cluster.futures import Futures, Node, Ref
from dask_exo.cluster.waiting import Watchdog, await_nodes, fetch_values
from dask_exo.config import Config
from dask_exo.errors import ValueLostError
from dask_exo.execution.accounting import StoreSampler, observed
from dask_exo.execution.background import stop_with_all
from dask_exo.partitions.batching import prefetch, rebatch
from dask_exo.pipeline.operators import (
    PlannedStage,
    check_requests,
    code_of,
    planned,
    requests_of,
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

POLL_INTERVAL = 0.02  # seconds between two polls for requests of the consumer
REPORT_INTERVAL = 1.0  # seconds between two reports about the stages


def execute(pipelines: Sequence[Pipeline]) -> tuple[Executor, Futures]:
    """Prepare a run of pipelines, with memory and target size of the first; common parts run once.

    Raises
    ------
    PipelineError
        No node has the resources that a stage requests.
    """
    config, futures = Config.current(), Scheduler().cluster()
    simulate = config.gpu_simulate and not futures.resources().get("GPU")
    plan, _ = _planned(pipelines, lambda _: True, simulate=simulate)
    await_nodes(futures, requests_of([stage.steps for stage in plan]), config.node_timeout)
    total = futures.resources()
    check_requests(
        [stage.steps for stage in plan], total, list(futures.activity([]).nodes.values())
    )
    first = pipelines[0]
    memory = first.memory or int(config.stream_memory_fraction * usable_store(futures.nodes()))
    target = min(first.target or config.stream_target, max(1, memory // 8))
    inputs = start_sources(sources_of(pipelines), config, futures.put)
    plan, sinks = _planned(pipelines, lambda source: inputs[id(source)][1], simulate=simulate)
    stages = [stage_of(stage) for stage in plan]
    codes = [code_of(stage.steps, target, stage.error_policy, config) for stage in plan]
    sources = [stage.source for stage in plan if stage.source is not None]
    executor = Executor(
        stages,
        [inputs[id(source)][0] for source in sources],
        StreamRunner(futures, stages, codes),
        POLICIES[config.stream_policy](),
        limit=memory,
        target=target,
        counts=[source.count for source in sources],
        sinks=sinks,
        watchdog=Watchdog(futures, config.stall_timeout),
    )
    get = partial(fetch_block, futures, patience=config.stall_timeout)
    for pipeline in pipelines:
        pipeline._runs[:] = [Rejects(executor.rejects, get)]
    return executor, futures


def usable_store(nodes: Sequence[Node]) -> int:
    """Return the bytes that the object stores take before one is full, if all slots fill them.

    Examples
    --------
    >>> usable_store([Node("small", 2, 10**9), Node("large", 8, 10**10), Node("idle", 0, 10**9)])
    5000000000
    """
    busy = [node for node in nodes if node.slots]
    least = min((node.store / node.slots for node in busy), default=0.0)
    return int(least * sum(node.slots for node in busy))


def _planned(
    ends: Sequence[Pipeline], makes: Callable[[PipelineSource], bool], *, simulate: bool
) -> tuple[list[PlannedStage], list[tuple[int, ...]]]:
    """Return the result of `planned`, without requests of GPUs if these are simulated."""
    plan, sinks = planned(ends, makes)
    if simulate:
        plan = [stage._replace(steps=without_gpus(stage.steps)) for stage in plan]
    return plan, sinks


class PipelineRun(Iterator[Block]):
    """A pipeline that runs in a thread of its own; iterates over blocks of its last stage."""

    futures: Futures

    def __init__(self, executor: Executor, futures: Futures, rows: int | None) -> None:
        self._executor, self.futures = executor, futures
        self.left = rows  # that are still wanted; None for all
        self._patience = Config.current().stall_timeout
        self._outputs: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
        self._lost: queue.SimpleQueue[Block] = queue.SimpleQueue()
        self._recomputed: queue.SimpleQueue[Block | BaseException | None] = queue.SimpleQueue()
        self._requests = threading.Semaphore(0)
        self._stopped = False
        self._display = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._main, name="dask_exo-pipeline", daemon=True)
        stop_with_all(self)
        self._thread.start()

    def __next__(self) -> Block:
        """Return the next block; raise the error of a stage that failed."""
        if self._stopped or self.left == 0:
            self.stop()
            raise StopIteration
        self._requests.release()
        item = self._outputs.get()
        if isinstance(item, Block):
            if self.left is not None:
                self.left -= min(item.rows, self.left)
            return item
        self.stop()
        if item is None:
            raise StopIteration
        raise item

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
        item = self._recomputed.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """End the run, and stop its tasks."""
        self._stopped = True
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def __enter__(self) -> PipelineRun:
        self._display.enter_context(showing(Config.current().progress))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._display.close()

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            with observed(self.futures) as sampler:
                events.emit(events.RunStarted({}))
                self._run(sampler)
        except BaseException as raised:  # noqa: BLE001  raised where the next block is requested
            error = raised
        finally:
            self._outputs.put(error)
            self._recomputed.put(error)

    def _run(self, sampler: StoreSampler) -> None:
        executor, open_requests = self._executor, 0
        try:
            while not self._stopped:
                while self._requests.acquire(blocking=False):
                    open_requests += 1
                while not self._lost.empty():
                    executor.recompute(self._lost.get())
                while executor.recomputed:
                    self._recomputed.put(executor.recomputed.pop())
                while open_requests and executor.outputs:
                    self._outputs.put(executor.take())
                    open_requests -= 1
                if executor.finished:
                    if open_requests:
                        break
                    executor.step(0)  # releases actors; the last block may have to be recomputed
                    open_requests += self._requests.acquire(timeout=POLL_INTERVAL)
                    continue
                executor.step(POLL_INTERVAL if open_requests or executor.outputs else 0.1)
                executor.report(REPORT_INTERVAL)
                sampler.sample(executor.bottleneck)
        finally:
            executor.report()
            executor.cancel()


def iter_batches(
    start: Callable[[], PipelineRun], size: int | None, convert: Callable[[pd.DataFrame], Any]
) -> Generator[Any, None, None]:
    """Yield batches of the output of a pipeline, which starts with the first one."""
    with ThreadPoolExecutor(1, "exo-batches") as pool, start() as running:
        frames = prefetch(_frames(running), pool)
        for batch in frames if size is None else rebatch(frames, size):
            yield convert(batch)


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
        value = self._fetch()
        return value if isinstance(value, pd.DataFrame) else None


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
        rows = []
        for reject, block in zip(self, self._blocks, strict=False):
            error = f"{type(reject.error).__name__}: {reject.error}"
            place = reject.stage, reject.function, *reject.origin.rows[0]
            rows.append((*place, reject.origin.exact, block.rows, error))
        return pd.DataFrame(rows, columns=columns).astype({"stop": "Int64"})

    def __repr__(self) -> str:
        """Return their number as text."""
        return f"Rejects of a pipeline: {len(self)}"
