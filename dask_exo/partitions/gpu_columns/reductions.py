"""Reductions of a column to one value on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu import arrays, sort_keys
from dask_exo.partitions.gpu.interop import to_array
from dask_exo.partitions.gpu_columns.column import CATEGORY, TEXT, TIMES, Column, as_nullable, only


def scalar(column: Column, row: int = 0) -> Any:
    """Convert a value to the scalar type of pandas."""
    row = int(row)
    return pd.Series(to_array(column.take(slice(row, row + 1))), dtype=column.dtype).iloc[0]


def null_of(column: Column) -> Any:
    """Return the null of a dtype."""
    if column.nullable or (column.kind == TEXT and column.dtype.na_value is pd.NA):
        return pd.NA
    return pd.NaT if column.kind in TIMES else np.nan


def _chosen(column: Column, skipna: bool) -> Column | None:  # noqa: FBT001
    """Return the values that are not null; None if a null decides the result."""
    nulls = column.nulls()
    if not bool(nulls.any()):
        return column
    return column.take(~nulls) if skipna else None


def _wide(column: Column) -> Any:
    kind = column.kind
    if kind == "f" or kind in TIMES:
        return column.values
    return column.values.astype(np.uint64 if kind == "u" else np.int64)


def total(column: Column, *, skipna: bool = True, min_count: int = 0) -> Any:
    """Sum the values."""
    only(column, "biufm", "sum")
    chosen = _chosen(column, skipna)
    if chosen is None or len(chosen) < min_count:
        return null_of(column)
    made = _wide(chosen).sum()
    return _time(int(made), column) if column.kind == "m" else made.item()


def product(column: Column, *, skipna: bool = True, min_count: int = 0) -> Any:
    """Multiply the values."""
    only(column, "biuf", "prod")
    chosen = _chosen(column, skipna)
    if chosen is None or len(chosen) < min_count:
        return null_of(column)
    return _wide(chosen).prod().item()


def count(column: Column) -> int:
    """Count the values that are not null."""
    return len(column) - int(column.nulls().sum())


def mean(column: Column, *, skipna: bool = True) -> Any:
    """Compute the mean."""
    only(column, "biufmM", "mean")
    chosen = _chosen(column, skipna)
    if chosen is None or not len(chosen):
        return null_of(column)
    if column.kind in TIMES:
        least = chosen.values.min()  # differences from it do not overflow
        return _time(int(least) + int((chosen.values - least).astype(np.float64).mean()), column)
    return _single(chosen.values.astype(np.float64).mean(), column)


def variance(column: Column, *, skipna: bool = True, ddof: int = 1) -> Any:
    """Compute the variance."""
    only(column, "biuf", "var")
    chosen = _chosen(column, skipna)
    if chosen is None or len(chosen) <= ddof:
        return null_of(column)
    values = chosen.values.astype(np.float64)
    return _single(((values - values.mean()) ** 2).sum() / (len(values) - ddof), column)


def deviation(column: Column, *, skipna: bool = True, ddof: int = 1) -> Any:
    """Compute the standard deviation."""
    found = variance(column, skipna=skipna, ddof=ddof)
    return found if found is pd.NA else _single(np.float64(found) ** 0.5, column)


def least(column: Column, *, skipna: bool = True) -> Any:
    """Find the smallest value."""
    return _extreme(column, "argmin", skipna=skipna)


def largest(column: Column, *, skipna: bool = True) -> Any:
    """Find the largest value."""
    return _extreme(column, "argmax", skipna=skipna)


def _extreme(column: Column, name: str, *, skipna: bool) -> Any:
    if column.kind == CATEGORY and not column.dtype.ordered:
        raise TypeError(f"Categorical is not ordered for operation {name[3:]}")
    chosen = _chosen(column, skipna)
    if chosen is None or not len(chosen):
        return null_of(column)
    return scalar(chosen, getattr(sort_keys.ascending(chosen), name)())


def place(column: Column, *, most: bool = False) -> int:
    """Find the first row of the smallest or largest value.

    Raises
    ------
    ValueError
        There is none.
    """
    nulls = column.nulls()
    keys = sort_keys.ascending(column)
    keys = ~keys if most else keys
    if not len(column) or bool(nulls.all()):
        raise ValueError(f"attempt to get {'argmax' if most else 'argmin'} of an empty sequence")
    return int(column.xp.where(nulls, keys[~nulls].max(), keys).argmin())


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
    found = len(column.xp.unique(sort_keys.ascending(column)[~nulls]))
    return found + int(not dropna and bool(nulls.any()))


def quantile(column: Column, qs: Any, interpolation: str = "linear") -> Column:
    """Compute quantiles.

    Parameters
    ----------
    column : Column
        (n,)
    qs : (q,)
        Shares, from 0 to 1.
    interpolation : {"linear", "nearest", "lower", "higher", "midpoint"}

    Returns
    -------
    Column : (q,)
    """
    xp = column.xp
    if column.kind == CATEGORY or (column.kind == TEXT and interpolation == "linear"):
        raise TypeError(f"quantile does not work for dtype {column.dtype}")
    found = arrays.argsort(sort_keys.ascending(column))
    found = found[~column.nulls()[found]]
    qs = xp.asarray(np.asarray(qs, np.float64))
    if not len(found):
        return column.take_or_null(xp.full(len(qs), -1))
    at = qs * (len(found) - 1)
    low, high = xp.floor(at).astype(np.int64), xp.ceil(at).astype(np.int64)
    places = {"lower": low, "higher": high, "nearest": xp.rint(at).astype(np.int64)}
    if interpolation in places:
        return column.take(found[places[interpolation]])
    share = (at - low) if interpolation == "linear" else xp.where(low == high, 0.0, 0.5)
    a, b = column.values[found[low]], column.values[found[high]]
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
    made = Column(np.array([value], np.int64), column.dtype)
    return scalar(made)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "all": all_true,
    "any": any_true,
    "count": count,
    "max": largest,
    "mean": mean,
    "min": least,
    "nunique": distinct,
    "prod": product,
    "std": deviation,
    "sum": total,
    "var": variance,
}
"""What is one value of a column, by the names that pandas has for it."""
