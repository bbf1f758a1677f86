"""Conversion of columns to other dtypes, as in pandas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import pandas_dtype
from pandas.errors import IntCastingNaNError

from dask_exo.partitions.gpu.dictionary import recategorize
from dask_exo.partitions.gpu.interop import factorize, map_distinct, to_index
from dask_exo.partitions.gpu_columns.column import (
    CATEGORY,
    NUMBERS,
    TEXT,
    TIMES,
    Column,
    is_nullable,
    kind_of,
    numpy_of,
    unit_of,
)
from dask_exo.partitions.gpu_columns.elementwise import in_unit


def cast(column: Column, dtype: Any) -> Column:  # noqa: PLR0911  a case each
    """Convert a column.

    Parameters
    ----------
    column : Column
        (n,)
    dtype : dtype or str
        Whatever pandas understands.

    Raises
    ------
    IntCastingNaNError
        Whole numbers have no null.
    DeviceTypeError
        Columns on a device cannot have the dtype.

    Examples
    --------
    >>> cast(Column(np.array([1.5, 2.0]), np.dtype("f8")), "int32").values.tolist()
    [1, 2]
    """
    if dtype is str or (isinstance(dtype, str) and dtype == "str"):
        dtype = pd.StringDtype(na_value=np.nan)
    dtype = pandas_dtype(dtype)
    if dtype == column.dtype and not isinstance(dtype, pd.CategoricalDtype):
        return column
    have, want = column.kind, kind_of(dtype)
    if want == CATEGORY:
        return _to_category(column, dtype)
    if have == TEXT and want == TEXT:
        return _to_other_text(column, dtype)
    if have in NUMBERS and want in NUMBERS:
        return _to_number(column, dtype)
    same_zone = isinstance(dtype, np.dtype) == isinstance(column.dtype, np.dtype)
    if have in TIMES and want == have and same_zone:
        return Column(in_unit(column, unit_of(dtype)), dtype)
    if have in TIMES and dtype == np.int64:
        return Column(_without_nulls(column, dtype).values, dtype)
    missing = False if dtype == np.dtype(bool) and have == TEXT else None
    return map_distinct(column, lambda values: values.astype(dtype), missing)


def _to_number(column: Column, dtype: Any) -> Column:
    plain = numpy_of(dtype)
    if is_nullable(dtype):
        nulls = column.nulls()
        values = column.xp.where(nulls, column.values.dtype.type(0), column.values)
        _check_whole(values, plain)
        valid = ~nulls if bool(nulls.any()) else None
        return Column(values.astype(plain), dtype, valid)
    if column.nullable and plain.kind == "f":
        values = column.xp.where(column.nulls(), plain.type(np.nan), column.values.astype(plain))
        return Column(values, dtype)
    if plain.kind in "iu" or column.nullable:
        column = _without_nulls(column, dtype)
    return Column(column.values.astype(plain), dtype)


def _check_whole(values: Any, dtype: np.dtype) -> None:
    if dtype.kind in "iu" and values.dtype.kind == "f" and bool((values % 1 != 0).any()):
        raise TypeError(f"cannot safely cast non-equivalent {values.dtype} to {dtype}")


def _without_nulls(column: Column, dtype: Any) -> Column:
    bad = column.nulls()
    if column.kind == "f":
        bad = bad | column.xp.isinf(column.values)
    if bool(bad.any()):
        raise IntCastingNaNError(
            f"Cannot convert {int(bad.sum())} null or infinite values of {len(column)} to {dtype}: "
            f"fill them with .fillna(...), or take a nullable dtype such as 'Int64'"
        )
    return column


def _to_other_text(column: Column, dtype: Any) -> Column:
    assert column.words is not None
    return replace(column, dtype=dtype, words=column.words.astype(dtype))


def _to_category(column: Column, dtype: pd.CategoricalDtype) -> Column:
    if column.kind == CATEGORY:
        return column if dtype.categories is None else recategorize(column, dtype)
    values, places = factorize(column)
    found = to_index(values)
    ordered = bool(dtype.ordered)
    made = Column(places, pd.CategoricalDtype(found, ordered))
    return made if dtype.categories is None else recategorize(made, dtype)
