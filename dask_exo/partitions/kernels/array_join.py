"""Joins whose keys are looked up in an array instead of a hash table.

Keys that are whole numbers in a narrow range, as those of most tables are, need no hash: the row of
key ``k`` stands at place ``k - smallest`` of an array (a direct-address table; databases call it an
array join, or a join by a perfect hash).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_exo.dask_adapter import merge_chunk
from dask_exo.partitions.kernels.integer_sort import counting_argsort
from dask_exo.partitions.wire_format import to_wire

SPARSE = 8  # places for each row, above which a hash table is smaller
FEWEST = 10_000  # rows of both sides that are worth it
_KNOWN = frozenset({"left_on", "right_on", "how", "suffixes"})  # no two columns have the same name


def merge(lhs: Any, rhs: Any, *args: Any, result_meta: Any, **options: Any) -> Any:
    """Join two partitions, exactly as Dask's ``merge_chunk``.

    Parameters
    ----------
    lhs, rhs : DataFrame
    *args
    result_meta : DataFrame
        What comes out, without rows.
    **options
        For ``lhs.merge``.

    Returns
    -------
    DataFrame
    """
    if not args and not len(result_meta.select_dtypes("category").columns):
        joined = _merge_by_lookup(lhs, rhs, options)
        if joined is not None and len(joined):
            return joined
    return merge_chunk(lhs, rhs, *args, result_meta=result_meta, **options)


class DirectAddressTable(NamedTuple):
    """Where each key stands.

    Attributes
    ----------
    low : int
        The smallest key.
    rows : (k + 1,) int32
        The row of ``low + i``, the last one if there are several; -1 where there is none, and
        at the end.
    unique : bool
        Whether no two rows have the same key.
    """

    low: int
    rows: np.ndarray
    unique: bool

    @classmethod
    def of(cls, keys: np.ndarray, most: int) -> DirectAddressTable | None:
        """Note where each of some keys is, unless there are more places than ``most``."""
        low = int(keys.min())
        count = int(keys.max()) - low + 1
        if count > most:
            return None
        rows = np.full(count + 1, -1, np.int32)
        numbers = np.arange(len(keys), dtype=np.int32)
        places = _distance(keys, low)
        rows[places] = numbers
        return cls(low, rows, bool((rows[places] == numbers).all()))

    def find(self, keys: np.ndarray) -> np.ndarray:
        """The row of each key, or -1."""
        last = np.uint64(len(self.rows) - 1)
        return self.rows.take(np.minimum(_distance(keys, self.low), last).view(np.int64))


def _distance(keys: np.ndarray, low: int) -> np.ndarray:
    """How far each key is above the smallest one; those below it are far above all others."""
    wide = keys if keys.dtype == np.uint64 else keys.astype(np.int64, copy=False).view(np.uint64)
    return wide - np.uint64(low % 2**64)


def _merge_by_lookup(lhs: Any, rhs: Any, options: dict[str, Any]) -> pd.DataFrame | None:
    """The rows that match; None where pandas has to find them."""
    others = {name for name in options.keys() - _KNOWN if options[name]}
    left, right = _key(lhs, options.get("left_on")), _key(rhs, options.get("right_on"))
    if others or left is None or right is None or len(lhs) + len(rhs) < FEWEST:
        return None
    left_keys, right_keys = lhs[left].to_numpy(), rhs[right].to_numpy()
    values = rhs.drop(columns=right) if left == right else rhs
    if (
        left_keys.dtype != right_keys.dtype
        or left_keys.dtype.kind not in "iu"
        or not (len(left_keys) and len(right_keys))
        or not lhs.columns.intersection(values.columns).empty
    ):
        return None
    found = _matching_rows(
        left_keys, right_keys, options.get("how", "inner"), keys_only=len(rhs.columns) == 1
    )
    if found is None:
        return None
    joined = _take_or_null(lhs, found[0])
    if values.columns.empty:
        return joined
    return pd.concat([joined, _take_or_null(values, found[1])], axis=1)


def _matching_rows(
    left_keys: np.ndarray, right_keys: np.ndarray, how: str, *, keys_only: bool
) -> tuple[np.ndarray | None, np.ndarray] | None:
    """Which rows of both sides belong together, in the order of pandas.

    None for all rows of the left side; -1 for a row that the right side has not. ``keys_only`` says
    that keys are all that the right side has.
    """
    most = SPARSE * (len(left_keys) + len(right_keys))
    if how in ("inner", "left") or (how == "leftsemi" and keys_only):
        places = DirectAddressTable.of(right_keys, most)
        if places is not None and (places.unique or how == "leftsemi"):
            rows = places.find(left_keys)
            matched = rows >= 0
            if how == "left" or matched.all():
                return None, rows
            kept = np.flatnonzero(matched)
            return kept, rows[kept]
    if how == "inner":
        places = DirectAddressTable.of(left_keys, most)
        if places is not None and places.unique:
            rows = places.find(right_keys)
            kept = np.flatnonzero(rows >= 0)
            order, _ = counting_argsort(rows[kept], len(left_keys))
            return rows[kept].take(order), kept.take(order)
    return None


def _key(frame: Any, on: Any) -> Any:
    """The only column to join by, of a frame whose columns are plain and have different names."""
    on = on[0] if isinstance(on, list) and len(on) == 1 else on
    plain = (
        type(frame) is pd.DataFrame
        and isinstance(on, str)
        and type(frame.columns) is pd.Index
        and frame.columns.name is None
        and frame.columns.is_unique
        and on in frame.columns
        and isinstance(frame[on].dtype, np.dtype)
        and not frame.attrs
        and frame.flags.allows_duplicate_labels
    )
    return on if plain else None


def _take_or_null(frame: pd.DataFrame, rows: np.ndarray | None) -> pd.DataFrame:
    """Some rows, those of -1 without values."""
    if rows is None:
        return frame.reset_index(drop=True)
    if len(rows) and rows.min() < 0:
        return frame.reset_index(drop=True).reindex(rows).reset_index(drop=True)
    return to_wire(frame, rows, ignore_index=True).to_frame()
