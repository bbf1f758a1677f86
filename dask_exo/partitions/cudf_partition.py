"""Shuffle kernels of cudf frames: rows are hashed and gathered on their GPU.

Hashing, concatenation and metadata are those that ``dask_cudf`` registers with Dask. This module
has not run on a GPU; its tests use a stand-in for cudf.

References: ``cudf.DataFrame.to_arrow``, ``dask_cudf/backends.py``.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

import numpy as np
from dask.dataframe.dispatch import hash_object_dispatch

from dask_exo.cluster.ownership import register_copy
from dask_exo.config import Config
from dask_exo.errors import DeviceOperationError
from dask_exo.partitions import protocol
from dask_exo.partitions.gpu import arrays, shuffle
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import WireTable

LIBRARY = "cudf"

counting_argsort = shuffle.counting_argsort
partition_column = protocol.partition_column
partition_ids = protocol.partition_ids


def to_wire(frame: Any, order: Any, *, ignore_index: bool = False) -> WireTable:
    """Copy rows in a new order to host memory."""
    rows = frame.take(order)
    index, names = rows.index, () if ignore_index else tuple(rows.index.names)
    plain = rows.reset_index(drop=True)
    plain.columns = [str(i) for i in range(len(frame.columns))]
    for i in range(len(names)):
        level = index if len(names) == 1 else index.get_level_values(i)
        plain[str(len(frame.columns) + i)] = level
    return WireTable(plain.to_arrow(preserve_index=False), LIBRARY, frame.columns, names)


def checksum(frame: Any, columns: Any) -> tuple[tuple[str, ...], int]:
    """Return the dtypes, and the sum of the hashes of rows, for every dtype."""
    labels = [name for name in columns if name in frame.columns]
    total = 0
    if labels and len(frame):
        total = int(hash_object_dispatch(frame[labels], index=False).astype("uint64").sum())
    return tuple(str(frame[name].dtype) for name in labels), total % 2**64


def sort(frame: Any, keys: Sequence[SortKey]) -> Any:
    """Raise `DeviceOperationError`: use the sort of Dask."""
    raise DeviceOperationError(
        f"ddf.exo.sort_values by {[key.name for key in keys]} does not support partitions of "
        f"{type(frame).__module__}: use ddf.sort_values, or .to_backend('exo-cupy') before"
    )


recode = sort


def array(_: Any, values: np.ndarray) -> Any:
    """Copy an array of the host to the GPU."""
    return arrays.module(arrays.DEVICE).asarray(values)


def register() -> None:
    """Register these kernels for cudf, and that its data are stored on a GPU."""
    library = importlib.import_module(LIBRARY)
    protocol.register(library.DataFrame, importlib.import_module(__name__))
    prepare_memory()
    kinds = library.DataFrame, library.Series, library.Index
    protocol.register_device(*kinds)
    for kind in kinds:
        register_copy(kind, methodcaller("copy", deep=True))


def prepare_memory() -> None:
    """Pool GPU memory, up to the worker's share, unless the program does; let frames spill.

    cudf looks at its option for that when it makes the first frame, which has happened.
    """
    memory = importlib.import_module("rmm").mr
    if type(memory.get_current_device_resource()) is memory.CudaMemoryResource:  # RMM's default
        pool, share = memory.CudaAsyncMemoryResource(), Config.current().gpu_per_task
        if share < 1:
            limit = int(share * memory.available_device_memory()[1])
            pool = memory.LimitingResourceAdaptor(pool, limit)
        memory.set_current_device_resource(pool)
    spilling = importlib.import_module(f"{LIBRARY}.core.buffer.spill_manager")
    if spilling.get_global_manager() is None:
        spilling.set_global_manager(spilling.SpillManager())
        with contextlib.suppress(ValueError):  # the program handles failed allocations itself
            spilling.set_spill_on_demand_globally()
