"""Where many values lie between few bounds.

A binary search of all values at once, a step at a time: no branch for the processor to guess wrong,
which is what most of the time of ``numpy.searchsorted`` is where the values are in no order.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

_BLOCK = 2**15  # values at a time, so that all that is compared stays in the cache


def count_below(
    values: np.ndarray, bounds: np.ndarray, side: Literal["left", "right"] = "left"
) -> np.ndarray:
    """How many bounds lie below each value: ``bounds.searchsorted(values, side)``.

    Parameters
    ----------
    values : ndarray
        (n,) numbers or times. What is found for NaN has no meaning.
    bounds : ndarray
        (k,) ascending, of the same type.
    side : {'left', 'right'}
        ``'right'`` counts bounds that are equal, too.

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
