"""Groups of rows with equal keys, found by one sort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_exo.partitions.gpu import arrays, sort_keys


@dataclass(frozen=True)
class Groups:
    """Assignment of rows to groups.

    Attributes
    ----------
    ids : (n,)
        Group of each row, ``count`` for rows without a group.
    first : (g,)
        First row of each group.
    by_group : (n,), optional
        Value of `order`, if it is known.
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

    def tally(self, chosen: Any = None) -> Any:
        """Count the (g,) rows of each group, or only those that are ``chosen``."""
        if chosen is None:
            return self.sizes
        return self._count(self.xp.where(chosen, self.ids, self.count))

    def ends(self) -> Any:
        """(g,) end of each group in `order`."""
        return self.xp.cumsum(self.tally())


def groups(keys: Sequence[Any], nulls: Any = None, *, sort: bool = True) -> Groups:
    """Group rows by equal keys.

    Parameters
    ----------
    keys : sequence of (n,)
        Integers, as of `codes.of`; the first is the most significant.
    nulls : (n,) bool, optional
        Rows that are in no group.
    sort : bool
        Whether groups are in the order of their keys; by default, else in that of their first rows.

    Examples
    --------
    >>> found = groups([np.array([7, 3, 7])])
    >>> found.ids.tolist(), found.first.tolist()
    ([1, 0, 1], [1, 0])
    """
    packed = sort_keys.pack(keys)
    xp = arrays.of(packed)
    found = rows = arrays.argsort(packed)
    if nulls is not None and bool(nulls.any()):
        found = found[~nulls[found]]
        rows = xp.concatenate([found, xp.flatnonzero(nulls)])
    starts = sort_keys.steps(packed[found])
    first = found[starts]
    numbers = xp.cumsum(starts, dtype=np.int64) - 1
    by_group = rows if sort else None
    if not sort:
        places = arrays.argsort(first)
        rank = xp.empty(len(first), np.int64)
        rank[places] = xp.arange(len(first))
        first, numbers = first[places], rank[numbers]
    ids = xp.full(len(packed), len(first), np.int64)
    ids[found] = numbers
    return Groups(ids, first, by_group)
