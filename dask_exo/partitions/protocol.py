"""Shuffle kernels by the kind of frame: the protocol, its functions for pandas, and the dispatch.

A library's frames are registered with an object that has the functions of `Kernels`, in the same
way and at the same time as with Dask's dispatch functions: when its package is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pandas as pd
from dask.dataframe.dispatch import hash_object_dispatch
from dask.utils import Dispatch

from dask_exo.dask_adapter import concat_partitions
from dask_exo.partitions import wire_format
from dask_exo.partitions.kernels import argsort, sort_keys
from dask_exo.partitions.kernels.sort_keys import SortKey


class Kernels(Protocol):
    """Functions that split and sort rows of one kind of frame, each as that of pandas in `_HOST`.

    Arrays are in the memory of the frame: on the host, or on its GPU.
    """

    partition_ids: Callable[[Any, Any, int], Any]  # (frame, column, npartitions)
    partition_column: Callable[[Any, Any, Any], tuple[int, Any] | None]  # (frame, column, ids)
    counting_argsort: Callable[[Any, int], tuple[Any, np.ndarray]]  # offsets are on the host
    to_wire: Callable[..., wire_format.WireRows]  # rows are in host memory
    checksum: Callable[[Any, Any], tuple[tuple[str, ...], int]]  # (frame, columns)
    recode: Callable[[Any, Sequence[SortKey]], Any]
    sort: Callable[[Any, Sequence[SortKey]], Any]
    array: Callable[[Any, np.ndarray], Any]  # copies an array of the host to the frame's memory


Frame = Any
"""A pandas ``DataFrame``."""

PARTITION_COLUMN = "_partitions"
"""Column of partition numbers that Dask adds before it shuffles."""

JOIN_PARTITION_COLUMN = "__hash_partition"
"""Column of partition numbers in Dask's p2p hash joins."""


def concat(frames: Sequence[Frame], *, ignore_index: bool = False) -> Frame:
    """Concatenate partitions as Dask does: categories are united, empty ones skipped."""
    return frames[0] if len(frames) == 1 else concat_partitions(list(frames), ignore_index)


def relabel(frame: Any, *, columns: Any = None, index: Any = None) -> Any:
    """Return a frame of any library with other labels of columns or rows."""
    frame = frame.copy(deep=False)
    if columns is not None:
        frame.columns = columns
    if index is not None:
        frame.index = index
    return frame


def partition_ids(frame: Any, column: Any, npartitions: int) -> Any:
    """Compute the partition number of each row of any kind of frame, as Dask's task shuffle does.

    ``column`` is `PARTITION_COLUMN` or `JOIN_PARTITION_COLUMN`, or the columns to hash. The result
    has the smallest unsigned type.
    """
    columns = [column] if isinstance(column, str) else list(column)
    if columns and columns[0] in (PARTITION_COLUMN, JOIN_PARTITION_COLUMN):
        ids = frame[columns[0]]
    else:
        ids = hash_object_dispatch(frame[columns] if columns else frame, index=False)
    ids = getattr(ids, "values", ids)
    dtype = np.min_scalar_type(max(npartitions - 1, 0))
    if len(ids) and (ids.min() < 0 or ids.max() >= npartitions):
        ids = ids % npartitions
    return ids.astype(dtype)


def partition_column(frame: Any, column: Any, ids: Any) -> tuple[int, Any] | None:
    """Return position and dtype of `PARTITION_COLUMN`, or None if ``ids`` do not restore it."""
    labels = list(frame.columns)
    if column not in (PARTITION_COLUMN, [PARTITION_COLUMN]) or labels.count(PARTITION_COLUMN) != 1:
        return None
    numbers = frame[PARTITION_COLUMN]
    if not isinstance(numbers.dtype, np.dtype) or not bool((numbers.values == ids).all()):
        return None
    return labels.index(PARTITION_COLUMN), numbers.dtype


def checksum(frame: Frame, columns: Sequence[Any]) -> tuple[tuple[str, ...], int]:
    """Compute a sum over the named columns of fixed width that no order of rows changes.

    It adds up words and their squares, modulo 2**64, at the speed of one read. So lost, duplicated
    and changed rows are detected. Dtypes are returned too: only sums of equal dtypes are
    comparable.
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


_kernels = Dispatch("kernels")
_device = Dispatch("device")
_HOST: Any = SimpleNamespace(
    partition_ids=partition_ids,
    partition_column=partition_column,
    counting_argsort=argsort.counting_argsort,
    to_wire=wire_format.to_wire,
    checksum=checksum,
    recode=sort_keys.recode,
    sort=sort_keys.sort,
    array=lambda _, values: values,
)


def register(kind: type, kernels: Any) -> None:
    """Register the kernels of a kind of frame."""
    _kernels.register(kind, lambda _: kernels)


def kernels(frame: Any) -> Kernels:
    """Return the kernels of a frame; those of pandas for kinds that are not registered."""
    return _kernels(frame)


def register_device(*kinds: type) -> None:
    """Register kinds of data that are stored on a GPU."""
    for kind in kinds:
        _device.register(kind, lambda _: True)


def on_device(data: Any) -> bool:
    """Return whether data, or their metadata, are of a kind that is stored on a GPU."""
    return bool(_device(data))


register(object, _HOST)
_device.register(object, lambda _: False)


def _register_cudf() -> None:
    from dask_exo.partitions import cudf_partition

    cudf_partition.register()


for _dispatch in (_kernels, _device):
    _dispatch.register_lazy("cudf", _register_cudf)
