"""Dictionary encoding of strings: codes are on the GPU, dictionaries on the host.

A function of strings is called once for each word, on the host; its results are looked up for all
rows on the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import union_categoricals

from dask_exo.partitions.gpu_columns.column import CATEGORY, Column
from dask_exo.partitions.kernels import string_sort
from dask_exo.partitions.kernels.string_sort import to_large_string


def encode(values: pa.Array | pa.ChunkedArray, dtype: Any, xp: Any) -> Column:
    """Encode Arrow strings as a column.

    Parameters
    ----------
    values : Array
        (n,) strings.
    dtype : StringDtype
    xp : module
        Where to: numpy or cupy.

    Examples
    --------
    >>> made = encode(pa.array(["b", None, "a", "b"]), pd.StringDtype(), np)
    >>> made.values.tolist(), list(made.words)
    ([1, -1, 0, 1], ['a', 'b'])
    """
    parts = to_large_string(values).dictionary_encode()
    found = string_sort.argsort_strings(parts.dictionary)
    ranks = np.empty(len(found), np.int32)
    ranks[found] = np.arange(len(found))
    codes = parts.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    codes = np.append(ranks, np.int32(-1))[codes]
    words = pd.Index(dtype.__from_arrow__(parts.dictionary.take(pa.array(found))), dtype=dtype)
    return Column(xp.asarray(codes.astype(np.int32)), dtype, words=words)


def look_up(column: Column, table: Any) -> Any:
    """Look up the code of each row in a table, whose last entry is for nulls.

    Parameters
    ----------
    column : Column
        (n,) codes.
    table : (w + 1,)
        On the host.
    """
    xp = column.xp
    return xp.asarray(np.asarray(table))[column.values]  # -1 is the last


def recode(column: Column, table: Sequence[int] | np.ndarray) -> Any:
    """Return (n,) codes of a column, replaced by those of a table; nulls stay."""
    return look_up(column, np.append(np.asarray(table, np.int32), np.int32(-1)))


def unify(columns: Sequence[Column]) -> list[Column]:
    """Give columns of strings or categories a common dictionary.

    Categories are united in order of appearance, as in pandas.
    """
    first = columns[0]
    if first.kind == CATEGORY:
        return _unify_categories(columns)
    words = first.words
    assert words is not None
    if all(c.words is words or words.equals(c.words) for c in columns):
        return [replace(c, words=words) for c in columns]
    texts = [to_large_string(pa.array(c.dictionary.array, pa.large_string())) for c in columns]
    every = encode(pa.concat_arrays(texts), first.dtype, np)
    lengths = np.cumsum([len(t) for t in texts])[:-1]
    tables = np.split(every.values, lengths)
    return [
        replace(first, values=recode(c, table), words=every.words)
        for c, table in zip(columns, tables, strict=True)
    ]


def _unify_categories(columns: Sequence[Column]) -> list[Column]:
    dtype = columns[0].dtype
    if all(_is_same(c.dtype, dtype) for c in columns):
        return list(columns)
    known = [c for c in columns if len(c.dtype.categories)]
    if not known:
        return list(columns)
    dtype = union_categoricals([pd.Categorical([], dtype=c.dtype) for c in known]).dtype
    return [recategorize(c, dtype) for c in columns]


def recategorize(column: Column, dtype: pd.CategoricalDtype) -> Column:
    """Change the categories of a column; values that are not among them become null."""
    places = dtype.categories.get_indexer(column.dictionary)
    return Column(recode(column, places), dtype)


def _is_same(a: pd.CategoricalDtype, b: pd.CategoricalDtype) -> bool:
    return a == b and a.categories.equals(b.categories)


def search(words: pd.Index, value: str) -> tuple[int, bool]:
    """Count the words before a string, and return whether it is one of them."""
    place = (
        pc.sum(pc.less(to_large_string(pa.array(words.array, pa.large_string())), value)).as_py()
        or 0
    )
    return place, place < len(words) and words[place] == value
