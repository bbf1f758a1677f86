"""Shuffle kernels of cudf frames: rows are hashed and gathered on their GPU.

Hashing, concatenation and metadata are those that ``dask_cudf`` registers with Dask. This module
has not run on a GPU; its tests use a stand-in for cudf.

References: ``cudf.DataFrame.to_arrow``, ``dask_cudf/backends.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.dataframe.dispatch import hash_object_dispatch

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions import protocol
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu.shuffle import counting_argsort
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.protocol import JOIN_PARTITION_COLUMN, PARTITION_COLUMN
from dask_exo.partitions.wire_format import WireTable

LIBRARY = "cudf"


def partition_ids(frame: Any, column: Any, npartitions: int) -> Any:
    """Implement `dask_exo.partitions.protocol.partition_ids`."""
    columns = [column] if isinstance(column, str) else list(column)
    if columns and columns[0] in (PARTITION_COLUMN, JOIN_PARTITION_COLUMN):
        ids = frame[columns[0]].values
    else:
        hashes = hash_object_dispatch(frame[columns] if columns else frame, index=False)
        ids = getattr(hashes, "values", hashes)
    small = np.min_scalar_type(max(npartitions - 1, 0))
    return (ids % npartitions).astype(small)


def partition_column(frame: Any, column: Any, ids: Any) -> tuple[int, Any] | None:
    """Implement `dask_exo.partitions.protocol.partition_column`."""
    if (
        column not in (PARTITION_COLUMN, [PARTITION_COLUMN])
        or list(frame.columns).count(PARTITION_COLUMN) != 1
    ):
        return None
    if not bool((frame[PARTITION_COLUMN].values == ids).all()):
        return None
    return list(frame.columns).index(PARTITION_COLUMN), frame[PARTITION_COLUMN].dtype


def to_wire(frame: Any, order: Any, *, ignore_index: bool = False) -> WireTable:
    """Copy rows in a new order to host memory."""
    rows = frame.take(order)
    rows = rows.reset_index(drop=True) if ignore_index else rows
    return WireTable(rows.to_arrow(), LIBRARY)


def checksum(frame: Any, columns: Any) -> tuple[tuple[str, ...], int]:
    """Return the dtypes, and no sum: only dtypes and numbers of rows are compared."""
    return tuple(str(frame[name].dtype) for name in columns if name in frame.columns), 0


def recode(frame: Any, keys: Sequence[SortKey]) -> Any:
    """Raise `DeviceOperationError`; see `sort`."""
    return sort(frame, keys)


def sort(frame: Any, keys: Sequence[SortKey]) -> Any:
    """Raise `DeviceOperationError`: use the sort of Dask."""
    raise DeviceOperationError(
        f"ddf.exo.sort_values by {[key.name for key in keys]} does not support partitions of "
        f"{type(frame).__module__}: use ddf.sort_values, or .to_backend('exo-cupy') before"
    )


def array(frame: Any, values: np.ndarray) -> Any:
    """Copy an array of the host to the GPU of a frame."""
    return arrays.of(frame[frame.columns[0]].values).asarray(values)


def register() -> None:
    """Register these kernels for cudf, and that its data are stored on a GPU."""
    library = importlib.import_module(LIBRARY)
    protocol.register(library.DataFrame, importlib.import_module(__name__))
    protocol.register_device(library.DataFrame, library.Series, library.Index)


__all__ = [
    "array",
    "checksum",
    "counting_argsort",
    "partition_column",
    "partition_ids",
    "recode",
    "register",
    "sort",
    "to_wire",
]
