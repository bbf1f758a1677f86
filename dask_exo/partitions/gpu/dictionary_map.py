"""What the host does once to each distinct value, for all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu.interop import from_pandas, to_array
from dask_exo.partitions.gpu_columns.column import CATEGORY, TEXT, Column


def distinct(column: Column) -> tuple[Column, Any]:
    """Distinct values, ascending, and for each row which it is; -1 for nulls."""
    xp = column.xp
    if column.kind in (TEXT, CATEGORY):
        # a dictionary may have words that no row has
        used = xp.unique(column.values[column.values >= 0])
        table = xp.full(len(column.dictionary) + 1, -1, np.int32)
        table[used] = xp.arange(len(used), dtype=np.int32)
        return replace(column, values=used), table[column.values]
    nulls = column.nulls()
    values, places = xp.unique(column.values[~nulls], return_inverse=True)
    found = xp.full(len(column), -1, np.int32)
    found[~nulls] = places.reshape(-1)
    return replace(column, values=values, valid=None), found


def through(column: Column, change: Callable[[pd.Series], Any], missing: Any = None) -> Column:
    """What pandas makes of each distinct value, for all rows.

    Parameters
    ----------
    column : Column
        (n,)
    change : callable
        Of a Series of distinct values, which are not null: a Series or array as long.
    missing : object, optional
        What nulls become; by default nulls.

    Returns
    -------
    Column : (n,)
    """
    values, places = distinct(column)
    made = pd.Series(change(pd.Series(to_array(values), dtype=column.dtype)))
    if made.dtype == object and not len(made):  # pandas cannot know the dtype
        made = made.astype(np.float64)
    if missing is not None:
        made = pd.concat([made, pd.Series([missing], dtype=made.dtype)], ignore_index=True)
        places = column.xp.where(places < 0, len(made) - 1, places)
    return from_pandas(made, column.xp).take_or_null(places)
