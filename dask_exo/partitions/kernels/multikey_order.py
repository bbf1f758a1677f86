"""The order of rows by several keys, as pandas sorts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.kernels.argsort import stable
from dask_exo.partitions.kernels.sort_keys import Key, encode


def columns(frame: Any, keys: Sequence[Key]) -> list[Any]:
    """Values of the keys, one series of the frame's kind for each, rows numbered from 0."""
    found = (frame.index.to_series() if k.column is None else frame[k.column] for k in keys)
    return [values.reset_index(drop=True) for values in found]


def rows_of(values: Any, rows: np.ndarray) -> pd.Series:
    """Some rows of a series of any kind, on the host."""
    taken = values.take(rows)
    return taken if isinstance(taken, pd.Series) else taken.to_pandas()


def order(values: Sequence[pd.Series], keys: Sequence[Key]) -> np.ndarray:
    """Row numbers in the order of the keys; equal rows keep theirs.

    Parameters
    ----------
    values : sequence of Series
        (n,) rows each; the first is the most significant.
    keys : sequence of Key
        As many.

    Returns
    -------
    ndarray : (n,)

    Raises
    ------
    SortKeyError
        Values of a key cannot be compared with each other.

    Examples
    --------
    >>> key = Key("a", "a", ascending=False)
    >>> order([pd.Series([1, None, 3, 1])], [key]).tolist()
    [2, 0, 3, 1]
    """
    return stable(encode(values, keys))


def sort(frame: Any, keys: Sequence[Key]) -> Any:
    """Rows in the order of the keys; the frame itself, if they are already."""
    codes = encode(columns(frame, keys), keys)
    if (codes[1:] >= codes[:-1]).all():
        return frame
    return frame.take(stable(codes))


def locate(
    values: Sequence[Any],
    bounds: Sequence[pd.Series],
    keys: Sequence[Key],
    after: np.ndarray,
) -> np.ndarray:
    """Count the rows before each bound, in rows that are sorted.

    Looks at few rows, since comparing can be expensive: a search of several rows at once,
    which encodes those that it looks at together with the bounds.

    Parameters
    ----------
    values : sequence of Series
        (n,) sorted rows; of any kind of frame.
    bounds : sequence of Series
        (k,) bounds, in any order.
    keys : sequence of Key
    after : (k,) bool
        Whether a bound comes after the rows that are equal to it.

    Returns
    -------
    ndarray : (k,)
        Between 0 and n.

    Examples
    --------
    >>> rows, bounds = [pd.Series([1, 2, 2, 3])], [pd.Series([2, 2, 9])]
    >>> locate(rows, bounds, [Key("a", "a")], np.array([False, True, False])).tolist()
    [1, 3, 4]
    """
    low = np.zeros(len(after), np.int64)
    high = np.full(len(after), len(values[0]), np.int64)
    while (open_ := np.flatnonzero(low < high)).size:
        fan = max(1, 2048 // len(open_))
        steps = np.arange(1, fan + 1)
        # (k, fan) rows that cut what is left of each bound's range
        cuts = low[open_, None] + (high - low)[open_, None] * steps // (fan + 1)
        rows, places = np.unique(cuts, return_inverse=True)
        both = [
            pd.concat([rows_of(mine, rows), theirs.iloc[open_]], ignore_index=True)
            for mine, theirs in zip(values, bounds, strict=True)
        ]
        codes = encode(both, keys)
        row, bound = codes[: len(rows)][places.reshape(cuts.shape)], codes[len(rows) :, None]
        before = np.where(after[open_, None], row <= bound, row < bound).sum(axis=1)
        edges = np.column_stack([low[open_] - 1, cuts, high[open_]])
        every = np.arange(len(open_))
        low[open_], high[open_] = edges[every, before] + 1, edges[every, before + 1]
    return low
