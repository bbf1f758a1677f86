"""Transform columns: convert, concatenate and replace values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import pandas_dtype
from pandas.errors import IntCastingNaNError

from dask_exo.partitions.gpu_frames import interop, sort_keys
from dask_exo.partitions.gpu_frames.column import (
    NUMBERS,
    TEXT,
    TIMES,
    Column,
    as_nullable,
    is_null,
    is_nullable,
    kind_of,
    numpy_of,
    unit_of,
    unsupported,
)
from dask_exo.partitions.gpu_frames.elementwise import in_unit
from dask_exo.partitions.gpu_frames.interop import unify


def cast(column: Column, dtype: Any) -> Column:
    """Convert a column to a dtype, as pandas does.

    Raises
    ------
    IntCastingNaNError
        A null or infinite value would become an integer.
    DeviceOperationError
        Only the host converts between these dtypes.
    DeviceTypeError
        Columns on a GPU cannot have the dtype.
    """
    if dtype is str or (isinstance(dtype, str) and dtype == "str"):
        dtype = pd.StringDtype(na_value=np.nan)
    dtype = pandas_dtype(dtype)
    if dtype == column.dtype:
        return column
    old_kind, new_kind = column.kind, kind_of(dtype)
    if old_kind == TEXT and new_kind == TEXT:
        return replace(column, dtype=dtype, words=column.words.astype(dtype))
    if old_kind in NUMBERS and new_kind in NUMBERS:
        return _to_number(column, dtype)
    same_zone = isinstance(dtype, np.dtype) == isinstance(column.dtype, np.dtype)
    if old_kind in TIMES and new_kind == old_kind and same_zone:
        return Column(in_unit(column, unit_of(dtype)), dtype)
    if old_kind in TIMES and dtype == np.int64:
        return Column(_without_nulls(column, dtype).values, dtype)
    raise unsupported(f"astype({str(dtype)!r}) of a column of {column.dtype}")


def _to_number(column: Column, dtype: Any) -> Column:
    plain = numpy_of(dtype)
    if is_nullable(dtype):
        nulls = column.nulls()
        values = column.xp.where(nulls, column.values.dtype.type(0), column.values)
        if plain.kind in "iu" and values.dtype.kind == "f" and bool((values % 1 != 0).any()):
            raise TypeError(f"cannot safely cast non-equivalent {values.dtype} to {plain}")
        valid = ~nulls if bool(nulls.any()) else None
        return Column(values.astype(plain), dtype, valid)
    if column.nullable and plain.kind == "f":
        values = column.xp.where(column.nulls(), plain.type(np.nan), column.values.astype(plain))
        return Column(values, dtype)
    if plain.kind in "iu" or column.nullable:
        column = _without_nulls(column, dtype)
    return Column(column.values.astype(plain), dtype)


def _without_nulls(column: Column, dtype: Any) -> Column:
    invalid = column.nulls()
    if column.kind == "f":
        invalid = invalid | column.xp.isinf(column.values)
    if bool(invalid.any()):
        raise IntCastingNaNError(
            f"Cannot convert {int(invalid.sum())} null or infinite values of {len(column)} to "
            f"{dtype}: fill them with .fillna(...), or take a nullable dtype such as 'Int64'"
        )
    return column


def stack(columns: Sequence[Column]) -> Column:
    """Concatenate columns, in the dtype that pandas gives the result.

    Raises
    ------
    DeviceTypeError
        Only Python objects could hold the values of all dtypes.
    """
    if len(columns) == 1:
        return columns[0]
    if len({c.dtype for c in columns}) > 1:
        dtype = columns[0].dtype
        for column in columns[1:]:
            dtype = _common_dtype(dtype, column.dtype)
        columns = [cast(column, dtype) for column in columns]
    if columns[0].kind == TEXT:
        columns = unify(columns)
    xp = columns[0].xp
    valid = None
    if any(c.valid is not None for c in columns):
        valid = xp.concatenate([~c.nulls() for c in columns])
    return replace(columns[0], values=xp.concatenate([c.values for c in columns]), valid=valid)


@lru_cache(maxsize=256)
def _common_dtype(a: Any, b: Any) -> Any:
    """Return the dtype that pandas gives rows of both."""
    ones = [
        pd.Series(np.zeros(1, d)) if isinstance(d, np.dtype) else pd.Series([None], dtype=d)
        for d in (a, b)
    ]
    return pd.concat(ones, ignore_index=True).dtype


def ufunc(column: Column, name: str) -> Column:
    """Apply a unary function of numpy, such as ``sqrt``."""
    is_duration = column.kind == "m" and name in ("absolute", "negative")  # which keep nulls
    if column.kind not in NUMBERS and not is_duration:
        raise TypeError(f"{name} does not work for dtype {column.dtype}")
    if not hasattr(column.xp, name):
        raise unsupported(f"the function {name} of numpy")
    with np.errstate(all="ignore"):
        values = getattr(column.xp, name)(column.values)
    dtype = column.dtype if is_duration else as_nullable(values.dtype, column.dtype)
    return Column(values, dtype, column.valid)


def constant(value: Any, length: int, xp: Any) -> Column:
    """Make a column of one repeated value, in the dtype that pandas gives it."""
    series = pd.Series([np.nan if value is None else value])
    return interop.from_pandas(series, xp).take(xp.zeros(length, np.int64))


def _like(value: Any, column: Column) -> Column:
    """Convert a value to a column of length 1, in the dtype of another column if it has room."""
    dtype: Any = column.dtype
    if column.kind in "biu" and not is_nullable(dtype):
        is_fraction = isinstance(value, (float, np.floating)) and value % 1 != 0
        if column.kind != "i" or is_fraction:
            dtype = _common_dtype(dtype, pd.Series([value]).dtype)
    return interop.from_pandas(pd.Series([value], dtype=dtype), column.xp)


def choose(condition: Any, column: Column, other: Any) -> Column:
    """Choose values where an (n,) condition holds, and elsewhere those of a column or a scalar."""
    xp = column.xp
    if is_null(other):
        rows = xp.where(condition, xp.arange(len(column)), -1)
        return column.take_or_null(rows)
    if bool(condition.all()):
        return column
    second = other if isinstance(other, Column) else _like(other, column)
    values = stack([column, second])
    at = xp.arange(len(column)) if len(second) == len(column) > 1 else xp.zeros(len(column), int)
    rows = xp.where(condition, xp.arange(len(column)), at + len(column))
    return values.take(rows)


def fill(column: Column, value: Any) -> Column:
    """Replace nulls by a value."""
    nulls = column.nulls()
    if not bool(nulls.any()):
        return column
    return choose(~nulls, column, value)


def monotonic(column: Column) -> bool:
    """Return whether values ascend and none is null."""
    if bool(column.nulls().any()):
        return False
    keys = sort_keys.ascending(column)
    return bool((keys[1:] >= keys[:-1]).all())
