"""Shuffle kernels of pandas frames: partitions in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dispatch import hash_object_dispatch

from dask_exo.dask_adapter import concat_partitions

Frame = Any
"""A pandas ``DataFrame``."""

PARTITION_COLUMN = "_partitions"
"""Column of partition numbers that Dask adds before it shuffles."""

JOIN_PARTITION_COLUMN = "__hash_partition"
"""Column of partition numbers in Dask's p2p hash joins."""


def concat(frames: Sequence[Frame], *, ignore_index: bool = False) -> Frame:
    """Concatenate partitions as Dask does: categories are united, empty ones skipped."""
    return frames[0] if len(frames) == 1 else concat_partitions(list(frames), ignore_index)


def partition_ids(frame: Frame, column: Any, npartitions: int) -> np.ndarray:
    """Compute the partition number of each row, as Dask's task shuffle does.

    Parameters
    ----------
    frame : DataFrame
        (n,) rows.
    column : label or list of labels
        `PARTITION_COLUMN` or `JOIN_PARTITION_COLUMN`, or columns to hash.
    npartitions : int
        Number of output partitions.

    Returns
    -------
    ndarray : (n,)
        In the smallest unsigned type that holds ``npartitions``.
    """
    columns = [column] if isinstance(column, str) else list(column)
    if columns and columns[0] in (PARTITION_COLUMN, JOIN_PARTITION_COLUMN):
        ids = np.asarray(frame[columns[0]])
    else:
        ids = hash_object_dispatch(frame[columns] if columns else frame, index=False)
    small = np.min_scalar_type(max(npartitions - 1, 0))
    if len(ids) and (ids.min() < 0 or ids.max() >= npartitions):
        ids = ids % npartitions
    return ids.astype(small)


def partition_column(frame: Frame, column: Any, ids: np.ndarray) -> tuple[int, Any] | None:
    """Return position and dtype of `PARTITION_COLUMN`, or None if ``ids`` do not restore it."""
    if (
        column not in (PARTITION_COLUMN, [PARTITION_COLUMN])
        or list(frame.columns).count(PARTITION_COLUMN) != 1
    ):
        return None
    numbers = frame[PARTITION_COLUMN]
    if not isinstance(numbers.dtype, np.dtype) or not np.array_equal(numbers.to_numpy(), ids):
        return None
    return int(frame.columns.get_loc(PARTITION_COLUMN)), numbers.dtype


def checksum(frame: Frame, columns: Sequence[Any]) -> tuple[tuple[str, ...], int]:
    """Compute a sum over the named columns of fixed width that no order of rows changes.

    It adds up words and their squares, so that lost, duplicated and changed rows show, at the
    speed of one read.

    Returns
    -------
    dtypes : tuple of str
        Dtypes of the columns; only sums of equal dtypes can be compared.
    sum : int
        Modulo 2**64.
    """
    total = 0
    dtypes = []
    for name in columns:
        column = frame[name] if name in frame.columns else None
        if not isinstance(column, pd.Series):
            continue
        dtypes.append(str(column.dtype))
        if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "iufmMb":
            continue
        words = column.to_numpy().view(f"u{column.dtype.itemsize}")
        with np.errstate(over="ignore"):
            wide = words.astype(np.uint64, copy=False)
            total += int(wide.sum(dtype=np.uint64)) + 3 * int(np.dot(wide, wide))
    return tuple(dtypes), total % 2**64
