"""The hash of rows that pandas computes, so that a row goes to the same partition wherever it lies.

References: pandas, ``pandas/core/util/hashing.py`` (`hash_pandas_object`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu.dictionary import look_up
from dask_exo.partitions.gpu_columns.column import CATEGORY, TEXT, Column

_NULL = np.uint64(np.iinfo(np.uint64).max)
_MASK = 2**64 - 1


def of(column: Column) -> Any:
    """(n,) uint64, as `pandas.util.hash_array` of the column.

    Examples
    --------
    >>> of(Column(np.array([1, 2]), np.dtype("i8"))).tolist()
    [6238072747940578789, 15839785061582574730]
    """
    if column.kind in (TEXT, CATEGORY):
        words = pd.util.hash_array(column.dictionary.array, categorize=False)
        return look_up(column, np.append(words.astype(np.uint64), _NULL))
    values = column.values
    if column.kind == "f":  # all NaN have one hash, and so have both zeros
        values = column.xp.where(column.xp.isnan(values), values.dtype.type(np.nan), values + 0)
    if column.kind == "b":
        mixed = _mix(values.astype(np.uint64))
    else:
        mixed = _mix(values.view(f"u{values.dtype.itemsize}").astype(np.uint64))
    if column.nullable and column.valid is not None:
        return column.xp.where(column.valid, mixed, np.uint64(hash(pd.NA) & _MASK))
    return mixed


def _mix(words: Any) -> Any:
    words = words ^ (words >> np.uint64(30))
    words = words * np.uint64(0xBF58476D1CE4E5B9)
    words = words ^ (words >> np.uint64(27))
    words = words * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
