"""Array join: keys are looked up in a direct-address table instead of a hash table.

Integer keys in a narrow range, as most tables have, need no hash: the row of key ``k`` is entry
``k - smallest`` of an array. Databases also call this a perfect hash join.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_exo.dask_adapter import merge_chunk
from dask_exo.partitions.kernels.argsort import counting_argsort
from dask_exo.partitions.wire_format import to_wire

SPARSE = 8  # most entries a row; above it a hash table is smaller
FEWEST = 10_000  # fewest rows of both sides for which it pays
# no two columns have the same name, so suffixes have no effect
_SUPPORTED_OPTIONS = frozenset({"left_on", "right_on", "how", "suffixes"})


def merge(
    lhs: Any, rhs: Any, *args: Any, result_meta: Any, fewest: int = FEWEST, **options: Any
) -> Any:
    """Join two partitions, exactly as Dask's ``merge_chunk``.

    If they have fewer than ``fewest`` rows together, pandas joins them.
    """
    if not args and not len(result_meta.select_dtypes("category").columns):
        joined = _merge_by_lookup(lhs, rhs, options, fewest)
        if joined is not None and len(joined):
            return joined
    return merge_chunk(lhs, rhs, *args, result_meta=result_meta, **options)


class DirectAddressTable(NamedTuple):
    """Row of each key, by its distance from the smallest key."""

    low: int  # the smallest key
    rows: np.ndarray  # (k + 1,) int32: last row of key ``low + i``; -1 for none, and at the end
    unique: bool  # whether no two rows have the same key

    @classmethod
    def of(cls, keys: np.ndarray, limit: int) -> DirectAddressTable | None:
        """Build the table of some keys; return None if it has more than ``most`` entries."""
        low = int(keys.min())
        count = int(keys.max()) - low + 1
        if count > limit:
            return None
        rows = np.full(count + 1, -1, np.int32)
        numbers = np.arange(len(keys), dtype=np.int32)
        places = _distance(keys, low)
        rows[places] = numbers
        return cls(low, rows, bool((rows[places] == numbers).all()))

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return the row of each key, or -1."""
        last = np.uint64(len(self.rows) - 1)
        return self.rows.take(np.minimum(_distance(keys, self.low), last).view(np.int64))


def _distance(keys: np.ndarray, low: int) -> np.ndarray:
    """Return keys minus the smallest one; smaller keys wrap around to huge numbers."""
    wide = keys if keys.dtype == np.uint64 else keys.astype(np.int64, copy=False).view(np.uint64)
    return wide - np.uint64(low % 2**64)


def _merge_by_lookup(
    lhs: Any, rhs: Any, options: dict[str, Any], fewest: int
) -> pd.DataFrame | None:
    """Return the matching rows; None if pandas must find them."""
    other_options = {name for name in options.keys() - _SUPPORTED_OPTIONS if options[name]}
    left, right = _key(lhs, options.get("left_on")), _key(rhs, options.get("right_on"))
    if other_options or left is None or right is None or len(lhs) + len(rhs) < fewest:
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
    matches = _matching_rows(
        left_keys, right_keys, options.get("how", "inner"), keys_only=len(rhs.columns) == 1
    )
    if matches is None:
        return None
    joined = _take_or_null(lhs, matches[0])
    if values.columns.empty:
        return joined
    return pd.concat([joined, _take_or_null(values, matches[1])], axis=1)


def _matching_rows(
    left_keys: np.ndarray, right_keys: np.ndarray, how: str, *, keys_only: bool
) -> tuple[np.ndarray | None, np.ndarray] | None:
    """Return the matching rows of both sides, in the order of pandas.

    None means all rows of the left side, -1 a row without a partner on the right. ``keys_only``:
    the right side has no other columns than its keys.
    """
    limit = SPARSE * (len(left_keys) + len(right_keys))
    if how in ("inner", "left") or (how == "leftsemi" and keys_only):
        table = DirectAddressTable.of(right_keys, limit)
        if table is not None and (table.unique or how == "leftsemi"):
            rows = table.find(left_keys)
            matched = rows >= 0
            if how == "left" or matched.all():
                return None, rows
            matching = np.flatnonzero(matched)
            return matching, rows[matching]
    if how == "inner":
        table = DirectAddressTable.of(left_keys, limit)
        if table is not None and table.unique:
            rows = table.find(right_keys)
            matching = np.flatnonzero(rows >= 0)
            order, _ = counting_argsort(rows[matching], len(left_keys))
            return rows[matching].take(order), matching.take(order)
    return None


def _key(frame: Any, on: Any) -> Any:
    """Return the key column, or None if labels of the frame are unusual."""
    on = on[0] if isinstance(on, list) and len(on) == 1 else on
    is_plain = (
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
    return on if is_plain else None


def _take_or_null(frame: pd.DataFrame, rows: np.ndarray | None) -> pd.DataFrame:
    """Take rows; those of -1 are null."""
    if rows is None:
        return frame.reset_index(drop=True)
    if len(rows) and rows.min() < 0:
        return frame.reset_index(drop=True).reindex(rows).reset_index(drop=True)
    return to_wire(frame, rows, ignore_index=True).to_frame()
