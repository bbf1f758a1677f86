"""Aggregations by group, with scatters and cumulative sums.

References: pandas, ``pandas/_libs/groupby.pyx``, for what nulls do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_exo.partitions.gpu import arrays, sort_keys
from dask_exo.partitions.gpu_columns.column import CATEGORY, Column, as_nullable, numpy_of, only
from dask_exo.partitions.gpu_columns.groups import Groups, groups


def _sums(values: Any, found: Groups) -> Any:
    """Compute (g,) sums: of integers modulo 2**64, of floats in double precision."""
    xp = found.xp
    if values.dtype.kind == "f":
        wide = values.astype(np.float64)
        return xp.bincount(found.ids, weights=wide, minlength=found.count + 1)[: found.count]
    total = xp.concatenate([xp.zeros(1, values.dtype), xp.cumsum(values[found.order])])
    ends = found.ends()
    return total[ends] - total[ends - found.tally()]


def _there(column: Column) -> tuple[Any, Any]:
    """Return values with zeros in place of nulls, and the mask of valid ones, or None for all."""
    nulls = column.nulls()
    if (column.kind in "biu" and column.valid is None) or not bool(nulls.any()):
        return column.values, None
    zero = column.values.dtype.type(0)
    return column.xp.where(nulls, zero, column.values), ~nulls


def _result(values: Any, dtype: Any, missing: Any = None) -> Column:
    plain = numpy_of(dtype) if not isinstance(dtype, np.dtype) or dtype.kind not in "mM" else None
    made = Column(values if plain is None else values.astype(plain), dtype)
    return made if missing is None or not bool(missing.any()) else made.with_nulls(missing)


def group_sum(column: Column, found: Groups, *, min_count: int = 0) -> Column:
    """Sum values; nulls count as 0, groups of fewer than ``min_count`` values are null."""
    only(column, "biufm", "sum")
    values, there = _there(column)
    dtype = column.dtype
    if column.kind in "biu":
        wide = np.uint64 if column.kind == "u" else np.int64
        values = values.astype(wide)
        dtype = as_nullable(wide, column.dtype)
    made = _result(_sums(values, found), dtype)
    few = found.tally(there) < min_count
    return made.take_or_null(found.xp.where(few, -1, found.xp.arange(found.count)))


def group_count(column: Column, found: Groups) -> Column:
    """Count the values that are not null."""
    dtype = as_nullable(np.int64, column.dtype)
    return Column(found.tally(~column.nulls()), dtype)


def group_mean(column: Column, found: Groups) -> Column:
    """Compute means of the values that are not null."""
    only(column, "biuf", "mean")
    values, there = _there(column)
    with np.errstate(all="ignore"):
        made = _sums(values.astype(np.float64), found) / found.tally(there)
    return _result(made, _float(column), _empty(column, found.tally(there) == 0))


def group_var(column: Column, found: Groups, *, ddof: int = 1) -> Column:
    """Compute variances in two passes."""
    only(column, "biuf", "var")
    xp = found.xp
    values, there = _there(column)
    counts = found.tally(there)
    with np.errstate(all="ignore"):
        means = _sums(values.astype(np.float64), found) / counts
        off = values - xp.append(means, np.float64(0))[found.ids]
        squares = off * off if there is None else xp.where(there, off * off, 0.0)
        made = _sums(squares, found) / (counts - ddof)
    few = counts <= ddof
    made = xp.where(few, np.nan, made)
    return _result(made, _float(column), _empty(column, few))


def group_std(column: Column, found: Groups, *, ddof: int = 1) -> Column:
    """Compute standard deviations."""
    made = group_var(column, found, ddof=ddof)
    return Column(found.xp.sqrt(made.values), made.dtype, made.valid)


def group_min(column: Column, found: Groups, *, most: bool = False) -> Column:
    """Find the smallest, or largest, values that are not null."""
    if column.kind == CATEGORY and not column.dtype.ordered:
        raise TypeError(f"Cannot perform {'max' if most else 'min'} with non-ordered Categorical")
    xp = found.xp
    there = ~column.nulls()
    keys = sort_keys.ascending(column)
    keys = sort_keys.unordered(~keys if most else keys)[there]
    out = xp.full(found.count + 1, np.uint64(2**64 - 1))
    arrays.scatter_min(out, found.ids[there], keys)
    back = sort_keys.ordered(out[: found.count])
    made = Column(
        sort_keys.restore(~back if most else back, column), column.dtype, None, column.words
    )
    empty = found.tally(there) == 0
    if not bool(empty.any()):
        return made
    return made.take_or_null(xp.where(empty, -1, xp.arange(found.count)))


def group_max(column: Column, found: Groups) -> Column:
    """Find the largest values that are not null."""
    return group_min(column, found, most=True)


def group_first(column: Column, found: Groups, *, last: bool = False) -> Column:
    """Find the first, or last, values that are not null."""
    xp = found.xp
    rows = found.order[~column.nulls()[found.order]]
    ids = found.ids[rows]
    counts = found.tally(~column.nulls())
    ends = xp.cumsum(counts)
    place = ends - 1 if last else ends - counts
    rows = xp.append(rows[ids < found.count], np.int64(-1))
    return column.take_or_null(xp.where(counts == 0, -1, rows[place]))


def group_last(column: Column, found: Groups) -> Column:
    """Find the last values that are not null."""
    return group_first(column, found, last=True)


def group_nunique(column: Column, found: Groups, *, dropna: bool = True) -> Column:
    """Count distinct values; nulls count as one without ``dropna``."""
    xp = found.xp
    outside = found.ids == found.count
    if dropna:
        outside = outside | column.nulls()
    pairs = groups([found.ids, sort_keys.of(column)], outside)
    counts = xp.bincount(found.ids[pairs.first], minlength=found.count)
    return Column(counts[: found.count].astype(np.int64), np.dtype(np.int64))


def counted_categories(column: Column, *, dropna: bool) -> tuple[Column, Any]:
    """Count the rows of each category, unused ones included.

    Without ``dropna``, nulls follow if there are any.
    """
    xp, size = column.xp, len(column.dictionary)
    places = xp.where(column.nulls(), size, column.values)
    counts = xp.bincount(places.astype(np.int64), minlength=size + 1).astype(np.int64)
    codes_ = xp.append(xp.arange(size, dtype=np.int32), np.int32(-1))
    shown = size + int(not dropna and int(counts[size]) > 0)
    return Column(codes_[:shown], column.dtype), counts[:shown]


def group_median(column: Column, found: Groups) -> Column:
    """Compute medians of the values that are not null."""
    only(column, "biuf", "median")
    xp = found.xp
    there = ~column.nulls()
    rows = arrays.argsort(sort_keys.of(column))
    rows = rows[there[rows]]
    rows = rows[arrays.argsort(found.ids[rows])]
    counts = found.tally(there)
    starts = xp.cumsum(counts) - counts
    values = xp.append(column.values[rows].astype(np.float64), np.float64(np.nan))
    low = values[xp.minimum(starts + xp.maximum(counts - 1, 0) // 2, len(rows))]
    high = values[xp.minimum(starts + counts // 2, len(rows))]
    empty = counts == 0
    made = xp.where(empty, np.nan, (low + high) / 2)
    return _result(made, _float(column), _empty(column, empty))


def group_any(column: Column, found: Groups) -> Column:
    """Return whether any value is not 0."""
    values, there = _there(column)
    true = (values != 0) if there is None else there & (values != 0)
    return Column(found.tally(true) > 0, as_nullable(bool, column.dtype))


def group_all(column: Column, found: Groups) -> Column:
    """Return whether no value is 0."""
    values, there = _there(column)
    false = (values == 0) if there is None else there & (values == 0)
    return Column(found.tally(false) == 0, as_nullable(bool, column.dtype))


def _float(column: Column) -> Any:
    is_single = column.values.dtype == np.float32
    return as_nullable(np.float32 if is_single else np.float64, column.dtype)


def _empty(column: Column, empty: Any) -> Any:
    return empty if column.nullable else None


AGGREGATIONS: dict[str, Callable[..., Column]] = {
    "all": group_all,
    "any": group_any,
    "count": group_count,
    "first": group_first,
    "last": group_last,
    "max": group_max,
    "mean": group_mean,
    "median": group_median,
    "min": group_min,
    "nunique": group_nunique,
    "std": group_std,
    "sum": group_sum,
    "var": group_var,
}
"""What can be computed for each group, by the names that pandas has for it."""
