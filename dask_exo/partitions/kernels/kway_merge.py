"""K-way merge of sorted runs that holds one chunk of each run.

A sort of k concatenated runs needs two copies of all rows. The merge needs one chunk of each run:
rows that come before the first end of a chunk are sorted and returned. Runs that begin later are
not compared, and runs that do not overlap, as those of a heavy hitter, are not sorted at all.

References: the streaming reducers of Exoshuffle-CloudSort, section 4.1.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.partitions.kernels import sort_keys
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import WireColumns, concat_same_schema

T = TypeVar("T")


@dataclass(frozen=True)
class RowOperations(Generic[T]):
    """Functions that a merge needs for rows of one type; ``slice`` does not copy."""

    length: Callable[[T], int]
    nbytes: Callable[[T], int]
    slice: Callable[[T, int, int], T]
    concat: Callable[[Sequence[T]], T]
    take: Callable[[T, np.ndarray], T]


ARRAYS: RowOperations[np.ndarray] = RowOperations(
    len, lambda a: a.nbytes, lambda a, i, j: a[i:j], np.concatenate, lambda a, rows: a[rows]
)
FRAMES: RowOperations[pd.DataFrame] = RowOperations(
    len,
    lambda f: int(f.memory_usage().sum()),
    lambda f, i, j: f.iloc[i:j],
    pd.concat,
    lambda f, rows: f.take(rows),
)
WIRE_COLUMNS: RowOperations[WireColumns] = RowOperations(
    lambda c: c.length, lambda c: c.nbytes, WireColumns.slice, concat_same_schema, WireColumns.take
)


def row_operations(rows: Any) -> RowOperations[Any]:
    """Return the operations of arrays, frames or `WireColumns`; raise TypeError for others."""
    kinds = ((np.ndarray, ARRAYS), (pd.DataFrame, FRAMES), (WireColumns, WIRE_COLUMNS))
    for kind, operations in kinds:
        if isinstance(rows, kind):
            return operations
    raise TypeError(f"rows are an array or a DataFrame, not {type(rows).__name__}")


def merge_runs(runs: Sequence[T], order: Callable[[T], np.ndarray], limit: int) -> Iterator[T]:
    """Merge sorted runs, arrays or frames, some bytes at a time.

    ``order`` is a stable argsort of rows. ``limit`` is the number of bytes of all chunks together,
    but at least one row of each run; the sorted chunk that is yielded takes as much again. Equal
    rows are in the order of the runs.

    Examples
    --------
    >>> runs = [np.array([1, 4, 9]), np.array([2, 3, 3, 8])]
    >>> [chunk.tolist() for chunk in merge_runs(runs, np.argsort, limit=32)]
    [[1, 2, 3], [3, 4, 8, 9]]
    """
    return iter(KWayMerge(runs, order, limit))


class KWayMerge(Generic[T]):
    """Iterator of `merge_runs`; ``peak`` is the largest number of bytes of chunks at a time."""

    def __init__(self, runs: Sequence[T], order: Callable[[T], np.ndarray], limit: int) -> None:
        self._operations: RowOperations[T] = row_operations(runs[0]) if runs else ARRAYS  # type: ignore[assignment]
        self._runs = [run for run in runs if self._operations.length(run)]
        self._order = order
        self._next = [0] * len(self._runs)  # row of each run
        nbytes = sum(map(self._operations.nbytes, runs))
        rows = sum(map(self._operations.length, runs))
        self._rows = max(1, limit * rows // max(nbytes, 1))  # of all chunks
        self.step: int = max(1, self._rows // max(len(self._runs), 1))
        self.peak: int = 0

    def __iter__(self) -> Iterator[T]:
        """Chunks, in order."""
        while self._runs:
            stops = self._stops()
            chosen, rival = self._overlapping(stops)
            if len(chosen) == 1:
                yield from self._rows_of_one_run(chosen[0], self._reach(chosen[0], stops, rival))
            else:
                yield self._merge_chunks(chosen, stops)
            self._drop_ended()

    def _rows_of_one_run(self, i: int, stop: int) -> Iterator[T]:
        """Yield rows of run ``i`` that come before those of all others."""
        while self._next[i] < stop:
            start, self._next[i] = self._next[i], min(self._next[i] + self._rows, stop)
            rows = self._operations.slice(self._runs[i], start, self._next[i])
            self.peak = max(self.peak, self._operations.nbytes(rows))
            yield rows

    def _reach(self, i: int, stops: Sequence[int], rival: int | None) -> int:
        """Count the rows of run ``i`` before the first one of ``rival``, by galloping search."""
        length, stop, stride = self._operations.length(self._runs[i]), stops[i], self.step
        if rival is None:
            return length
        while stop < length and self._before(i, min(stop + stride, length) - 1, rival):
            stop, stride = min(stop + stride, length), 2 * stride
        return stop

    def _before(self, i: int, row: int, rival: int) -> bool:
        """Return whether a row of run ``i`` comes before the next row of another run."""
        pair = sorted([(i, row), (rival, self._next[rival])])
        return bool(pair[self._ordered(pair)[0]][0] == i)

    def _ordered(self, rows: Sequence[tuple[int, int]]) -> np.ndarray:
        """Sort rows, each given by its run and its position there."""
        parts = [self._operations.slice(self._runs[i], at, at + 1) for i, at in rows]
        return self._order(self._operations.concat(parts))

    def _merge_chunks(self, chosen: Sequence[int], stops: Sequence[int]) -> T:
        """Merge the chunks of some runs, up to the first end of a chunk."""
        operations = self._operations
        parts = [operations.slice(self._runs[i], self._next[i], stops[i]) for i in chosen]
        self.peak = max(self.peak, sum(map(operations.nbytes, parts)))
        rows = operations.concat(parts)
        order = self._order(rows)
        edges = np.cumsum([operations.length(part) for part in parts])
        ends = [edges[place] - 1 for place, i in enumerate(chosen) if self._continues(i, stops)]
        # rows after the end of a chunk may come after later rows of its run
        order = order[: np.flatnonzero(np.isin(order, ends))[0] + 1] if ends else order
        counts = np.bincount(np.searchsorted(edges, order, side="right"), minlength=len(chosen))
        for i, count in zip(chosen, counts, strict=True):
            self._next[i] += int(count)
        return operations.take(rows, order)

    def _stops(self) -> list[int]:
        """Return the end of the chunk of each run."""
        lengths = map(self._operations.length, self._runs)
        return [min(at + self.step, n) for at, n in zip(self._next, lengths, strict=True)]

    def _continues(self, i: int, stops: Sequence[int]) -> bool:
        return stops[i] < self._operations.length(self._runs[i])

    def _overlapping(self, stops: Sequence[int]) -> tuple[list[int], int | None]:
        """Return the runs that begin before the first end of a chunk, and the next run after them.

        The last chunk of a run does not count as an end. The next run is None if there is none.
        """
        runs = range(len(self._runs))
        unfinished = [i for i in runs if self._continues(i, stops)]
        if not unfinished or len(runs) == 1:
            return list(runs), None
        edges = [(i, row) for i in runs for row in (self._next[i], stops[i] - 1)]
        first, last = sort_keys.inverse(self._ordered(edges)).reshape(-1, 2).T  # their ranks
        chosen = first <= last[unfinished].min()
        later = np.flatnonzero(~chosen)
        rival = int(later[first[later].argmin()]) if len(later) else None
        return np.flatnonzero(chosen).tolist(), rival

    def _drop_ended(self) -> None:
        lengths = map(self._operations.length, self._runs)
        rest = [i for i, length in enumerate(lengths) if self._next[i] < length]
        self._runs, self._next = [self._runs[i] for i in rest], [self._next[i] for i in rest]


_ROWS = 2**16  # rows whose keys are encoded at a time, to find the ends of runs


def merge_sorted_tables(
    tables: Sequence[WireColumns], keys: Sequence[SortKey], limit: int
) -> WireColumns:
    """Merge tables of one schema that each consist of sorted runs; strings become chunked.

    Besides the result it holds chunks of ``limit`` bytes, and twice as much for a moment. Equal
    rows are in the order of the tables.
    """
    runs = [run for table in tables for run in sorted_runs(table, keys)]

    def positions(rows: WireColumns) -> np.ndarray:
        return sort_keys.order(sort_keys.columns(rows.to_frame(), keys), keys)

    return _concat_chunks(tables, merge_runs(runs, positions, limit))


def sorted_runs(table: WireColumns, keys: Sequence[SortKey]) -> list[WireColumns]:
    """Cut rows into as few sorted runs as possible."""
    cuts = [0]
    for start in range(0, table.length, _ROWS):
        first = max(start - 1, 0)
        part = table.slice(first, min(start + _ROWS, table.length)).to_frame()
        codes = sort_keys.encode(sort_keys.columns(part, keys), keys)
        cuts += (np.flatnonzero(codes[1:] < codes[:-1]) + first + 1).tolist()
    return [table.slice(a, b) for a, b in pairwise([*cuts, table.length]) if a < b]


def _concat_chunks(tables: Sequence[WireColumns], chunks: Iterable[WireColumns]) -> WireColumns:
    """Copy chunks to the result, one after the other."""
    length = sum(table.length for table in tables)
    arrays: list[Any] = [
        np.empty((len(array), length), array.dtype) if isinstance(array, np.ndarray) else []
        for array in tables[0].arrays
    ]
    at = 0
    for chunk in chunks:
        for array, part in zip(arrays, chunk.arrays, strict=True):
            if isinstance(array, np.ndarray):
                array[:, at : at + chunk.length] = part
            else:
                array.append(part)
        at += chunk.length
    columns = [
        array if isinstance(array, np.ndarray) else pa.chunked_array(array, like.type)
        for array, like in zip(arrays, tables[0].arrays, strict=True)
    ]
    return WireColumns(length, columns, tables[0].schema)
