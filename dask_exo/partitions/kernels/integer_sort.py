"""Sort integers, and search sorted numbers, faster than numpy."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pandas._libs.algos import groupsort_indexer


def counting_argsort(codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Argsort small integers by counting sort, which is stable.

    Parameters
    ----------
    codes : (n,)
        In ``range(count)``.
    count : int

    Returns
    -------
    order : (n,)
    offsets : (count + 1,)
        Start of each number in ``order``.

    Examples
    --------
    >>> [found.tolist() for found in counting_argsort(np.array([2, 0, 2, 0]), 3)]
    [[1, 3, 0, 2], [0, 2, 2, 4]]
    """
    order, counts = groupsort_indexer(np.asarray(codes, np.intp), count)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(counts[1:], out=offsets[1:])  # the first is that of -1
    return order, offsets


def stable_argsort(codes: np.ndarray) -> np.ndarray:
    """Argsort integers in a stable way.

    numpy's stable sort is a radix sort for 16 bits. Above, its vectorized sort, which is not
    stable, is several times faster than the stable one, even on sorted runs; ties are
    sorted afterwards.

    Parameters
    ----------
    codes : (n,) int64 or uint64

    Returns
    -------
    ndarray : (n,)

    Examples
    --------
    >>> stable_argsort(np.array([70000, 5, 5, 70000, 1])).tolist()
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


_BLOCK = 2**15  # values at a time, so that they stay in the cache


def count_below(
    values: np.ndarray, bounds: np.ndarray, side: Literal["left", "right"] = "left"
) -> np.ndarray:
    """Count the bounds below each value, as ``bounds.searchsorted(values, side)``.

    This is a binary search of all values at once, one step at a time, without branches. In
    `numpy.searchsorted` mispredicted branches take most of the time if values are not sorted.

    Parameters
    ----------
    values : ndarray
        (n,) numbers or times. The result for NaN is undefined.
    bounds : ndarray
        (k,) ascending, of the same type.
    side : {'left', 'right'}
        ``'right'`` also counts bounds that are equal to a value.

    Returns
    -------
    ndarray : (n,) int64

    Examples
    --------
    >>> count_below(np.array([3, 5, 9]), np.array([3, 5, 5])).tolist()
    [0, 1, 3]
    >>> count_below(np.array([3, 5, 9]), np.array([3, 5, 5]), "right").tolist()
    [1, 3, 3]
    """
    found = np.zeros(len(values), np.int64)
    if not len(bounds):
        return found
    first = 1 << (len(bounds).bit_length() - 1)
    padded = np.concatenate([bounds, np.repeat(bounds[-1:], 2 * first - 1 - len(bounds))])
    passes = np.greater if side == "left" else np.greater_equal
    for start in range(0, len(values), _BLOCK):
        block, below = values[start : start + _BLOCK], found[start : start + _BLOCK]
        step = first
        while step:
            below += passes(block, padded[below + (step - 1)]) * np.int64(step)
            step >>= 1
    return np.minimum(found, len(bounds), out=found)
