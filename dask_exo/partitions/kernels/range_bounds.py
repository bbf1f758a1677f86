"""Choose range bounds that cut sorted runs into even outputs, however often a key repeats.

A bound is a row of one of the runs: its keys, its run and its row number. Run and row number order
equal keys, so that one value may span many outputs, and the sort is stable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from dask_exo.partitions.kernels import sort_keys
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.pandas_partition import Frame

_GOLDEN = (math.sqrt(5) - 1) / 2


class RunSample(NamedTuple):
    """Evenly spaced rows of one sorted run.

    Attributes
    ----------
    keys : DataFrame
        (s,) rows, a column for each key.
    rows : (s,)
        Their row numbers in the run.
    total : int
        Rows of the run.
    """

    keys: pd.DataFrame
    rows: np.ndarray
    total: int


class RangeBounds(NamedTuple):
    """First rows of all outputs but the first, in order.

    Attributes
    ----------
    keys : DataFrame
        (k,) rows, a column for each key; none where the runs are empty.
    runs : (k,)
        Number of the run of each.
    rows : (k,)
        Row number in that run.
    """

    keys: pd.DataFrame
    runs: np.ndarray
    rows: np.ndarray


def sample_size(runs: int, pieces: int) -> int:
    """Compute the number of rows to sample from each run.

    Eight rows for each output bound the error of a bound by an eighth of an output. If all samples
    would not fit one task, their number keeps the standard deviation of the error near 2.5 %: runs
    are sampled at different offsets, so that their errors average out. The maximum is four million
    rows in all.

    Examples
    --------
    >>> sample_size(100, 100), sample_size(1000, 1000)
    (800, 380)
    """
    even = math.ceil(12 * pieces / math.sqrt(runs))
    wanted = min(8 * pieces, max(2**17 // runs, even))
    return max(1, min(wanted, 2**22 // runs))


def sample_run(run: Frame, keys: Sequence[SortKey], number: int, size: int) -> RunSample:
    """Sample at most ``size`` rows of a run, at an offset that differs between runs."""
    total = len(run)
    count = min(size, total)
    offset = number * _GOLDEN % 1
    rows = ((np.arange(count) + offset) * (total / max(count, 1))).astype(np.int64)
    rows = np.minimum(rows, total - 1)  # where the product was rounded up
    taken = [sort_keys.rows_of(column, rows) for column in sort_keys.columns(run, keys)]
    return RunSample(pd.concat(taken, axis=1, ignore_index=True), rows, total)


def choose_bounds(keys: Sequence[SortKey], pieces: int, *samples: RunSample) -> RangeBounds:
    """Choose bounds such that all outputs have about the same number of rows.

    Parameters
    ----------
    keys : sequence of SortKey
    pieces : int
    *samples : RunSample
        (M,) samples, one of each run.
    """
    full = [(number, one) for number, one in enumerate(samples) if one.total]
    if not full or pieces == 1:
        nothing = np.zeros(0, np.int64)
        return RangeBounds(samples[0].keys.iloc[:0], nothing, nothing)
    frame = pd.concat([one.keys for _, one in full], ignore_index=True)
    runs = np.repeat([number for number, _ in full], [len(one.rows) for _, one in full])
    rows = np.concatenate([one.rows for _, one in full])
    weights = np.concatenate([_weights(one) for _, one in full])
    # equal keys stay in the order of runs and rows
    found = sort_keys.order(_series(frame), keys)
    weights = weights[found]
    before = np.cumsum(weights) - weights
    wanted = np.arange(1, pieces) * (weights.sum() / pieces)
    at = np.searchsorted(before, wanted).clip(1, len(before) - 1) if len(before) > 1 else 0
    nearer = wanted - before[np.maximum(at - 1, 0)] < np.abs(before[at] - wanted)
    picked = found[np.maximum(at - nearer, 0)]
    return RangeBounds(frame.iloc[picked].reset_index(drop=True), runs[picked], rows[picked])


def _weights(one: RunSample) -> np.ndarray:
    """Return the rows that each sampled row represents: up to halfway to the next."""
    edges = (one.rows[1:] + one.rows[:-1] + 1) / 2
    return np.diff(np.concatenate([[0], edges, [one.total]]))


def cut_run(
    run: Frame, keys: Sequence[SortKey], number: int, bounds: RangeBounds, pieces: int
) -> np.ndarray:
    """Return the rows at which the outputs of a sorted run start and end.

    Returns
    -------
    ndarray : (pieces + 1,)
        From 0 to the number of rows, ascending.
    """
    edges = np.full(pieces + 1, len(run), np.int64)
    edges[0] = 0
    if not len(bounds.runs):
        return edges
    inner = bounds.rows.copy()
    others = np.flatnonzero(bounds.runs != number)
    if others.size:
        # equal rows of earlier runs come before the bound, those of later ones after it
        inner[others] = sort_keys.locate(
            sort_keys.columns(run, keys),
            _series(bounds.keys.iloc[others]),
            keys,
            bounds.runs[others] > number,
        )
    edges[1:-1] = inner
    return edges


def _series(frame: pd.DataFrame) -> list[pd.Series]:
    return [frame[name] for name in frame.columns]
