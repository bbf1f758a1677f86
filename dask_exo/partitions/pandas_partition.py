"""Partitions in host memory: pandas frames.

A shuffle needs four things of a partition: which reducer each row goes to, the rows in
reducer order, a slice of them, and a concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dispatch import hash_object_dispatch

from dask_exo.dask_adapter import concat_partitions
from dask_exo.partitions.kernels.integer_sort import counting

Frame = Any
"""A pandas ``DataFrame``."""

MARK = "_partitions"
"""Column in which Dask's own lowering leaves the number of the partition a row goes to."""

JOIN_MARK = "__hash_partition"
"""The same, in Dask's hash joins by p2p."""


def concat(frames: Sequence[Frame], *, ignore_index: bool = False) -> Frame:
    """Put partitions below each other, as Dask does it (categories united, empty ones skipped)."""
    return frames[0] if len(frames) == 1 else concat_partitions(list(frames), ignore_index)


def destinations(frame: Frame, column: Any, npartitions: int) -> np.ndarray:
    """Partition number of each row, as Dask's task shuffle computes it.

    Parameters
    ----------
    frame : DataFrame
        ``n`` rows.
    column : label or list of labels
        The column of ready partition numbers, or columns to hash.
    npartitions : int
        Number of output partitions.

    Returns
    -------
    ndarray : (n,)
        In the smallest unsigned type that holds ``npartitions``.
    """
    columns = [column] if isinstance(column, str) else list(column)
    if columns and columns[0] in (MARK, JOIN_MARK):
        ids = np.asarray(frame[columns[0]])
    else:
        ids = hash_object_dispatch(frame[columns] if columns else frame, index=False)
    small = np.min_scalar_type(max(npartitions - 1, 0))
    if len(ids) and (ids.min() < 0 or ids.max() >= npartitions):
        ids = ids % npartitions
    return ids.astype(small)


def mark(frame: Frame, column: Any, ids: np.ndarray) -> tuple[int, Any] | None:
    """Place and dtype of the column of partition numbers, if the ids alone restore it."""
    if column not in (MARK, [MARK]) or list(frame.columns).count(MARK) != 1:
        return None
    numbers = frame[MARK]
    if not isinstance(numbers.dtype, np.dtype) or not np.array_equal(numbers.to_numpy(), ids):
        return None
    return int(frame.columns.get_loc(MARK)), numbers.dtype


def grouped(ids: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of rows in the order of their ids, input order kept within one id.

    Parameters
    ----------
    ids : (n,)
        Block of each row, in ``range(count)``.
    count : int
        Number of blocks.

    Returns
    -------
    order : (n,)
        Positions of the rows, block after block.
    offsets : (count + 1,)
        Where each block starts.
    """
    return counting(ids, count)


def checksum(frame: Frame, columns: Sequence[Any]) -> tuple[tuple[str, ...], int]:
    """Order-independent 64-bit sum over the fixed-width ones of the named columns.

    The sum of the raw words and of their squares: rows lost, doubled or changed show up,
    at the speed of reading the column once.

    Returns
    -------
    dtypes : tuple of str
        Of all the columns: sums of different dtypes cannot be compared.
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
