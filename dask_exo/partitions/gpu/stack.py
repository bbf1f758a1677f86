"""Concatenation of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu.dictionary import unify
from dask_exo.partitions.gpu_columns.cast import cast
from dask_exo.partitions.gpu_columns.column import CATEGORY, TEXT, Column


def stack(columns: Sequence[Column]) -> Column:
    """Concatenate columns, in the dtype that pandas gives the result.

    Categories are united as Dask does. Different dtypes become one that holds both.

    Raises
    ------
    DeviceTypeError
        Only Python objects could hold both.

    Examples
    --------
    >>> one = Column(np.array([1]), np.dtype("i8"))
    >>> stack([one, Column(np.array([0.5]), np.dtype("f8"))]).values.tolist()
    [1.0, 0.5]
    """
    if len(columns) == 1:
        return columns[0]
    if len({c.dtype for c in columns}) > 1 and {c.kind for c in columns} != {CATEGORY}:
        dtype = columns[0].dtype
        for column in columns[1:]:
            dtype = common(dtype, column.dtype)
        columns = [cast(column, dtype) for column in columns]
    if columns[0].kind in (TEXT, CATEGORY):
        columns = unify(columns)
    xp = columns[0].xp
    valid = None
    if any(c.valid is not None for c in columns):
        valid = xp.concatenate([~c.nulls() for c in columns])
    return replace(columns[0], values=xp.concatenate([c.values for c in columns]), valid=valid)


@lru_cache(maxsize=256)
def common(a: Any, b: Any) -> Any:
    """Return the dtype that pandas gives rows of both."""
    if isinstance(a, pd.CategoricalDtype):
        a = a.categories.dtype
    if isinstance(b, pd.CategoricalDtype):
        b = b.categories.dtype
    if a == b:
        return a
    made = pd.concat([pd.Series(_some(a)), pd.Series(_some(b))], ignore_index=True)
    return made.dtype


def _some(dtype: Any) -> pd.Series:
    if isinstance(dtype, np.dtype):
        return pd.Series(np.zeros(1, dtype))
    return pd.Series([None], dtype=dtype)
