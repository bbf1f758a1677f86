"""Blocks between the stages of a pipeline, and the rows of the source that they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dask_exo.cluster.task_status import Activity
from dask_exo.errors import Failure
from dask_exo.partitions.gpu.memory import GpuMemoryUse
from dask_exo.pipeline.streaming.snapshot import PipelineView

SHOWN = 3  # ranges that a text names


class RowRange(NamedTuple):
    """Neighbouring rows of one partition of the source.

    Attributes
    ----------
    partition : int
    start : int
        The first row.
    stop : int, optional
        The one after the last; None if not counted yet.
    """

    partition: int
    start: int = 0
    stop: int | None = None


class Origin(NamedTuple):
    """Rows that a frame was made of.

    Attributes
    ----------
    rows : tuple of RowRange
    exact : bool
        Whether each row of the frame comes from the one in its place.
    """

    rows: tuple[RowRange, ...]
    exact: bool = True

    def counted(self, rows: int) -> Origin:
        """Return the same for a partition that turns out to have ``rows`` rows."""
        first = self.rows[0]
        return self if first.stop is not None else Origin((first._replace(stop=rows),))

    def part(self, start: int, stop: int) -> Origin:
        """Return the origin of the rows ``start`` to ``stop`` of its frame.

        Examples
        --------
        >>> Origin((RowRange(0, 5, 8), RowRange(1, 0, 4))).part(2, 5).rows
        (RowRange(partition=0, start=7, stop=8), RowRange(partition=1, start=0, stop=2))
        """
        if not self.exact:
            return self
        found, before = [], 0
        for rows in self.rows:
            length = (rows.stop or 0) - rows.start
            low, high = max(start - before, 0), min(stop - before, length)
            if low < high:
                found.append(RowRange(rows.partition, rows.start + low, rows.start + high))
            before += length
        return Origin(tuple(found) or self.rows, bool(found))

    def made(self, taken: int, given: int, *, alone: bool) -> Origin:
        """Return the origin of the output of a function of the frame.

        As many rows as it had, in one frame, are taken for the same ones.
        """
        return self if alone and taken == given else self._replace(exact=False)

    def __str__(self) -> str:
        """Return the rows as text."""
        texts = [_text(rows) for rows in self.rows[:SHOWN]]
        more = len(self.rows) - SHOWN
        what = ", ".join(texts) + (f" and {more} more" if more > 0 else "")
        return what if self.exact else f"derived from {what}"


class Frame(NamedTuple):
    """A frame on its way through the transforms of a task.

    Attributes
    ----------
    data : object
        None where there is nothing, not even columns.
    last : bool
        Whether no other one follows.
    origin : Origin
    """

    data: Any
    last: bool
    origin: Origin = Origin(())


class RejectReason(NamedTuple):
    """Reason for which an input was set aside.

    Attributes
    ----------
    stage, function : str
        Names.
    origin : Origin
        Of its rows.
    failure : Failure
    """

    stage: str
    function: str
    origin: Origin
    failure: Failure


def joined(origins: Sequence[Origin]) -> Origin:
    """Return the origin of a concatenation of frames.

    Examples
    --------
    >>> str(
    ...     joined(
    ...         [
    ...             Origin((RowRange(0, 0, 5),)),
    ...             Origin((RowRange(0, 5, 9),)),
    ...             Origin((RowRange(2, 0, 1),)),
    ...         ]
    ...     )
    ... )
    'partition 0 rows 0:9, partition 2 rows 0:1'
    """
    found: list[RowRange] = []
    for origin in origins:
        for rows in origin.rows:
            last = found[-1] if found else None
            if last is not None and last.partition == rows.partition and last.stop == rows.start:
                found[-1] = last._replace(stop=rows.stop)
            elif last != rows:
                found.append(rows)
    return Origin(tuple(found), all(origin.exact for origin in origins))


def _text(rows: RowRange) -> str:
    some = "" if rows.stop is None else f" rows {rows.start}:{rows.stop}"
    return f"partition {rows.partition}{some}"


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
