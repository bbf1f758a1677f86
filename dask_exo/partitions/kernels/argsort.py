"""Sorting integers."""

from __future__ import annotations

import numpy as np
from pandas._libs.algos import groupsort_indexer


def counting(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Argsort small numbers by counting them; equal ones keep their order.

    Parameters
    ----------
    codes : (n,)
        In ``range(count)``.
    count : int

    Returns
    -------
    order : (n,)
    offsets : (count + 1,)
        Where each number starts.

    Examples
    --------
    >>> [found.tolist() for found in counting(np.array([2, 0, 2, 0]), 3)]
    [[1, 3, 0, 2], [0, 2, 2, 4]]
    """
    order, counts = groupsort_indexer(np.asarray(codes, np.intp), count)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(counts[1:], out=offsets[1:])  # the first is that of -1
    return order, offsets


def stable(codes: np.ndarray) -> np.ndarray:
    """Argsort integers; equal ones keep their order.

    numpy's stable sort is a radix sort for 16 bits. Above, its vectorized sort, which is not
    stable, is several times faster than the stable one, even on sorted runs: ties are put
    right afterwards.

    Parameters
    ----------
    codes : (n,) int64 or uint64

    Returns
    -------
    ndarray : (n,)

    Examples
    --------
    >>> stable(np.array([70000, 5, 5, 70000, 1])).tolist()
    [4, 1, 2, 0, 3]
    """
    if len(codes) and int(codes.max()) - int(codes.min()) < 2**16:
        return np.argsort((codes - codes.min()).astype(np.uint16), kind="stable")
    found = np.argsort(codes)
    tied = codes[found[1:]] == codes[found[:-1]]
    if not tied.any():
        return found
    group = np.cumsum(np.concatenate([[False], ~tied]))
    members = np.flatnonzero(np.concatenate([tied, [False]]) | np.concatenate([[False], tied]))
    # group and row fit into one integer, for less than three billion rows
    found[members] = np.sort(group[members] * len(codes) + found[members]) % len(codes)
    return found
