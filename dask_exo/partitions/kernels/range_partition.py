"""Divide rows by ranges of their keys: bounds of ``ddf.exo``'s sort, and substitutes for Dask's.

Bounds cut sorted runs into even outputs, however often a key repeats. A bound is a row of one of
the runs: its keys, its run and its row number. Run and row number order equal keys, so that one
value may span many outputs, and the sort is stable. The substitutes give results equal to those of
Dask and pandas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.dask_adapter import percentiles_summary, set_partitions_pre
from dask_exo.partitions.kernels import argsort, sort_keys
from dask_exo.partitions.kernels.argsort import count_below
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import to_wire


def partition_numbers(
    s: pd.Series,
    divisions: pd.Series,
    ascending: bool = True,  # noqa: FBT001, FBT002  as Dask calls it
    na_position: str = "last",
) -> Any:
    """Compute the partition of each value, exactly as Dask's ``set_partitions_pre``.

    Divisions are the smallest value of each of R partitions, and the largest of the last.
    """
    counts = _up_to(s, divisions) if isinstance(s, pd.Series) else None
    if counts is None:
        return set_partitions_pre(s, divisions, ascending, na_position)
    count = len(divisions)
    numbers = counts - 1 if ascending else count - counts - 1
    numbers[(numbers < 0) | (numbers >= count - 1)] = count - 2 if ascending else 0
    numbers[s.isna().to_numpy()] = count - 2 if na_position == "last" else 0
    return numbers


def _up_to(s: pd.Series[Any], divisions: pd.Series[Any]) -> np.ndarray | None:
    """Count the divisions that are not greater than each value; None for other dtypes."""
    if argsort.is_arrow_string(s.dtype):
        bounds = list(divisions)
        texts = all(type(bound) is str for bound in bounds)
        return argsort.count_up_to(pa.array(s.array), bounds) if texts else None
    kind = s.dtype.kind if isinstance(s.dtype, np.dtype) else ""
    if kind not in ("i", "u", "f", "M") or s.dtype != divisions.dtype:
        return None
    values, bounds = s.to_numpy(), divisions.to_numpy()
    if kind == "M":
        values, bounds = values.view(np.int64), bounds.view(np.int64)
    return count_below(values, bounds, "right")


def sort_index(frame: Any) -> Any:
    """Sort rows by the index, as ``frame.sort_index()`` does, but always stable."""
    if isinstance(frame.index, pd.MultiIndex) or not argsort.is_arrow_string(frame.index.dtype):
        return frame.sort_index()
    labels = argsort.to_large_string(pa.array(frame.index.array))
    order = argsort.argsort_strings(labels)
    if not isinstance(frame, pd.DataFrame):
        return frame.take(order)
    rows = to_wire(frame.reset_index(drop=True), order, ignore_index=True).to_frame()
    return rows.set_axis(frame.index.take(order))


def summary(values: Any, *how: Any) -> Any:
    """Compute percentiles of a partition and their weights, as Dask's ``percentiles_summary``."""
    if not (
        isinstance(values, pd.Series) and argsort.is_arrow_string(values.dtype) and len(values)
    ):
        return percentiles_summary(values, *how)
    places, weights = percentiles_summary(pd.Series(np.arange(len(values))), *how)
    return values.array.take(
        argsort.argsort_strings(pa.array(values.array))[places]
    ).tolist(), weights


_GOLDEN = (math.sqrt(5) - 1) / 2


class RunSample(NamedTuple):
    """Evenly spaced rows of one sorted run."""

    keys: pd.DataFrame  # (s,) rows, a column for each key
    rows: np.ndarray  # (s,) their row numbers in the run
    total: int  # rows of the run


class RangeBounds(NamedTuple):
    """First rows of all outputs but the first, in order; none if all runs are empty."""

    keys: pd.DataFrame  # (k,) rows, a column for each key
    runs: np.ndarray  # (k,) number of the run of each
    rows: np.ndarray  # (k,) row number in that run


def sample_size(runs: int, pieces: int) -> int:
    """Compute the number of rows to sample from each run.

    Eight rows for each output bound the error of a bound by an eighth of an output. If all samples
    would not fit one task, their number keeps the standard deviation of the error near 2.5 %: runs
    are sampled at different offsets, so that their errors average out. The maximum is four million
    rows in all.
    """
    even = math.ceil(12 * pieces / math.sqrt(runs))
    count = min(8 * pieces, max(2**17 // runs, even))
    return max(1, min(count, 2**22 // runs))


def sample_run(run: Any, keys: Sequence[SortKey], number: int, size: int) -> RunSample:
    """Sample at most ``size`` rows of a run, at an offset that differs between runs."""
    total = len(run)
    count = min(size, total)
    offset = number * _GOLDEN % 1
    rows = ((np.arange(count) + offset) * (total / max(count, 1))).astype(np.int64)
    rows = np.minimum(rows, total - 1)  # where the product was rounded up
    columns = [sort_keys.rows_of(column, rows) for column in sort_keys.columns(run, keys)]
    return RunSample(pd.concat(columns, axis=1, ignore_index=True), rows, total)


def choose_bounds(keys: Sequence[SortKey], pieces: int, *samples: RunSample) -> RangeBounds:
    """Choose bounds, from a sample of each run, so that outputs have about equally many rows."""
    nonempty = [(number, sample) for number, sample in enumerate(samples) if sample.total]
    if not nonempty or pieces == 1:
        empty = np.zeros(0, np.int64)
        return RangeBounds(samples[0].keys.iloc[:0], empty, empty)
    frame = pd.concat([sample.keys for _, sample in nonempty], ignore_index=True)
    runs = np.repeat([i for i, _ in nonempty], [len(sample.rows) for _, sample in nonempty])
    rows = np.concatenate([sample.rows for _, sample in nonempty])
    weights = np.concatenate([_weights(sample) for _, sample in nonempty])
    # equal keys stay in the order of runs and rows
    order = sort_keys.order(_series(frame), keys)
    weights = weights[order]
    before = np.cumsum(weights) - weights
    targets = np.arange(1, pieces) * (weights.sum() / pieces)
    at = np.searchsorted(before, targets).clip(1, len(before) - 1) if len(before) > 1 else 0
    is_nearer = targets - before[np.maximum(at - 1, 0)] < np.abs(before[at] - targets)
    chosen = order[np.maximum(at - is_nearer, 0)]
    return RangeBounds(frame.iloc[chosen].reset_index(drop=True), runs[chosen], rows[chosen])


def _weights(sample: RunSample) -> np.ndarray:
    """Return the rows that each sampled row represents: up to halfway to the next."""
    edges = (sample.rows[1:] + sample.rows[:-1] + 1) / 2
    return np.diff(np.concatenate([[0], edges, [sample.total]]))


def cut_run(
    run: Any, keys: Sequence[SortKey], number: int, bounds: RangeBounds, pieces: int
) -> np.ndarray:
    """Return the (pieces + 1,) rows at which the outputs of a sorted run start and end."""
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
