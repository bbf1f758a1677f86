"""Join of two tables, with a table of counts over the numbered keys.

Keys in a narrow range of integers number themselves; others are ranked by a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_exo.partitions.gpu import arrays, sort_keys
from dask_exo.partitions.gpu.stack import stack
from dask_exo.partitions.gpu_columns.column import Column

_SPARSE = 4
HOWS = ("inner", "left", "right", "outer", "leftsemi")


def pairs(left: Sequence[Column], right: Sequence[Column], how: str) -> tuple[Any, Any]:
    """Find the pairs of rows with equal keys.

    Parameters
    ----------
    left, right : sequence of Column
        (n,) and (m,) rows of the keys; nulls equal each other, as in pandas.
    how : {"inner", "left", "right", "outer", "leftsemi"}

    Returns
    -------
    left, right : (p,)
        Rows of each side, -1 where there is none. In the order of the left rows, for "right" of the
        right ones, for "outer" of the keys, nulls last.

    Examples
    --------
    >>> a, b = (Column(np.array(v), np.dtype("i8")) for v in ([1, 2, 2], [2, 3, 2]))
    >>> [rows.tolist() for rows in pairs([a], [b], "left")]
    [[0, 1, 1, 2, 2], [-1, 0, 2, 0, 2]]
    """
    if how == "right":
        other, mine = pairs(right, left, "left")
        return mine, other
    both = [stack([a, b]) for a, b in zip(left, right, strict=True)]
    keys = _numbers(sort_keys.pack([sort_keys.of(column) for column in both]))
    n = len(left[0])
    mine, theirs = keys[:n], keys[n:]
    found = arrays.argsort(theirs)
    xp = arrays.of(keys)
    size = int(keys.max()) + 1 if len(keys) else 0
    each = xp.bincount(theirs, minlength=size)
    counts = each[mine]
    start = (xp.cumsum(each) - each)[mine]
    if how == "leftsemi":
        rows = xp.flatnonzero(counts > 0)
        return rows, rows
    kept = counts if how == "inner" else xp.maximum(counts, 1)
    owner, place = arrays.spread(kept)
    found = xp.append(found, np.int64(-1))  # where nothing matches
    rows = xp.where(counts[owner] > 0, start[owner] + place, len(theirs))
    matched = found[rows]
    if how != "outer":
        return owner, matched
    alone = xp.ones(len(theirs) + 1, bool)
    alone[matched] = False
    alone = xp.flatnonzero(alone[:-1])
    lefts = xp.concatenate([owner, xp.full(len(alone), -1, np.int64)])
    rights = xp.concatenate([matched, alone])
    order = arrays.argsort(xp.concatenate([mine[owner], theirs[alone]]))
    return lefts[order], rights[order]


def _numbers(keys: Any) -> Any:
    """Map keys to integers from 0 in their order, with few gaps."""
    if not len(keys):
        return keys
    low = int(keys.min())
    if int(keys.max()) - low < _SPARSE * len(keys):
        return keys - low
    return sort_keys.ranks(keys)
