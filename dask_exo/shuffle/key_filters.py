"""Key filters: the larger side of a join sends no rows whose keys the smaller side lacks.

Most rows that are shuffled for a join find no partner. When both sides have mapped their first
parts, the smaller one goes on, and the larger one waits for its end. Then a filter of the keys of
the smaller side is built where its blocks are, and the remaining maps of the larger side leave out
the rows that it does not let pass. A shuffle that need not wait is not filtered.

No two shuffles wait for each other: of two, the smaller one goes on. A shuffle that waits for one
that has not started is read by nothing but the join above both, so that the other one does not
depend on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tlz import partition_all

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps, Until
from dask_exo.partitions.kernels import key_filter
from dask_exo.partitions.kernels.key_filter import KeyFilter
from dask_exo.shuffle.choose import LARGEST_BATCH
from dask_exo.shuffle.run_shuffle import Shuffled

SMALL = 16 * 2**20  # bytes; to filter fewer is not worth the wait
SMALLER = 2  # times fewer bytes has the side that is worth a wait


class FilterSource(NamedTuple):
    """A shuffle whose keys may filter the rows of another one, and the labels of both keys."""

    name: str
    keys: tuple[Any, ...]
    columns: tuple[Any, ...]  # of the shuffle that is filtered


class JoinSide(NamedTuple):
    """A shuffle that a join reads: its name, and the shuffles each of which may filter it.

    With a ``partner``, the other side, large reducers of the join may be divided (`spread`).
    """

    name: str
    sources: tuple[FilterSource, ...] = ()
    partner: str | None = None
    dealt: bool = False  # whether its rows may be dealt out


class KeyFilters:
    """The shuffles of one computation whose keys may filter those of others.

    ``lost`` tells whether a shuffle will never start, by its name.
    """

    def __init__(
        self, futures: Futures, sides: Sequence[JoinSide], lost: Callable[[str], bool]
    ) -> None:
        self._futures, self._lost = futures, lost
        self._names = {side.name for side in sides}
        self._readers = Counter(source.name for side in sides for source in side.sources)
        self._measured: dict[str, float] = {}  # bytes of those that have mapped their first parts
        self._finished: dict[str, Shuffled | None] = {}  # None for failed ones

    def may_filter(self, side: JoinSide) -> bool:
        """Return whether there is a shuffle whose keys may filter this one."""
        return any(source.name in self._names for source in side.sources)

    def finish(self, side: JoinSide | None, shuffled: Shuffled | None) -> None:
        """Record the end of a shuffle; without a result, it has failed."""
        if side is not None:
            self._finished[side.name] = shuffled if self._readers[side.name] else None

    def build(
        self, side: JoinSide, nbytes: int, rows: int
    ) -> Steps[tuple[Ref, FilterSource] | None]:
        """Wait until a shuffle of so many bytes should go on; return the ref of its filter.

        None if there is no filter.
        """
        self._measured[side.name] = nbytes if rows <= key_filter.MOST_ROWS else math.inf
        sources = [source for source in side.sources if source.name in self._names]
        chosen = None
        if nbytes > SMALL and sources:
            yield Until(met=lambda: not any(self._is_awaited(s.name, nbytes) for s in sources))
            chosen = self._smallest(sources, nbytes)
        built = None if chosen is None else (self._submit(*chosen), chosen[1])
        for source in sources:  # their blocks are held no longer than needed
            self._readers[source.name] -= 1
            if not self._readers[source.name] and source.name in self._finished:
                self._finished[source.name] = None
        if built is not None:
            yield [built[0]]
        return built

    def _smallest(
        self, sources: Sequence[FilterSource], nbytes: int
    ) -> tuple[Shuffled, FilterSource] | None:
        """Return the finished shuffle of fewest rows, if it should filter so many bytes."""
        finished = [(self._finished.get(source.name), source) for source in sources]
        fitting = [
            (shuffled, source)
            for shuffled, source in finished
            if shuffled is not None
            and shuffled.nbytes * SMALLER <= nbytes
            and shuffled.tally.rows <= key_filter.MOST_ROWS
        ]
        return min(fitting, key=lambda pair: pair[0].tally.rows, default=None)

    def _is_awaited(self, name: str, nbytes: int) -> bool:
        """Return whether a shuffle of so many bytes should wait for another one."""
        if name in self._finished or self._lost(name):
            return False
        measured = self._measured.get(name)
        return measured is None or measured * SMALLER <= nbytes

    def _submit(self, shuffled: Shuffled, source: FilterSource) -> Ref:
        """Build a filter, on each node of the blocks that are there."""
        rows = shuffled.tally.rows
        filters = [
            self._futures.submit(_filter_of, source.keys, rows, *refs, node=node)
            for node, refs in _blocks(shuffled)
        ]
        if len(filters) == 1:
            return filters[0]
        return self._futures.submit(key_filter.union, *filters)


def _blocks(shuffled: Shuffled) -> Iterator[tuple[str | None, tuple[Ref, ...]]]:
    """Yield refs of blocks that one task reads, and their node."""
    nodes: dict[Ref, str | None] = {}
    seen = set()
    for column in shuffled.inputs:
        if id(column.refs) not in seen:  # neighbouring reducers share them
            seen.add(id(column.refs))
            nodes.update(dict.fromkeys(column.refs, column.node))
    tasks = -(-shuffled.nbytes // LARGEST_BATCH)
    size = -(-len(nodes) // max(tasks, 1)) or 1
    ordered = sorted(nodes, key=lambda ref: nodes[ref] or "")
    for node, refs in groupby(ordered, key=nodes.__getitem__):
        for batch in partition_all(size, refs):
            yield node, batch


def _filter_of(keys: tuple[Any, ...], rows: int, *packed: Any) -> KeyFilter:
    """Return a filter of the keys in packed blocks."""
    frames = (rows.to_frame() for blocks in packed for rows in blocks.tables())
    return KeyFilter.of(frames, keys, rows)
