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

_LAST = np.iinfo(np.int64).max
TOP = np.uint64(2**63)  # of the bits of a key
_WIDTH = 2**64


def ascending(column: Column) -> Any:
    """Encode values as (n,) int64 in their order; codes of nulls are undefined."""
    values, kind = column.values, column.kind
    if kind == "u" and values.dtype.itemsize == 8:
        return (values ^ TOP).view(np.int64)
    if kind != "f":
        return values.astype(np.int64)
    # as integers, the bits of negative floats are in reverse; adding 0 makes -0.0 a 0.0
    bits = (values.astype(np.float64) + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _LAST)


def encode(column: Column, *, descending: bool = False, nulls_first: bool = False) -> Any:
    """Encode one key as (n,) int64 in the requested order; all nulls are equal."""
    codes, nulls = ascending(column), column.nulls()
    if descending:
        codes = ~codes
    return _place(codes, nulls, first=nulls_first) if bool(nulls.any()) else codes


def _place(codes: Any, nulls: Any, *, first: bool) -> Any:
    """Give nulls a code before or after all others."""
    xp = arrays.of(codes)
    defined = codes[~nulls]
    if not len(defined):
        return xp.zeros(len(codes), np.int64)
    place = int(defined.min()) - 1 if first else int(defined.max()) + 1
    if not -_LAST <= place <= _LAST:
        codes = codes.copy()
        codes[~nulls] = defined = ranks(defined)
        place = -1 if first else int(defined.max()) + 1
    return xp.where(nulls, np.int64(place), codes)


def pack(keys: Sequence[Any]) -> Any:
    """Combine codes of several keys to one array; the first key is the most significant.

    Examples
    --------
    >>> pack([np.array([1, 0, 1]), np.array([5, 9, 4])]).argsort().tolist()
    [1, 2, 0]
    """
    codes = keys[0]
    for minor in keys[1:]:
        codes = _pack(codes, minor)
    return codes


def _pack(major: Any, minor: Any) -> Any:
    if not len(major):
        return major
    if _range(major) * _range(minor) >= _WIDTH // 2:
        major, minor = ranks(major), ranks(minor)
    return (major - major.min()) * _range(minor) + (minor - minor.min())


def _range(codes: Any) -> int:
    return int(codes.max()) - int(codes.min()) + 1


def ranks(codes: Any) -> Any:
    """Return ranks without gaps, equal for equal codes.

    Examples
    --------
    >>> ranks(np.array([70, -5, 70, 8])).tolist()
    [2, 0, 2, 1]
    """
    xp = arrays.of(codes)
    order = arrays.argsort(codes)
    result = xp.empty(len(codes), np.int64)
    result[order] = xp.cumsum(steps(codes[order]), dtype=np.int64) - 1
    return result


def steps(ordered: Any) -> Any:
    """Return (n,) bool of sorted codes that differ from the one before; the first does."""
    xp = arrays.of(ordered)
    return xp.concatenate([xp.ones(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1]])


def restore(codes: Any, like: Column) -> Any:
    """Invert `ascending`."""
    dtype = like.values.dtype
    if like.kind == "u" and dtype.itemsize == 8:
        return codes.view(np.uint64) ^ TOP
    if like.kind != "f":
        return codes.astype(dtype)
    return (codes ^ ((codes >> 63) & _LAST)).view(np.float64).astype(dtype)


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
