"""Conversion of columns from and to pandas and Arrow, with one copy of each array.

Strings are encoded by dictionaries: codes are on the GPU, dictionaries on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames.column import (
    TEXT,
    Column,
    is_nullable,
    kind_of,
    numpy_of,
)
from dask_exo.partitions.kernels import argsort
from dask_exo.partitions.kernels.argsort import to_large_string


def encode(values: pa.Array | pa.ChunkedArray, dtype: Any, xp: Any) -> Column:
    """Encode (n,) Arrow strings as a column of array module ``xp``.

    Examples
    --------
    >>> column = encode(pa.array(["b", None, "a", "b"]), pd.StringDtype(), np)
    >>> column.values.tolist(), list(column.words)
    ([1, -1, 0, 1], ['a', 'b'])
    """
    parts = to_large_string(values).dictionary_encode()
    order = argsort.argsort_strings(parts.dictionary)
    ranks = np.empty(len(order), np.int32)
    ranks[order] = np.arange(len(order))
    codes = parts.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    codes = np.append(ranks, np.int32(-1))[codes]
    words = pd.Index(dtype.__from_arrow__(parts.dictionary.take(pa.array(order))), dtype=dtype)
    return Column(xp.asarray(codes.astype(np.int32)), dtype, words=words)


def look_up(column: Column, table: Any) -> Any:
    """Look up the (n,) codes in a table of the host; its last entry is for nulls."""
    xp = column.xp
    return xp.asarray(np.asarray(table))[column.values]  # -1 is the last


def unify(columns: Sequence[Column]) -> list[Column]:
    """Give columns of strings a common dictionary."""
    first = columns[0]
    words = first.words
    if all(c.words is words or words.equals(c.words) for c in columns):
        return [replace(c, words=words) for c in columns]
    texts = [_texts(c.words) for c in columns]
    union = encode(pa.concat_arrays(texts), first.dtype, np)
    tables = np.split(union.values, np.cumsum([len(t) for t in texts])[:-1])
    return [
        replace(first, values=look_up(c, np.append(table, np.int32(-1))), words=union.words)
        for c, table in zip(columns, tables, strict=True)
    ]


def _texts(words: pd.Index) -> Any:
    return to_large_string(pa.array(words.array, pa.large_string(), from_pandas=True))


def search(words: pd.Index, value: str) -> tuple[int, bool]:
    """Count the words before a string, and return whether it is one of them."""
    place = pc.sum(pc.less(_texts(words), value)).as_py() or 0
    return place, place < len(words) and words[place] == value


def from_pandas(values: Any, xp: Any) -> Column:
    """Copy a Series or Index of pandas to the GPU, or raise `DeviceTypeError`."""
    dtype = values.dtype
    kind = kind_of(dtype)
    if kind == TEXT:
        return encode(pa.array(values.array, from_pandas=True), dtype, xp)
    if kind in "mM":
        return Column(xp.asarray(np.array(pd.Index(values).asi8)), dtype)
    if not is_nullable(dtype):
        return Column(xp.asarray(np.array(values.to_numpy())), dtype)
    plain = numpy_of(dtype)
    nulls = np.asarray(values.isna())
    numbers = np.array(values.to_numpy(dtype=plain, na_value=plain.type(0)))
    return Column(xp.asarray(numbers), dtype, xp.asarray(~nulls) if nulls.any() else None)


def to_array(column: Column) -> Any:
    """Copy a column to the host, as the array of a pandas Series of its dtype."""
    values, dtype = arrays.host(column.values), column.dtype
    if column.kind == TEXT:
        return dtype.__from_arrow__(to_arrow(column))
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
    array_type = dtype.construct_array_type()
    return array_type(values.astype(dtype.numpy_dtype, copy=False), mask)


def to_arrow(column: Column) -> pa.Array:
    """Copy a column to an array of Arrow; strings are large strings."""
    if column.kind != TEXT:
        return pa.array(to_array(column), from_pandas=True)
    codes = arrays.host(column.values)
    return _texts(column.words).take(pa.array(codes, mask=codes < 0))
