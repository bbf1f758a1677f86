"""Categorical sort keys: rows are sorted by the order of the categories, which all must share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from dask_exo.errors import SortKeyError
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.pandas_partition import Frame

Dtypes = tuple[pd.CategoricalDtype | None, ...]


def key_categories(frame: Frame, keys: Sequence[SortKey]) -> Dtypes:
    """Return the dtypes of categorical keys; None for others, and if a partition is empty."""
    dtypes = [(frame.index if key.column is None else frame[key.column]).dtype for key in keys]
    return tuple(d if isinstance(d, pd.CategoricalDtype) and len(frame) else None for d in dtypes)


def unify_categories(keys: Sequence[SortKey], *dtypes: Dtypes) -> tuple[SortKey, ...]:
    """Return the keys with the union of the categories of all partitions, in order of appearance.

    Raises
    ------
    SortKeyError
        Ordered categories differ: there is no common order.
    """
    return tuple(
        _unified(key, found) for key, found in zip(keys, zip(*dtypes, strict=True), strict=True)
    )


def _unified(key: SortKey, found: Sequence[pd.CategoricalDtype | None]) -> SortKey:
    # a partition of nulls has no categories, of a type that means nothing
    empty = [pd.Categorical([], dtype=d) for d in found if d is not None and len(d.categories)]
    if key.dtype is not None or not empty:
        return key
    try:
        return replace(key, dtype=union_categoricals(empty).dtype)
    except TypeError as error:
        raise SortKeyError(
            f"the ordered categories of sort key {key.name!r} differ between partitions: {error}; "
            f"give all the same with .cat.set_categories(...)"
        ) from error


def recode(frame: Frame, keys: Sequence[SortKey]) -> Frame:
    """Give the categorical key columns of a frame the categories of the keys.

    Raises
    ------
    SortKeyError
        A value is not among the categories.
    """
    for key in keys:
        if key.dtype is not None and len(frame):
            values = frame.index if key.column is None else frame[key.column]
            if not _is_same(values.dtype, key.dtype):
                frame = _with(frame, key, values)
    return frame


def _is_same(dtype: object, wanted: pd.CategoricalDtype) -> bool:
    # dtypes that are not ordered compare equal whatever the order of their categories
    return dtype == wanted and dtype.categories.equals(wanted.categories)  # type: ignore[attr-defined]


def _with(frame: Frame, key: SortKey, values: pd.Series | pd.Index) -> Frame:
    assert key.dtype is not None
    old = pd.Categorical(values)
    places = np.append(key.dtype.categories.get_indexer(old.categories), -1)  # -1: of a null
    recoded = pd.Categorical.from_codes(places[old.codes], dtype=key.dtype)
    lost = recoded.isna() & ~old.isna()
    if lost.any():
        raise SortKeyError(
            f"sort key {key.name!r} has the value {old[lost][0]!r}, which is none of the "
            f"categories that the collection knows: {list(key.dtype.categories)}; make them "
            f"unknown with .cat.as_unknown(), or find all with .categorize()"
        )
    if key.column is None:
        return frame.set_axis(pd.CategoricalIndex(recoded, name=frame.index.name))
    return frame.assign(**{key.column: recoded})
