"""Conversion of columns from and to pandas and Arrow, with one copy of each array.

Strings are encoded by dictionaries: codes are on the GPU, dictionaries on the host. A function of
strings is called once for each word, on the host; its results are looked up for all rows on the
GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import union_categoricals

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames.column import (
    CATEGORY,
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


def recode(column: Column, table: Sequence[int] | np.ndarray) -> Any:
    """Return (n,) codes of a column, replaced by those of a table; nulls stay."""
    return look_up(column, np.append(np.asarray(table, np.int32), np.int32(-1)))


def unify(columns: Sequence[Column]) -> list[Column]:
    """Give columns of strings or categories a common dictionary.

    The union of categories is in order of appearance, as in pandas.
    """
    first = columns[0]
    if first.kind == CATEGORY:
        return _unify_categories(columns)
    words = first.dictionary
    if all(c.words is words or words.equals(c.words) for c in columns):
        return [replace(c, words=words) for c in columns]
    texts = [to_large_string(pa.array(c.dictionary.array, pa.large_string())) for c in columns]
    union = encode(pa.concat_arrays(texts), first.dtype, np)
    tables = np.split(union.values, np.cumsum([len(t) for t in texts])[:-1])
    return [
        replace(first, values=recode(c, table), words=union.words)
        for c, table in zip(columns, tables, strict=True)
    ]


def _unify_categories(columns: Sequence[Column]) -> list[Column]:
    dtype = columns[0].dtype
    dtypes = [c.dtype for c in columns if len(c.dtype.categories)]
    is_same = all(c.dtype == dtype and c.dictionary.equals(dtype.categories) for c in columns)
    if is_same or not dtypes:
        return list(columns)
    dtype = union_categoricals([pd.Categorical([], dtype=d) for d in dtypes]).dtype
    return [recategorize(c, dtype) for c in columns]


def recategorize(column: Column, dtype: pd.CategoricalDtype) -> Column:
    """Change the categories of a column; values that are not among them become null."""
    places = dtype.categories.get_indexer(column.dictionary)
    return Column(recode(column, places), dtype)


def search(words: pd.Index, value: str) -> tuple[int, bool]:
    """Count the words before a string, and return whether it is one of them."""
    texts = to_large_string(pa.array(words.array, pa.large_string()))
    place = pc.sum(pc.less(texts, value)).as_py() or 0
    return place, place < len(words) and words[place] == value


def from_pandas(values: Any, xp: Any) -> Column:
    """Copy a Series or Index of pandas to the GPU, or raise `DeviceTypeError`."""
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


def to_array(column: Column) -> Any:  # noqa: PLR0911  a case each
    """Copy a column to the host, as the array of a pandas Series of its dtype."""
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
    array_type = dtype.construct_array_type()
    return array_type(values.astype(dtype.numpy_dtype, copy=False), mask)


def to_arrow(column: Column) -> pa.Array:
    """Copy a column to an array of Arrow; strings are large strings."""
    if column.kind != TEXT:
        return pa.array(to_array(column), from_pandas=True)
    codes = arrays.host(column.values)
    words = to_large_string(pa.array(column.dictionary.array, pa.large_string(), from_pandas=True))
    return words.take(pa.array(codes, mask=codes < 0))


def to_index(column: Column, name: Any = None) -> pd.Index:
    """Copy a column to an index of pandas."""
    return pd.Index(to_array(column), dtype=column.dtype, name=name)


def factorize(column: Column) -> tuple[Column, Any]:
    """Return distinct values, ascending, and the number of each row's value, -1 for nulls."""
    xp = column.xp
    if column.kind in (TEXT, CATEGORY):
        # a dictionary may have words that no row has
        codes = xp.unique(column.values[column.values >= 0])
        table = xp.full(len(column.dictionary) + 1, -1, np.int32)
        table[codes] = xp.arange(len(codes), dtype=np.int32)
        return replace(column, values=codes), table[column.values]
    nulls = column.nulls()
    values, places = xp.unique(column.values[~nulls], return_inverse=True)
    numbers = xp.full(len(column), -1, np.int32)
    numbers[~nulls] = places.reshape(-1)
    return replace(column, values=values, valid=None), numbers


def map_distinct(column: Column, change: Callable[[pd.Series], Any], missing: Any = None) -> Column:
    """Map a function over the Series of distinct values; nulls become ``missing`` or stay."""
    values, places = factorize(column)
    mapped = pd.Series(change(pd.Series(to_array(values), dtype=column.dtype)))
    if mapped.dtype == object and not len(mapped):  # pandas cannot know the dtype
        mapped = mapped.astype(np.float64)
    if missing is not None:
        mapped = pd.concat([mapped, pd.Series([missing], dtype=mapped.dtype)], ignore_index=True)
        places = column.xp.where(places < 0, len(mapped) - 1, places)
    return from_pandas(mapped, column.xp).take_or_null(places)
