"""Blocks between the stages of a pipeline, and the rows of the source that they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from dask_exo.errors import Failure
from dask_exo.partitions.gpu.memory import GpuMemoryUse

MAX_RANGES = 3  # that a text names


class RowRange(NamedTuple):
    """Neighbouring rows of one partition of the source."""

    partition: int
    start: int = 0  # the first row
    stop: int | None = None  # the one after the last; None if not counted yet


class Origin(NamedTuple):
    """Rows of the source that a frame was made of."""

    rows: tuple[RowRange, ...]
    exact: bool = True  # each row of the frame comes from the one in its place

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
        ranges, before = [], 0
        for rows in self.rows:
            length = (rows.stop or 0) - rows.start
            low, high = max(start - before, 0), min(stop - before, length)
            if low < high:
                ranges.append(RowRange(rows.partition, rows.start + low, rows.start + high))
            before += length
        return Origin(tuple(ranges) or self.rows, bool(ranges))

    def made(self, input_rows: int, output_rows: int, *, only: bool) -> Origin:
        """Return the origin of an output; a single frame of as many rows has the same rows."""
        return self if only and input_rows == output_rows else self._replace(exact=False)

    def __str__(self) -> str:
        """Return the rows as text."""
        texts = [_text(rows) for rows in self.rows[:MAX_RANGES]]
        more = len(self.rows) - MAX_RANGES
        text = ", ".join(texts) + (f" and {more} more" if more > 0 else "")
        return text if self.exact else f"derived from {text}"


class Frame(NamedTuple):
    """A frame on its way through the transforms of a task."""

    data: Any  # None if there are not even columns
    last: bool  # no other one follows
    origin: Origin = Origin(())


class RejectReason(NamedTuple):
    """Reason for which an input was set aside."""

    stage: str
    function: str
    origin: Origin
    failure: Failure


def joined(origins: Sequence[Origin]) -> Origin:
    """Return the origin of a concatenation of frames.

    Examples
    --------
    >>> ranges = [RowRange(0, 0, 5), RowRange(0, 5, 9), RowRange(2, 0, 1)]
    >>> str(joined([Origin((one,)) for one in ranges]))
    'partition 0 rows 0:9, partition 2 rows 0:1'
    """
    ranges: list[RowRange] = []
    for origin in origins:
        for rows in origin.rows:
            last = ranges[-1] if ranges else None
            if last is not None and last.partition == rows.partition and last.stop == rows.start:
                ranges[-1] = last._replace(stop=rows.stop)
            elif last != rows:
                ranges.append(rows)
    return Origin(tuple(ranges), all(origin.exact for origin in origins))


def concat(frames: Sequence[Frame]) -> Frame | None:
    """Return the rows of frames as one frame, which is the last; None if there are no frames."""
    nonempty = [frame for frame in frames if len(frame.data)] or frames[:1]
    if len(nonempty) < 2:
        return nonempty[0]._replace(last=True) if nonempty else None
    origin = joined([frame.origin for frame in nonempty])
    return Frame(pd.concat([frame.data for frame in nonempty]), last=True, origin=origin)


def _text(rows: RowRange) -> str:
    span = "" if rows.stop is None else f" rows {rows.start}:{rows.stop}"
    return f"partition {rows.partition}{span}"


@dataclass(eq=False)
class ConsumerCounts:
    """Numbers of consumers of a shared block that have not taken it, and not released it."""

    waiting: int
    using: int


class Lineage(NamedTuple):
    """Inputs and number of an output, by which it is recomputed if it is lost with its node."""

    inputs: tuple[Block, ...]  # without values, which would keep these stored, but for small ones
    number: int  # of the output of the task
    digest: int  # of all outputs of the task up to this one


class Block(NamedTuple):
    """An output of a task, or an input of a source."""

    value: Any  # a ref
    nbytes: int
    rows: int
    place: tuple[int, ...] = ()  # number of the source's input, then of the output in each stage
    more: bool = False  # the task may give another one after it
    seconds: float = 0.0  # of work
    origin: Origin = Origin(())
    rejected: RejectReason | None = None  # set if it is an input that was set aside
    shared: ConsumerCounts | None = None  # set if it has several consumers
    stage: int = -1  # that made it
    sink: int = 0  # end of the pipeline at which it comes out
    held: GpuMemoryUse | None = None  # GPU memory that its task has used so far
    lineage: Lineage | None = None  # None for an input of a source
    small: bool = False  # it costs nothing to keep its value
    parts: int = 1  # neighbouring inputs of a source of which it is all there is; 0 for others

    @property
    def known_origin(self) -> Origin:
        """Rows of the source; those of an input of a source are not counted before it is read."""
        return self.origin if self.origin.rows else Origin((RowRange(self.place[0]),))

    @property
    def can_recompute(self) -> bool:
        """True if the lineage leads to stored values."""
        if self.lineage is None:
            return self.small
        return all(block.can_recompute for block in self.lineage.inputs)

    def without_value(self) -> Block:
        """Return the block without its value, unless that is small."""
        return self if self.small else self._replace(value=None, shared=None)


def lineage_of(inputs: Sequence[Block], number: int, digest: int) -> Lineage:
    """Return the lineage of an output, without values that can be recomputed.

    Examples
    --------
    >>> source = Block("a recipe", 0, 0, (0,), small=True)
    >>> block = Block("a ref", 9, 1, (0, 0), stage=0, lineage=lineage_of([source], 0, 7))
    >>> lineage_of([block], 2, 8).inputs[0].value is None
    True
    >>> lineage_of([block], 2, 8).inputs[0].lineage.inputs[0].value
    'a recipe'
    """
    return Lineage(tuple(block.without_value() for block in inputs), number, digest)


def origin_of(inputs: Sequence[Block]) -> Origin:
    """Return the rows of all inputs of a task."""
    return joined([block.known_origin for block in inputs])


RETRY = Block(None, 0, 0, more=True)
"""Returned by `StreamRunner.take` for a task that was restarted."""


class StageSpec(NamedTuple):
    """Requirements of a stage."""

    name: str
    request: Mapping[str, float]  # resources of one task
    least: int = 0  # rows that one task takes at least, if necessary of several blocks
    limit: int | None = None  # tasks at once
    least_workers: int = 0  # actors that start before there is any input
    takes: tuple[int, ...] | None = None  # stages whose outputs it takes; None: the one before
    writes: bool = False  # files, so that its outputs are only their names
    apart: bool = False  # its tasks take one block each: what they return, or skip, depends on it


Destination = tuple[int, tuple[int, ...]]
"""Number of a stage or an end; and of its input, if it has several. That becomes part of the place
of a block, since the same block could come by two ways.
"""


class Links(NamedTuple):
    """Neighbours of a stage in the graph."""

    before: tuple[int, ...]  # stages whose outputs it takes; none of a source
    after: tuple[Destination, ...]  # stages that take its outputs
    sinks: tuple[Destination, ...]  # ends of the pipeline at which they come out
    later: tuple[int, ...]  # all stages downstream

    @property
    def takers(self) -> int:
        """Number of stages and sinks that take each output."""
        return len(self.after) + len(self.sinks)


def links(stages: Sequence[StageSpec], sinks: Sequence[Sequence[int]] | None = None) -> list[Links]:
    """Return the links of each stage; each stage comes after those whose outputs it takes.

    ``sinks`` are for each end of the pipeline the stages whose outputs come out there; by default
    the last.

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


def _takers(inputs: Sequence[Sequence[int]], i: int) -> tuple[Destination, ...]:
    """Return the takers of the outputs of ``i``, each with the number of that input."""
    return tuple(
        (k, (n,) if len(numbers) > 1 else ())
        for k, numbers in enumerate(inputs)
        for n, number in enumerate(numbers)
        if number == i
    )


def _before(i: int, stage: StageSpec) -> tuple[int, ...]:
    if stage.takes is not None:
        return stage.takes
    return (i - 1,) if i else ()
