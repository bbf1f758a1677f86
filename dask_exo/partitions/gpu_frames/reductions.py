"""Reductions of a column: to one value on the host, or to one value per group.

Groups are reduced with scatters and cumulative sums.

References: pandas, ``pandas/_libs/groupby.pyx``, for what nulls do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import CATEGORY, TEXT, TIMES, Column, as_nullable, only
from dask_exo.partitions.gpu_frames.interop import to_array
from dask_exo.partitions.gpu_frames.sort_keys import Groups, group_rows
from dask_exo.partitions.kernels.sort_keys import TOP


def scalar(column: Column, row: int = 0) -> Any:
    """Convert a value to the scalar type of pandas."""
    row = int(row)
    return pd.Series(to_array(column.take(slice(row, row + 1))), dtype=column.dtype).iloc[0]


def null_of(column: Column) -> Any:
    """Return the null of a dtype."""
    if column.nullable or (column.kind == TEXT and column.dtype.na_value is pd.NA):
        return pd.NA
    return pd.NaT if column.kind in TIMES else np.nan


def _defined(column: Column, skipna: bool, at_least: int = 1) -> Column | None:  # noqa: FBT001
    """Return the values that are not null; None if the result is null."""
    nulls = column.nulls()
    if bool(nulls.any()):
        if not skipna:
            return None
        column = column.take(~nulls)
    return column if len(column) >= at_least else None


def _wide(column: Column) -> Any:
    if column.kind in "biu":
        return column.values.astype(np.uint64 if column.kind == "u" else np.int64)
    return column.values


def total(column: Column, *, skipna: bool = True, min_count: int = 0) -> Any:
    """Sum the values."""
    only(column, "biufm", "sum")
    defined = _defined(column, skipna, min_count)
    if defined is None:
        return null_of(column)
    value = _wide(defined).sum()
    return _time(int(value), column) if column.kind == "m" else value.item()


def product(column: Column, *, skipna: bool = True, min_count: int = 0) -> Any:
    """Multiply the values."""
    only(column, "biuf", "prod")
    defined = _defined(column, skipna, min_count)
    return null_of(column) if defined is None else _wide(defined).prod().item()


def count(column: Column) -> int:
    """Count the values that are not null."""
    return len(column) - int(column.nulls().sum())


def mean(column: Column, *, skipna: bool = True) -> Any:
    """Compute the mean."""
    only(column, "biufmM", "mean")
    defined = _defined(column, skipna)
    if defined is None:
        return null_of(column)
    if column.kind in TIMES:
        least = defined.values.min()  # differences from it do not overflow
        return _time(int(least) + int((defined.values - least).astype(np.float64).mean()), column)
    return _single(defined.values.astype(np.float64).mean(), column)


def variance(column: Column, *, skipna: bool = True, ddof: int = 1) -> Any:
    """Compute the variance."""
    only(column, "biuf", "var")
    defined = _defined(column, skipna, ddof + 1)
    if defined is None:
        return null_of(column)
    values = defined.values.astype(np.float64)
    return _single(((values - values.mean()) ** 2).sum() / (len(values) - ddof), column)


def deviation(column: Column, *, skipna: bool = True, ddof: int = 1) -> Any:
    """Compute the standard deviation."""
    square = variance(column, skipna=skipna, ddof=ddof)
    return square if square is pd.NA else _single(np.float64(square) ** 0.5, column)


def extreme(column: Column, *, largest: bool = False, skipna: bool = True) -> Any:
    """Find the smallest value, or the largest."""
    if column.kind == CATEGORY and not column.dtype.ordered:
        raise TypeError(f"Categorical is not ordered for operation {'max' if largest else 'min'}")
    defined = _defined(column, skipna)
    if defined is None:
        return null_of(column)
    keys = sort_keys.ascending(defined)
    return scalar(defined, keys.argmax() if largest else keys.argmin())


def any_true(column: Column, *, skipna: bool = True) -> bool:
    """Return whether a value is not 0; nulls count only if ``skipna`` is false."""
    nulls = column.nulls()
    true = (column.values >= 0) if column.kind == TEXT else (column.values != 0)
    return bool((true & ~nulls).any()) or (not skipna and bool(nulls.any()))


def all_true(column: Column, *, skipna: bool = True) -> bool:  # noqa: ARG001
    """Return whether no value is 0; nulls are not 0."""
    return bool(((column.values != 0) | column.nulls()).all())


def distinct(column: Column, *, dropna: bool = True) -> int:
    """Count distinct values."""
    nulls = column.nulls()
    count = len(column.xp.unique(sort_keys.ascending(column)[~nulls]))
    return count + int(not dropna and bool(nulls.any()))


def quantile(column: Column, qs: Any, interpolation: str = "linear") -> Column:
    """Compute the (q,) quantiles at shares from 0 to 1, interpolated as pandas does."""
    xp = column.xp
    if column.kind == CATEGORY or (column.kind == TEXT and interpolation == "linear"):
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
    share = (at - low) if interpolation == "linear" else xp.where(low == high, 0.0, 0.5)
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


def _single(value: Any, column: Column) -> Any:
    """Round a float to the precision of the column."""
    return (np.float32 if column.values.dtype == np.float32 else np.float64)(value.item())


def _time(value: int, column: Column) -> Any:
    return scalar(Column(np.array([value], np.int64), column.dtype))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "all": all_true,
    "any": any_true,
    "count": count,
    "max": partial(extreme, largest=True),
    "mean": mean,
    "min": extreme,
    "nunique": distinct,
    "prod": product,
    "std": deviation,
    "sum": total,
    "var": variance,
}
"""Functions of a column and keywords, by the names of pandas."""


def _sums(values: Any, by: Groups) -> Any:
    """Compute (g,) sums: of integers modulo 2**64, of floats in double precision."""
    xp = by.xp
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        return xp.bincount(by.ids, weights=wide, minlength=by.count + 1)[: by.count]
    cumulative = xp.concatenate([xp.zeros(1, values.dtype), xp.cumsum(values[by.order])])
    ends = by.ends()
    return cumulative[ends] - cumulative[ends - by.tally()]


def _zero_filled(column: Column) -> tuple[Any, Any]:
    """Return values with zeros in place of nulls, and the mask of valid ones, or None for all."""
    nulls = column.nulls()
    if (column.kind in "biu" and column.valid is None) or not bool(nulls.any()):
        return column.values, None
    zero = column.values.dtype.type(0)
    return column.xp.where(nulls, zero, column.values), ~nulls


def _floats(values: Any, like: Column, missing: Any) -> Column:
    """Make a column of the precision of another; ``missing`` values are NaN already, or null."""
    plain = np.float32 if like.values.dtype == np.float32 else np.float64
    column = Column(values.astype(plain), as_nullable(plain, like.dtype))
    return column.with_nulls(missing) if like.nullable and bool(missing.any()) else column


def group_sum(column: Column, by: Groups, *, min_count: int = 0) -> Column:
    """Sum values; nulls count as 0, groups of fewer than ``min_count`` values are null."""
    only(column, "biufm", "sum")
    values, defined = _zero_filled(column)
    dtype = column.dtype
    if column.kind in "biu":
        wide = np.uint64 if column.kind == "u" else np.int64
        values = values.astype(wide)
        dtype = as_nullable(wide, column.dtype)
    sums = Column(_sums(values, by).astype(values.dtype), dtype)
    few = by.tally(defined) < min_count
    return sums.take_or_null(by.xp.where(few, -1, by.xp.arange(by.count)))


def group_count(column: Column, by: Groups) -> Column:
    """Count the values that are not null."""
    return Column(by.tally(~column.nulls()), as_nullable(np.int64, column.dtype))


def group_mean(column: Column, by: Groups) -> Column:
    """Compute means of the values that are not null."""
    only(column, "biuf", "mean")
    values, defined = _zero_filled(column)
    with np.errstate(all="ignore"):
        means = _sums(values.astype(np.float64), by) / by.tally(defined)
    return _floats(means, column, by.tally(defined) == 0)


def group_var(column: Column, by: Groups, *, ddof: int = 1) -> Column:
    """Compute variances in two passes."""
    only(column, "biuf", "var")
    xp = by.xp
    values, defined = _zero_filled(column)
    counts = by.tally(defined)
    with np.errstate(all="ignore"):
        means = _sums(values.astype(np.float64), by) / counts
        delta = values - xp.append(means, np.float64(0))[by.ids]
        squares = delta * delta if defined is None else xp.where(defined, delta * delta, 0.0)
        variances = _sums(squares, by) / (counts - ddof)
    few = counts <= ddof
    variances = xp.where(few, np.nan, variances)
    return _floats(variances, column, few)


def group_std(column: Column, by: Groups, *, ddof: int = 1) -> Column:
    """Compute standard deviations."""
    variances = group_var(column, by, ddof=ddof)
    return Column(by.xp.sqrt(variances.values), variances.dtype, variances.valid)


def group_extreme(column: Column, by: Groups, *, largest: bool = False) -> Column:
    """Find the smallest values that are not null, or the largest."""
    if column.kind == CATEGORY and not column.dtype.ordered:
        name = "max" if largest else "min"
        raise TypeError(f"Cannot perform {name} with non-ordered Categorical")
    xp = by.xp
    defined = ~column.nulls()
    keys = sort_keys.ascending(column)
    # cupy's scattered minimum takes uint64, but not int64
    keys = (~keys if largest else keys)[defined].view(np.uint64) ^ TOP
    minima = xp.full(by.count + 1, np.uint64(2**64 - 1))
    xp.minimum.at(minima, by.ids[defined], keys)
    keys = (minima[: by.count] ^ TOP).view(np.int64)
    values = sort_keys.restore(~keys if largest else keys, column)
    extremes = Column(values, column.dtype, None, column.words)
    empty = by.tally(defined) == 0
    return extremes.take_or_null(xp.where(empty, -1, xp.arange(by.count)))


def group_first(column: Column, by: Groups, *, last: bool = False) -> Column:
    """Find the first, or last, values that are not null."""
    xp = by.xp
    rows = by.order[~column.nulls()[by.order]]
    ids = by.ids[rows]
    counts = by.tally(~column.nulls())
    ends = xp.cumsum(counts)
    place = ends - 1 if last else ends - counts
    rows = xp.append(rows[ids < by.count], np.int64(-1))
    return column.take_or_null(xp.where(counts == 0, -1, rows[place]))


def group_nunique(column: Column, by: Groups, *, dropna: bool = True) -> Column:
    """Count distinct values; nulls count as one without ``dropna``."""
    xp = by.xp
    outside = by.ids == by.count
    if dropna:
        outside = outside | column.nulls()
    pairs = group_rows([by.ids, sort_keys.encode(column)], outside)
    counts = xp.bincount(by.ids[pairs.first], minlength=by.count)
    return Column(counts[: by.count].astype(np.int64), np.dtype(np.int64))


def counted_categories(column: Column, *, dropna: bool) -> tuple[Column, Any]:
    """Count the rows of each category, unused ones included.

    Without ``dropna``, nulls follow if there are any.
    """
    xp, size = column.xp, len(column.dictionary)
    places = xp.where(column.nulls(), size, column.values)
    counts = xp.bincount(places.astype(np.int64), minlength=size + 1).astype(np.int64)
    codes = xp.append(xp.arange(size, dtype=np.int32), np.int32(-1))
    length = size + int(not dropna and int(counts[size]) > 0)
    return Column(codes[:length], column.dtype), counts[:length]


def group_median(column: Column, by: Groups) -> Column:
    """Compute medians of the values that are not null."""
    only(column, "biuf", "median")
    xp = by.xp
    defined = ~column.nulls()
    rows = arrays.argsort(sort_keys.encode(column))
    rows = rows[defined[rows]]
    rows = rows[arrays.argsort(by.ids[rows])]
    counts = by.tally(defined)
    starts = xp.cumsum(counts) - counts
    values = xp.append(column.values[rows].astype(np.float64), np.float64(np.nan))
    low = values[xp.minimum(starts + xp.maximum(counts - 1, 0) // 2, len(rows))]
    high = values[xp.minimum(starts + counts // 2, len(rows))]
    empty = counts == 0
    medians = xp.where(empty, np.nan, (low + high) / 2)
    return _floats(medians, column, empty)


AGGREGATIONS: dict[str, Callable[..., Column]] = {
    "count": group_count,
    "first": group_first,
    "last": partial(group_first, last=True),
    "max": partial(group_extreme, largest=True),
    "mean": group_mean,
    "median": group_median,
    "min": group_extreme,
    "nunique": group_nunique,
    "std": group_std,
    "sum": group_sum,
    "var": group_var,
}
"""Functions of a column, groups and keywords, by the names of pandas."""
