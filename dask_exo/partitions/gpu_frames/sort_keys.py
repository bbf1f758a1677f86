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
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.kernels.sort_keys import directed, of_numbers, pack, to_numbers


def ascending(column: Column) -> Any:
    """Encode values as (n,) int64 in their order; codes of nulls are undefined."""
    return of_numbers(column.values)


def restore(codes: Any, like: Column) -> Any:
    """Invert `ascending`."""
    return to_numbers(codes, like.values.dtype)


def encode(column: Column, *, descending: bool = False, nulls_first: bool = False) -> Any:
    """Encode one key as (n,) int64 in the requested order; all nulls are equal."""
    codes, nulls = ascending(column), column.nulls()
    return directed(codes, nulls, descending=descending, nulls_first=nulls_first)


def steps(ordered: Any) -> Any:
    """Return (n,) bool of sorted codes that differ from the one before; the first does."""
    xp = arrays.of(ordered)
    return xp.concatenate([xp.ones(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1]])


@dataclass(frozen=True)
class Groups:
    """Assignment of rows to groups.

    Attributes
    ----------
    ids : (n,)
        Group of each row; `count` for rows without a group.
    first : (g,)
        First row of each group.
    by_group : (n,), optional
        `order`, if it is known.
    """

    ids: Any
    first: Any
    by_group: Any = None

    @property
    def count(self) -> int:
        """Number of groups, g."""
        return len(self.first)

    @property
    def xp(self) -> Any:
        """Array module of the values."""
        return arrays.of(self.ids)

    @cached_property
    def order(self) -> Any:
        """(n,) rows by group in a stable order, those without a group last."""
        return arrays.argsort(self.ids) if self.by_group is None else self.by_group

    @cached_property
    def sizes(self) -> Any:
        """(g,) number of rows of each group."""
        return self._count(self.ids)

    def _count(self, ids: Any) -> Any:
        counts = self.xp.bincount(ids, minlength=self.count + 1)
        return counts[: self.count].astype(np.int64)

    def tally(self, mask: Any = None) -> Any:
        """Count the (g,) rows of each group, or those in a mask."""
        if mask is None:
            return self.sizes
        return self._count(self.xp.where(mask, self.ids, self.count))

    def ends(self) -> Any:
        """(g,) end of each group in `order`."""
        return self.xp.cumsum(self.tally())


def group_rows(keys: Sequence[Any], nulls: Any = None, *, sort: bool = True) -> Groups:
    """Group rows by equal (n,) keys of `encode`; rows marked by (n,) ``nulls`` are in no group.

    Groups are in the order of their keys, or of their first rows without ``sort``.

    Examples
    --------
    >>> grouped = group_rows([np.array([7, 3, 7])])
    >>> grouped.ids.tolist(), grouped.first.tolist()
    ([1, 0, 1], [1, 0])
    """
    packed = pack(keys)
    xp = arrays.of(packed)
    order = by_group = arrays.argsort(packed)
    if nulls is not None and bool(nulls.any()):
        order = order[~nulls[order]]
        by_group = xp.concatenate([order, xp.flatnonzero(nulls)])
    starts = steps(packed[order])
    first = order[starts]
    numbers = xp.cumsum(starts, dtype=np.int64) - 1
    if not sort:
        by_group = None
        by_first_row = arrays.argsort(first)
        rank = xp.empty(len(first), np.int64)
        rank[by_first_row] = xp.arange(len(first))
        first, numbers = first[by_first_row], rank[numbers]
    ids = xp.full(len(packed), len(first), np.int64)
    ids[order] = numbers
    return Groups(ids, first, by_group)
