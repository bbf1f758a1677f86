"""What goes through a pipeline, and what runs it: blocks, stages, and where tasks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dask_exo.cluster.task_status import Activity
from dask_exo.partitions.gpu.memory import Held
from dask_exo.pipeline.streaming.provenance import Origin
from dask_exo.pipeline.streaming.retries import RejectReason
from dask_exo.pipeline.streaming.snapshot import PipelineView


@dataclass(eq=False)
class ConsumerCounts:
    """A block that several stages take, or several ends.

    Attributes
    ----------
    waiting : int
        Those that have not taken it.
    using : int
        Those that have not let go of it: it counts until then.
    """

    waiting: int
    using: int


class Lineage(NamedTuple):
    """What a block was made of: where it is lost with its node, it is made again.

    Attributes
    ----------
    inputs : tuple of Block
        Of the task that made it. They have no values, which would keep these in the store, but for
        those that are small enough to be kept.
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
    held : Held, optional
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
    held: Held | None = None
    lineage: Lineage | None = None
    small: bool = False


class Stage(NamedTuple):
    """What a stage asks for.

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
        Workers that are started before there is anything to do.
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
"""What `Runner.take` returns for a task that had to start anew."""


class Runner(Protocol):
    """Where the tasks run."""

    def now(self) -> float:
        """Seconds, from some moment on."""
        ...

    def total(self) -> Mapping[str, float]:
        """Resources that there are."""
        ...

    def needs(self, stage: int) -> Mapping[str, float]:
        """Resources that a task takes: what its stage asks for, or more if it was seen to."""
        ...

    def start(self, stage: int, inputs: Sequence[Block]) -> Any:
        """Start a task; return what stands for it."""
        ...

    def recompute(self, block: Block) -> Any:
        """Start a task that makes a block again, from its lineage."""
        ...

    def wait(self, tasks: Sequence[Any], timeout: float | None) -> list[Any]:
        """Wait until some of ``tasks`` have made an output or ended; return those."""
        ...

    def stage(self, task: Any) -> int:
        """That it waits for: its own one, or one before it that makes its input again."""
        ...

    def last(self, task: Any) -> bool:
        """Whether a task of those that `wait` returned has ended, or will after its output."""
        ...

    def take(self, task: Any) -> Block | None:
        """The next output of a task that has one, and let it go on; None if it has ended."""
        ...

    def idle(self, stage: int) -> int:
        """Workers that are kept for a stage and have nothing to do."""
        ...

    def at_target(self, stage: int) -> bool:
        """Whether a stage has as many workers as it shall have."""
        ...

    def resize(self, view: PipelineView) -> bool:
        """Have as many workers as the rates of stages ask for; return whether that has changed."""
        ...

    def idle_resources(self) -> Mapping[str, float]:
        """Resources of all workers that have nothing to do."""
        ...

    def dismiss_idle(self) -> None:
        """Let go of all workers that have nothing to do."""
        ...

    def cancel(self, tasks: Sequence[Any]) -> None:
        """Stop them, and let go of all workers."""
        ...

    def activity(self, tasks: Sequence[Any]) -> Activity:
        """What they do at the moment."""
        ...


To = tuple[int, tuple[int, ...]]
"""Number of a stage or an end; and which of its inputs, if it has several: that becomes part of the
place of what it takes, or the same could come by two ways.
"""


class Links(NamedTuple):
    """Around one stage.

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
        """How many take each output."""
        return len(self.after) + len(self.sinks)


def links(stages: Sequence[Stage], sinks: Sequence[Sequence[int]] | None = None) -> list[Links]:
    """The links of each stage.

    Parameters
    ----------
    stages : sequence of Stage
        (S,) each after those whose outputs it takes.
    sinks : sequence of sequence of int, optional
        For each end of the pipeline the stages whose outputs come out there; by default one, of the
        last stage.

    Examples
    --------
    >>> left, right, both = (Stage("", {}, takes=some) for some in [(0,), (0,), (1, 2)])
    >>> of = links([Stage("read", {}), left, right, both])
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
    """Those that take from ``i``, of several and what each of them takes from."""
    return tuple(
        (k, (n,) if len(some) > 1 else ())
        for k, some in enumerate(of)
        for n, b in enumerate(some)
        if b == i
    )


def _before(i: int, stage: Stage) -> tuple[int, ...]:
    if stage.takes is not None:
        return stage.takes
    return (i - 1,) if i else ()
