"""Reductions of a column: to one value on the host, or to one value per group.

Groups are reduced by segments of rows with equal keys; all rows are one group.

References: pandas, ``pandas/_libs/groupby.pyx``, for what nulls do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu.segments import Segments
from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import (
    TEXT,
    TIMES,
    Column,
    as_nullable,
    only,
    unsupported,
)
from dask_exo.partitions.gpu_frames.interop import to_array
from dask_exo.partitions.gpu_frames.sort_keys import Groups


def scalar(column: Column, row: int = 0) -> Any:
    """Convert a value to the scalar type of pandas."""
    row = int(row)
    return pd.Series(to_array(column.take(slice(row, row + 1))), dtype=column.dtype).iloc[0]


def _null_of(column: Column) -> Any:
    if column.nullable or (column.kind == TEXT and column.dtype.na_value is pd.NA):
        return pd.NA
    return pd.NaT if column.kind in TIMES else np.nan


def reduce(name: str, column: Column, *, skipna: bool = True, **options: Any) -> Any:
    """Reduce all values to one, of the scalar types of pandas, by one of `AGGREGATIONS`."""
    if not skipna and bool(column.nulls().any()):
        return _null_of(column)
    xp, length = column.xp, len(column)
    bounds = xp.asarray([0, length] if length else [0])  # of one group, or none
    rows = Segments(xp.arange(length), bounds)
    reduced = AGGREGATIONS[name](column, Groups(rows, length), **options)
    if length:
        return scalar(reduced)
    is_zero = name == "count" or (name == "sum" and options.get("min_count", 0) <= 0)
    zero = Column(np.zeros(1, reduced.values.dtype), reduced.dtype)
    return scalar(zero) if is_zero else _null_of(column)


def quantile(column: Column, qs: Any, interpolation: str = "linear") -> Column:
    """Compute the (q,) quantiles at shares from 0 to 1, interpolated as pandas does."""
    xp = column.xp
    if column.kind == TEXT and interpolation == "linear":
        raise TypeError(f"quantile does not work for dtype {column.dtype}")
    order = arrays.argsort(sort_keys.ascending(column))
    order = order[~column.nulls()[order]]
    qs = xp.asarray(np.asarray(qs, np.float64))
    if not len(order):
        return column.take_or_null(xp.full(len(qs), -1))
    at = qs * (len(order) - 1)
    low, high = xp.floor(at).astype(np.int64), xp.ceil(at).astype(np.int64)
    places = {"lower": low, "higher": high, "nearest": xp.rint(at).astype(np.int64)}
    if interpolation in places:
        return column.take(order[places[interpolation]])
    if interpolation != "linear":
        raise unsupported(f"quantile(interpolation={interpolation!r})")
    share = at - low
    a, b = column.values[order[low]], column.values[order[high]]
    if column.kind in TIMES:
        return Column(a + ((b - a) * share).astype(np.int64), column.dtype)
    a, b = a.astype(np.float64), b.astype(np.float64)
    step = b - a
    # as numpy's linear interpolation rounds
    values = xp.where(share >= 0.5, b - step * (1 - share), a + step * share)
    values = xp.where(a == b, a, values)
    plain = column.values.dtype if column.kind == "f" else np.dtype(np.float64)
    return Column(values.astype(plain), as_nullable(plain, column.dtype))


def _floats(values: Any, like: Column, missing: Any) -> Column:
    """Make a column of the precision of another; ``missing`` values are NaN already, or null."""
    plain = np.float32 if like.values.dtype == np.float32 else np.float64
    column = Column(values.astype(plain), as_nullable(plain, like.dtype))
    return column.with_nulls(missing) if like.nullable and bool(missing.any()) else column


def _defined_counts(column: Column, by: Groups) -> Any:
    """Count the (g,) values that are not null."""
    if column.never_null:
        return by.sizes
    if column.kind == "f" and column.valid is None:
        return by.reduce(column.values, "count")
    return by.reduce(~column.nulls(), "sum")


def _without_nulls(column: Column, neutral: Any) -> Any:
    """Return values with a neutral one in place of nulls; reductions skip NaN themselves."""
    if column.valid is None and column.kind in "biuf":
        return column.values
    return column.xp.where(column.nulls(), column.values.dtype.type(neutral), column.values)


def _null_where(few: Any, column: Column) -> Column:
    if not bool(few.any()):
        return column
    return column.take_or_null(column.xp.where(few, -1, column.xp.arange(len(few))))


def group_sum(column: Column, by: Groups, *, min_count: int = 0) -> Column:
    """Sum values; nulls count as 0, groups of fewer than ``min_count`` values are null."""
    only(column, "biufm", "sum")
    sums, dtype = by.reduce(_without_nulls(column, 0), "sum"), column.dtype
    if column.kind in "biu":
        dtype = as_nullable(sums.dtype, column.dtype)
    elif column.kind == "f":
        sums = sums.astype(column.values.dtype, copy=False)
    summed = Column(sums, dtype)
    if min_count <= 0:
        return summed
    return _null_where(_defined_counts(column, by) < min_count, summed)


def group_count(column: Column, by: Groups) -> Column:
    """Count the values that are not null."""
    return Column(_defined_counts(column, by), as_nullable(np.int64, column.dtype))


def group_mean(column: Column, by: Groups) -> Column:
    """Compute means of the values that are not null."""
    only(column, "biuf", "mean")
    counts = _defined_counts(column, by)
    return _floats(_means(column, by, counts), column, counts == 0)


def _means(column: Column, by: Groups, counts: Any) -> Any:
    values = _without_nulls(column, 0).astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        return by.reduce(values, "sum") / counts


def group_var(column: Column, by: Groups, *, ddof: int = 1) -> Column:
    """Compute variances in two passes."""
    only(column, "biuf", "var")
    xp, counts = by.xp, _defined_counts(column, by)
    means = xp.append(_means(column, by, counts), np.float64(0))
    with np.errstate(all="ignore"):
        delta = column.values - means[by.ids]
        squares = delta * delta
        if column.valid is not None:
            squares = xp.where(column.valid, squares, 0.0)
        variances = by.reduce(squares, "sum") / (counts - ddof)
    few = counts <= ddof
    return _floats(xp.where(few, np.nan, variances), column, few)


def group_std(column: Column, by: Groups, *, ddof: int = 1) -> Column:
    """Compute standard deviations."""
    variances = group_var(column, by, ddof=ddof)
    return Column(by.xp.sqrt(variances.values), variances.dtype, variances.valid)


def group_extreme(column: Column, by: Groups, *, largest: bool = False) -> Column:
    """Find the smallest values that are not null, or the largest."""
    operation = "max" if largest else "min"
    if column.kind == "f" and column.valid is None:
        return Column(by.reduce(column.values, operation), column.dtype)
    neutral: Any = largest
    if column.kind == "f":
        neutral = np.nan
    elif column.kind != "b":
        limits = np.iinfo(column.values.dtype)
        neutral = limits.min if largest else limits.max
    extremes = by.reduce(_without_nulls(column, neutral), operation)
    found = Column(extremes, column.dtype, None, column.words)
    if column.never_null:
        return found
    return _null_where(_defined_counts(column, by) == 0, found)


AGGREGATIONS: dict[str, Callable[..., Column]] = {
    "count": group_count,
    "max": partial(group_extreme, largest=True),
    "mean": group_mean,
    "min": group_extreme,
    "std": group_std,
    "sum": group_sum,
    "var": group_var,
}
"""Functions of a column, groups and keywords, by the names of pandas."""
