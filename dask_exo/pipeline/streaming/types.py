"""Blocks and stages of a pipeline, the graph of stages, and the interface of runners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dask_exo.cluster.task_status import Activity
from dask_exo.partitions.gpu.memory import GpuMemoryUse
from dask_exo.pipeline.streaming.provenance import Origin, RejectReason
from dask_exo.pipeline.streaming.snapshot import PipelineView


@dataclass(eq=False)
class ConsumerCounts:
    """Counts of the consumers of a block that several stages or sinks take.

    Attributes
    ----------
    waiting : int
        Those that have not taken it.
    using : int
        Those that have not released it: it counts until then.
    """

    waiting: int
    using: int


class Lineage(NamedTuple):
    """Inputs and number of an output, by which it is recomputed if it is lost with its node.

    Attributes
    ----------
    inputs : tuple of Block
        Of the task that made it. They have no values, which would keep these in the store, but for
        small ones.
    number : int
        Of the output of that task.
    digest : int
        Of all outputs of the task up to this one.
    """

    inputs: tuple[Block, ...]
    number: int
    digest: int


class Block(NamedTuple):
    """An output of a task.

    Attributes
    ----------
    value : object
        A reference of it.
    nbytes, rows : int
    place : tuple of int
        Where it belongs: number of the source's input, then number of the output in each stage.
    more : bool
        Whether the task may give another one after it.
    seconds : float
        Work that it took.
    origin : Origin
        Rows of the source that it was made of.
    rejected : RejectReason, optional
        Why it is no output, but an input that was set aside.
    shared : ConsumerCounts, optional
        By whom, where several take it.
    stage, sink : int
        That has made it; where it comes out.
    held : GpuMemoryUse, optional
        What its task has held of a device so far, where it was on one.
    lineage : Lineage, optional
        What it was made of, if not by a source.
    small : bool
        Whether it costs nothing to keep its value.
    """

    value: Any
    nbytes: int
    rows: int
    place: tuple[int, ...] = ()
    more: bool = False
    seconds: float = 0.0
    origin: Origin = Origin(())
    rejected: RejectReason | None = None
    shared: ConsumerCounts | None = None
    stage: int = -1
    sink: int = 0
    held: GpuMemoryUse | None = None
    lineage: Lineage | None = None
    small: bool = False


class StageSpec(NamedTuple):
    """Requirements of a stage.

    Attributes
    ----------
    name : str
    needs : mapping
        Resources of one task.
    least : int
        Rows to give to one task at least, by giving it several blocks.
    limit : int, optional
        Tasks side by side at most.
    least_workers : int
        Actors that start before there is any input.
    takes : tuple of int, optional
        Stages before it whose outputs it takes, none if it is a source; by default the one before.
    """

    name: str
    needs: Mapping[str, float]
    least: int = 0
    limit: int | None = None
    least_workers: int = 0
    takes: tuple[int, ...] | None = None


AGAIN = Block(None, 0, 0, more=True)
"""Returned by `Runner.take` for a task that was restarted."""


class Runner(Protocol):
    """Place where the tasks run."""

    def now(self) -> float:
        """Return seconds since some moment."""
        ...

    def total(self) -> Mapping[str, float]:
        """Return the resources of the cluster."""
        ...

    def needs(self, stage: int) -> Mapping[str, float]:
        """Return the request of a task: that of its stage, or more if it was seen to hold more."""
        ...

    def start(self, stage: int, inputs: Sequence[Block]) -> Any:
        """Start a task; return its handle."""
        ...

    def recompute(self, block: Block) -> Any:
        """Start a task that recomputes a block by its lineage."""
        ...

    def wait(self, tasks: Sequence[Any], timeout: float | None) -> list[Any]:
        """Wait until some of ``tasks`` have made an output or ended; return those."""
        ...

    def stage(self, task: Any) -> int:
        """Return the stage of the task that has to go on: its own, or of a lost input."""
        ...

    def last(self, task: Any) -> bool:
        """Return whether a task that is ready has ended, or will after its output."""
        ...

    def take(self, task: Any) -> Block | None:
        """Return the next output of a task, which goes on; None if it has ended."""
        ...

    def idle(self, stage: int) -> int:
        """Return the number of idle actors of a stage."""
        ...

    def at_target(self, stage: int) -> bool:
        """Return whether a stage has as many actors as it shall have."""
        ...

    def resize(self, view: PipelineView) -> bool:
        """Resize actor pools by measured rates; return whether anything has changed."""
        ...

    def idle_resources(self) -> Mapping[str, float]:
        """Return the resources that idle actors hold."""
        ...

    def dismiss_idle(self) -> None:
        """End all idle actors."""
        ...

    def cancel(self, tasks: Sequence[Any]) -> None:
        """Stop tasks, and end all actors."""
        ...

    def activity(self, tasks: Sequence[Any]) -> Activity:
        """Return what tasks do at the moment."""
        ...


To = tuple[int, tuple[int, ...]]
"""Number of a stage or an end; and which of its inputs, if it has several: that becomes part of the
place of what it takes, or the same could come by two ways.
"""


class Links(NamedTuple):
    """Neighbours of a stage in the graph.

    Attributes
    ----------
    before : tuple of int
        Stages whose outputs it takes; none of a source.
    after : tuple of To
        Stages that take its outputs.
    sinks : tuple of To
        Ends of the pipeline at which they come out.
    later : tuple of int
        All stages that something of its outputs comes to.
    """

    before: tuple[int, ...]
    after: tuple[To, ...]
    sinks: tuple[To, ...]
    later: tuple[int, ...]

    @property
    def takers(self) -> int:
        """Number of stages and sinks that take each output."""
        return len(self.after) + len(self.sinks)


def links(stages: Sequence[StageSpec], sinks: Sequence[Sequence[int]] | None = None) -> list[Links]:
    """Return the links of each stage.

    Parameters
    ----------
    stages : sequence of StageSpec
        (S,) each after those whose outputs it takes.
    sinks : sequence of sequence of int, optional
        For each end of the pipeline the stages whose outputs come out there; by default one, of the
        last stage.

    Examples
    --------
    >>> left, right, both = (StageSpec("", {}, takes=some) for some in [(0,), (0,), (1, 2)])
    >>> of = links([StageSpec("read", {}), left, right, both])
    >>> of[0].after, of[0].later, of[2].after
    (((1, ()), (2, ())), (1, 2, 3), ((3, (1,)),))
    """
    before = [_before(i, stage) for i, stage in enumerate(stages)]
    later: list[tuple[int, ...]] = [() for _ in stages]
    for i in reversed(range(len(stages))):
        for k in before[i]:
            later[k] = tuple(sorted({*later[k], i, *later[i]}))
    ends = [(len(stages) - 1,)] if sinks is None else sinks
    return [
        Links(before[i], _takers(before, i), _takers(ends, i), later[i]) for i in range(len(stages))
    ]


def _takers(of: Sequence[Sequence[int]], i: int) -> tuple[To, ...]:
    """Return the takers of the outputs of ``i``, each with the number of that input."""
    return tuple(
        (k, (n,) if len(some) > 1 else ())
        for k, some in enumerate(of)
        for n, b in enumerate(some)
        if b == i
    )


def _before(i: int, stage: StageSpec) -> tuple[int, ...]:
    if stage.takes is not None:
        return stage.takes
    return (i - 1,) if i else ()
