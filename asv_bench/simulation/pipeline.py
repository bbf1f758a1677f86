"""Pipelines on a virtual clock, from their first input to their last output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from asv_bench.simulation.runner import SimRunner
from dask_exo.pipeline.streaming.blocks import Block
from dask_exo.pipeline.streaming.executor import Executor
from dask_exo.pipeline.streaming.snapshot import Policy
from dask_exo.pipeline.streaming.task import StageCode, TaskInputs
from dask_exo.testing import SimOutput
from dask_exo.testing.simulated.generators import Work


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
        The most bytes that the executor has counted, and that have been there when nothing moved.
    forced, lost, left : int
        What went on without room; tasks that started anew; bytes that nobody has dropped.
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
    runner: SimRunner,
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
    runner : SimRunner
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
    counts = [inputs] if isinstance(inputs, int) else inputs
    starts = accumulate(counts, initial=0)
    sources = [_source(range(start, start + n)) for start, n in zip(starts, counts, strict=False)]
    executor = Executor(
        runner.stages, sources, runner, policy, limit=limit, target=target, sinks=runner.sinks
    )
    out = Outcome(0.0, 0.0, [], 0, 0, 0, 0, 0)
    for _ in range(steps):
        if executor.finished:
            break
        executor.step(1000.0)
        out.live = max(out.live, runner.live)
        while executor.outputs:
            out.first = out.first or runner.time
            piece = executor.take()
            runner.drop(piece)
            several = runner.sinks is not None
            out.places.append((piece.sink, *piece.place) if several else piece.place)
    else:
        raise TimeoutError(f"no end after {steps} steps: {executor.view()}")
    out.seconds, out.left = runner.time, runner.live
    out.peak, out.forced, out.lost = executor.peak, executor.forced, runner.lost
    return out


def _source(numbers: range) -> Iterator[Block]:
    for i in numbers:
        yield Block(None, 0, 1, (i,))
