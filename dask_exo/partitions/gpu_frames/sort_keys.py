"""Sort keys of columns as integers, and groups of rows with equal keys.

Every key becomes (n,) int64 in the requested order, nulls at one end; several are packed into one.
If the ranges of two do not fit 64 bits together, they are replaced by their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu.segments import Segments
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.kernels.sort_keys import directed, of_numbers, pack


def ascending(column: Column) -> Any:
    """Encode values as (n,) int64 in their order; codes of nulls are undefined."""
    return of_numbers(column.values)


def encode(column: Column, *, descending: bool = False, nulls_first: bool = False) -> Any:
    """Encode one key as (n,) int64 in the requested order; all nulls are equal."""
    codes = ascending(column)
    if column.never_null:
        return ~codes if descending else codes
    return directed(codes, column.nulls(), descending=descending, nulls_first=nulls_first)


@dataclass(frozen=True)
class Groups:
    """Assignment of rows to groups.

    Attributes
    ----------
    segments : Segments
        Rows with equal keys, by ascending key.
    length : int
        Number of all rows, n, also those without a group.
    places : (g,), optional
        Segment of each group; None if groups are in the order of their keys.
    """

    segments: Segments
    length: int
    places: Any = None

    @property
    def count(self) -> int:
        """Number of groups, g."""
        return len(self.segments)

    @property
    def xp(self) -> Any:
        """Array module of the values."""
        return arrays.of(self.segments.rows)

    def _by_group(self, by_segment: Any) -> Any:
        return by_segment if self.places is None else by_segment[self.places]

    @cached_property
    def first(self) -> Any:
        """(g,) first row of each group."""
        return self._by_group(self.segments.rows[self.segments.starts])

    @cached_property
    def last(self) -> Any:
        """(g,) last row of each group."""
        return self._by_group(self.segments.rows[self.segments.ends - 1])

    @cached_property
    def sizes(self) -> Any:
        """(g,) number of rows of each group."""
        return self._by_group(self.segments.sizes)

    @cached_property
    def ids(self) -> Any:
        """(n,) group of each row; `count` for rows without a group."""
        xp, rows = self.xp, self.segments.rows
        starts = xp.zeros(len(rows), np.int8)
        starts[self.segments.starts] = 1
        numbers = xp.cumsum(starts, dtype=np.int64) - 1
        if self.places is not None:
            rank = xp.empty(self.count, np.int64)
            rank[self.places] = xp.arange(self.count)
            numbers = rank[numbers]
        ids = xp.full(self.length, self.count, np.int64)
        ids[rows] = numbers
        return ids

    def reduce(self, values: Any, operation: str) -> Any:
        """Reduce the (n,) values of each group to (g,); see `Segments.reduce`."""
        return self._by_group(self.segments.reduce(values, operation))


def group_rows(keys: Sequence[Any], nulls: Any = None, *, sort: bool = True) -> Groups:
    """Group rows by equal (n,) keys of `encode`; rows marked by (n,) ``nulls`` are in no group.

    Groups are in the order of their keys, or of their first rows without ``sort``.

    Examples
    --------
    >>> grouped = group_rows([np.array([7, 3, 7])])
    >>> grouped.ids.tolist(), grouped.first.tolist()
    ([1, 0, 1], [1, 0])
    """
    packed = arrays.narrow(pack(keys))
    rows = arrays.argsort(packed, is_narrow=True)
    if nulls is not None and bool(nulls.any()):
        rows = rows[~nulls[rows]]
    ordered = packed[rows]
    is_bound = arrays.of(packed).ones(len(rows) + 1, bool)
    is_bound[1:-1] = ordered[1:] != ordered[:-1]
    groups = Groups(Segments(rows, is_bound.nonzero()[0]), len(packed))
    return groups if sort else Groups(groups.segments, len(packed), arrays.argsort(groups.first))
