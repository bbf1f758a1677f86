"""Columns from and to pandas and Arrow: one copy of each array, either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu.dictionary import encode
from dask_exo.partitions.gpu_columns.column import (
    CATEGORY,
    TEXT,
    Column,
    is_nullable,
    kind_of,
    numpy_of,
)
from dask_exo.partitions.kernels.string_sort import large


def from_pandas(values: Any, xp: Any) -> Column:
    """Copy a column of pandas to the device.

    Parameters
    ----------
    values : Series or Index
        (n,)
    xp : module
        Where to: numpy or cupy.

    Raises
    ------
    DeviceTypeError
        Of a dtype that has no arrays.
    """
    dtype = values.dtype
    kind = kind_of(dtype)
    if kind == TEXT:
        return encode(pa.array(values.array, from_pandas=True), dtype, xp)
    if kind == CATEGORY:
        codes = values.codes if isinstance(values, pd.Index) else values.cat.codes.to_numpy()
        return Column(xp.asarray(codes.astype(np.int32)), dtype)
    if kind in "mM":
        return Column(xp.asarray(np.array(pd.Index(values).asi8)), dtype)
    if not is_nullable(dtype):
        return Column(xp.asarray(np.array(values.to_numpy())), dtype)
    plain = numpy_of(dtype)
    nulls = np.asarray(values.isna())
    numbers = np.array(values.to_numpy(dtype=plain, na_value=plain.type(0)))
    return Column(xp.asarray(numbers), dtype, xp.asarray(~nulls) if nulls.any() else None)


def from_arrow(values: pa.Array | pa.ChunkedArray, xp: Any) -> Column:
    """Copy a column of Arrow to the device, in the dtype that pandas would give it."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return encode(values, pd.StringDtype(na_value=np.nan), xp)
    return from_pandas(pd.Series(values.to_pandas()), xp)


def to_array(column: Column) -> Any:  # noqa: PLR0911  a case each
    """Copy a column to the host.

    Returns
    -------
    ndarray or ExtensionArray : (n,)
        What a Series of pandas of the same dtype is made of.
    """
    values, dtype = arrays.host(column.values), column.dtype
    if column.kind == TEXT:
        return dtype.__from_arrow__(to_arrow(column))
    if column.kind == CATEGORY:
        return pd.Categorical.from_codes(values, dtype=dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        utc = pd.DatetimeIndex(values.view(f"M8[{dtype.unit}]")).tz_localize("UTC")
        return utc.tz_convert(dtype.tz).array
    if column.kind in "mM":
        return values.view(dtype)
    if not column.nullable:
        return values
    mask = arrays.host(column.nulls())
    if isinstance(dtype, pd.ArrowDtype):
        return dtype.__from_arrow__(pa.array(values, dtype.pyarrow_dtype, mask=mask))
    made = dtype.construct_array_type()
    return made(values.astype(dtype.numpy_dtype, copy=False), mask)


def to_arrow(column: Column) -> pa.Array:
    """Copy a column to an array of Arrow; strings are large strings."""
    if column.kind != TEXT:
        return pa.array(to_array(column), from_pandas=True)
    codes = arrays.host(column.values)
    words = large(pa.array(column.dictionary.array, pa.large_string(), from_pandas=True))
    return words.take(pa.array(codes, mask=codes < 0))


def to_index(column: Column, name: Any = None) -> pd.Index:
    """Copy a column to an index of pandas."""
    return pd.Index(to_array(column), dtype=column.dtype, name=name)
