"""Pipelines on a virtual clock, from their first input to their last output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from dask_exo.cluster.futures import Node
from dask_exo.pipeline.streaming.blocks import Block, StageSpec
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.pipeline.streaming.snapshot import Policy
from dask_exo.pipeline.streaming.task import BlockMetadata, StageCode, TaskInputs
from dask_exo.pipeline.streaming.transforms import RAISE
from dask_exo.testing import Cost, NodeDeath, ProcessDeath, SimFutures, SimOutput
from dask_exo.testing.simulated.generators import Work


class Piece(NamedTuple):
    """Value of a block: its bytes, the seconds of all work behind it, and its place if first."""

    nbytes: int = 0
    born: float = 0.0
    place: tuple[int, ...] = ()


TaskCosts = Callable[[int, Sequence[Piece]], Sequence[tuple[float, int]]]
"""``costs(stage, inputs)``: seconds and bytes of each output of a task."""


class Fault(NamedTuple):
    """The process of a task dies on a node, or the node, which comes back after ``away`` s."""

    at: float
    node: int
    away: float | None = None


def call_of(args: Sequence[Any]) -> tuple[StageCode, TaskInputs, Sequence[Any]]:
    """Return the arguments of a task of a pipeline; on an actor, an instance comes first."""
    code, start, *values = args if isinstance(args[0], StageCode) else args[1:]
    return code, start, values


def timed(seconds: Callable[[str, int], float]) -> Work:
    """Run the tasks of a pipeline, whose values take ``seconds(stage, number of the input)``."""

    def work(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[SimOutput]:
        code, start, _ = call_of(args)
        each = seconds(code.name, start.place[0])
        values = iter(fn(*args))
        for value in values:
            yield SimOutput(each, 0, value, next(values)._replace(seconds=each))

    return work


def priced(costs: TaskCosts) -> Work:
    """Run no tasks: their outputs are pieces that cost what is given."""
    known: dict[tuple[int, tuple[int, ...]], Sequence[tuple[float, int]]] = {}

    def work(fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[SimOutput]:
        code, start, values = call_of(args)
        stage = int(code.key)
        inputs = [values[0]._replace(place=start.place), *values[1:]]
        key = stage, start.place
        if key not in known:  # a task that restarts costs the same
            known[key] = costs(stage, inputs)
        born, late = max(piece.born for piece in inputs), 0.0
        for k, (seconds, nbytes) in enumerate(known[key]):
            born += seconds
            late += seconds
            if k < start.skip:
                continue
            more = k + 1 < len(known[key]) and not start.only
            about = BlockMetadata(nbytes, 1, seconds, more=more, before=k, digest=k + 1)
            yield SimOutput(late, nbytes, Piece(nbytes, born, (*start.place, k)), about)
            late = 0.0
            if start.only:
                return

    return work


class _Runner(StreamRunner):
    def is_stateless(self, stage: StageSpec, code: StageCode) -> bool:
        return True


class SimPipeline:
    """A pipeline on a simulated cluster.

    Parameters
    ----------
    stages : sequence of StageSpec
    resources : mapping or sequence of mapping
        Of one node, or of each; they are called n0, n1, ...
    costs : TaskCosts
    faults : sequence of Fault
    sinks : sequence of sequence of int, optional
        See `dask_exo.pipeline.streaming.blocks.links`.
    actors : bool
        Whether stages that request other resources than CPUs run on actors; if not, policies alone
        decide what runs.
    """

    def __init__(
        self,
        stages: Sequence[StageSpec],
        resources: Mapping[str, float] | Sequence[Mapping[str, float]],
        costs: TaskCosts,
        faults: Sequence[Fault] = (),
        sinks: Sequence[Sequence[int]] | None = None,
        *,
        actors: bool = False,
    ) -> None:
        each = [resources] if isinstance(resources, Mapping) else resources
        self.stages, self.sinks = stages, sinks
        self.futures = SimFutures(
            [Node(f"n{i}", 1, 10**15, resources=one) for i, one in enumerate(each)],
            lambda _: Cost(0, 0),
            work=priced(costs),
            faults=[
                ProcessDeath(at, f"n{node}")
                if away is None
                else NodeDeath(at, f"n{node}", at + away)
                for at, node, away in faults
            ],
        )
        codes = [StageCode(str(i), [], 0, RAISE, {}) for i in range(len(stages))]
        runner = StreamRunner if actors else _Runner
        self.runner = runner(self.futures, stages, codes)

    @property
    def live(self) -> int:
        """Bytes of all pieces that exist."""
        return self.futures.store().used


@dataclass
class Outcome:
    """A pipeline that has run.

    Attributes
    ----------
    seconds, first : float
        Virtual seconds to the last output and to the first one.
    places : list of tuple
        Of the outputs, as they came; with several ends, after the number of its end.
    peak, live : int
        Maximum of the bytes that the executor has counted, and of those while time passes.
    forced, lost, left : int
        Tasks that went on without room; processes that died; bytes that nobody has dropped.
    """

    seconds: float
    first: float
    places: list[tuple[int, ...]]
    peak: int
    live: int
    forced: int
    lost: int
    left: int


def simulate(
    pipeline: SimPipeline,
    inputs: int | Sequence[int],
    policy: Policy,
    *,
    limit: int,
    target: int,
    steps: int = 200_000,
) -> Outcome:
    """Run a pipeline to its end.

    Parameters
    ----------
    pipeline : SimPipeline
    inputs : int or sequence of int
        Of the source, or of each.
    policy : Policy
    limit, target : int
        See `Executor`.
    steps : int
        After which it is taken to stand still.

    Raises
    ------
    TimeoutError
        It stands still.
    """
    executor = executor_of(pipeline, inputs, policy, limit=limit, target=target)
    out, futures = Outcome(0.0, 0.0, [], 0, 0, 0, 0, 0), pipeline.futures
    moment, live = 0.0, 0
    for _ in range(steps):
        if executor.finished:
            break
        executor.step(1000.0)
        if futures.now > moment:  # before that, some tasks had ended whose inputs were not dropped
            out.live = max(out.live, live)
        moment, live = futures.now, pipeline.live
        while executor.outputs:
            out.first = out.first or futures.now
            block = executor.take()
            several = pipeline.sinks is not None
            out.places.append((block.sink, *block.place) if several else block.place)
            del block
    else:
        raise TimeoutError(f"no end after {steps} steps: {executor.view()}")
    out.seconds = futures.now
    executor.cancel()
    out.peak, out.forced, out.lost = executor.peak, executor.forced, futures.generators.deaths
    out.left = pipeline.live
    return out


def executor_of(
    pipeline: SimPipeline, inputs: int | Sequence[int], policy: Policy, **options: Any
) -> Executor:
    """Return the executor of a pipeline."""
    counts = [inputs] if isinstance(inputs, int) else inputs
    starts = accumulate(counts, initial=0)
    sources = [_source(range(start, start + n)) for start, n in zip(starts, counts, strict=False)]
    runner, sinks = pipeline.runner, pipeline.sinks
    more = {"sinks": sinks, "counts": counts, **options}
    return Executor(pipeline.stages, sources, runner, policy, **more)


def _source(numbers: range) -> Iterator[Block]:
    for i in numbers:
        yield Block(Piece(), 0, 1, (i,), small=True)
