"""What a shuffle asks of a dataframe of cudf: its rows are hashed and gathered on its GPU.

What Dask asks of one is registered by ``dask_cudf``, and used as it is: hashing, concatenation,
metadata. Nothing here has run on a GPU; it is tested with a module that has the same few names.

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
from dask_exo.partitions.arrow_block import ArrowRows
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu.shuffle import grouped
from dask_exo.partitions.kernels.sort_keys import Key
from dask_exo.partitions.pandas_partition import JOIN_MARK, MARK

LIBRARY = "cudf"


def destinations(frame: Any, column: Any, npartitions: int) -> Any:
    """Partition number of each row; see `dask_exo.partitions.pandas_partition.destinations`."""
    columns = [column] if isinstance(column, str) else list(column)
    if columns and columns[0] in (MARK, JOIN_MARK):
        ids = frame[columns[0]].values
    else:
        found = hash_object_dispatch(frame[columns] if columns else frame, index=False)
        ids = getattr(found, "values", found)
    small = np.min_scalar_type(max(npartitions - 1, 0))
    return (ids % npartitions).astype(small)


def mark(frame: Any, column: Any, ids: Any) -> tuple[int, Any] | None:
    """Place and dtype of the column of partition numbers, if the ids alone restore it."""
    if column not in (MARK, [MARK]) or list(frame.columns).count(MARK) != 1:
        return None
    if not bool((frame[MARK].values == ids).all()):
        return None
    return list(frame.columns).index(MARK), frame[MARK].dtype


def travelling(frame: Any, order: Any, *, ignore_index: bool = False) -> ArrowRows:
    """Rows in another order, in host memory."""
    rows = frame.take(order)
    rows = rows.reset_index(drop=True) if ignore_index else rows
    return ArrowRows(rows.to_arrow(), LIBRARY)


def checksum(frame: Any, columns: Any) -> tuple[tuple[str, ...], int]:
    """No sum: rows are counted, which the caller does, and dtypes compared."""
    return tuple(str(frame[name].dtype) for name in columns if name in frame.columns), 0


def recode(frame: Any, keys: Sequence[Key]) -> Any:
    """See `sort`."""
    return sort(frame, keys)


def sort(frame: Any, keys: Sequence[Key]) -> Any:
    """Raise `DeviceOperationError`: a sort over all partitions is Dask's."""
    raise DeviceOperationError(
        f"ddf.exo.sort_values by {[key.name for key in keys]} does not exist for partitions of "
        f"{type(frame).__module__}: take ddf.sort_values, or .to_backend('exo-cupy') before"
    )


def array(frame: Any, values: np.ndarray) -> Any:
    """An array of the host where columns of a frame lie."""
    return arrays.of(frame[frame.columns[0]].values).asarray(values)


def register() -> None:
    """Say that this module answers for dataframes of cudf, and that those lie on a device."""
    library = importlib.import_module(LIBRARY)
    protocol.register(library.DataFrame, importlib.import_module(__name__))
    protocol.register_device(library.DataFrame, library.Series, library.Index)


__all__ = [
    "array",
    "checksum",
    "destinations",
    "grouped",
    "mark",
    "recode",
    "register",
    "sort",
    "travelling",
]
