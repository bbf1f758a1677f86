"""Dispatch functions of Dask for GPU frames.

Frames of Dask's metadata are empty and in host memory, so that building a graph needs no GPU.

References: ``dask/dataframe/dispatch.py``, ``dask/dataframe/backends.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dask.array.dispatch import percentile_lookup
from dask.dataframe import dispatch as of_dask
from dask.sizeof import sizeof

from dask_exo.cluster.ownership import register_copy
from dask_exo.dask_adapter import get_collection_type
from dask_exo.partitions import protocol
from dask_exo.partitions.gpu import arrays, memory, shuffle
from dask_exo.partitions.gpu_frames import interop, reductions
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex
from dask_exo.partitions.gpu_frames.index import from_pandas as index_from_pandas
from dask_exo.partitions.gpu_frames.merge import concat
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.kernels.hash_partition import combine

_MODELS = {DeviceFrame: pd.DataFrame, DeviceSeries: pd.Series, DeviceIndex: pd.Index}
KINDS = tuple(_MODELS)
"""Classes of data on a GPU."""


def to_device(part: Any, module: str) -> Any:
    """Copy a frame, series or index of pandas to the GPU; return others as they are."""
    memory.prepare(module)
    if isinstance(part, pd.DataFrame) and module != arrays.HOST:
        return shuffle.start_to_gpu(part, module)()
    return _convert(part, module)


def _convert(part: Any, module: str = arrays.HOST) -> Any:
    if isinstance(part, pd.DataFrame):
        return DeviceFrame.from_pandas(part, module)
    if isinstance(part, pd.Series):
        return DeviceSeries.from_pandas(part, module)
    return index_from_pandas(part, module) if isinstance(part, pd.Index) else part


def _empty(part: Any, index: Any = None) -> Any:  # noqa: ARG001
    rows = slice(0, 0)
    empty = part.take(rows) if isinstance(part, DeviceIndex) else part.take_rows(rows)
    return empty if empty.module == arrays.HOST else _convert(empty.to_pandas())


def _of_description(description: Any, index: Any = None) -> Any:
    index = index.to_pandas() if isinstance(index, DeviceIndex) else index
    frame = of_dask.make_meta_obj.dispatch(pd.DataFrame)(description, index=index)
    return _convert(frame)


def _with_rows(meta: Any) -> Any:
    host = meta.to_pandas()
    return _convert(of_dask.meta_nonempty.dispatch(type(host))(host))


def hashes(obj: Any, index: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
    """Hash rows, as `pandas.util.hash_pandas_object`."""
    if isinstance(obj, DeviceIndex):
        obj, index = obj.to_series(), False
    is_frame = isinstance(obj, DeviceFrame)
    hashed = [shuffle.hash_column(column) for column in (obj.arrays if is_frame else [obj.column])]
    if index:
        hashed += [shuffle.hash_column(level) for level in obj.index.levels]
    combined = combine(hashed) if is_frame or index else hashed[0]
    return DeviceSeries.of(Column(combined, np.dtype(np.uint64)), obj.index)


def _split(frame: Any, places: Any, count: int, ignore_index: bool = False) -> dict[int, Any]:  # noqa: FBT001, FBT002
    order, offsets = shuffle.counting_argsort(frame.positions(places), count)
    ordered = frame.take_rows(order)
    parts = [ordered.take_rows(slice(offsets[i], offsets[i + 1])) for i in range(count)]
    return dict(enumerate(p.numbered() for p in parts) if ignore_index else enumerate(parts))


def _percentile(series: Any, q: Any, interpolation: str = "linear") -> tuple[Any, int]:
    column = series.column.take(~series.column.nulls())
    if not len(column):
        return None, 0
    how = interpolation if column.kind in "biuf" else "nearest"
    values = interop.to_array(reductions.quantile(column, np.asarray(q) / 100, how))
    return values, len(column)


def _from_table(meta: Any, table: Any, **options: Any) -> Any:
    host = of_dask.from_pyarrow_table_dispatch(meta.to_pandas(), table, **options)
    return to_device(host, meta.module)


def _on_host(function: Any) -> Any:
    return lambda part, **options: function(part.to_pandas(), **options)


_OF_ALL: list[tuple[Any, Any]] = [
    (of_dask.concat_dispatch, concat),
    (of_dask.hash_object_dispatch, hashes),
    (of_dask.make_meta_dispatch, _empty),
    (of_dask.make_meta_obj, _of_description),
    (of_dask.meta_nonempty, _with_rows),
    (percentile_lookup, _percentile),
    (of_dask.to_pandas_dispatch, lambda part, **_: part.to_pandas()),
    (of_dask.tolist_dispatch, lambda part: part.to_pandas().tolist()),
]
_OF_FRAMES: list[tuple[Any, Any]] = [
    (of_dask.from_pyarrow_table_dispatch, _from_table),
    (of_dask.group_split_dispatch, _split),
    (of_dask.pyarrow_schema_dispatch, _on_host(of_dask.pyarrow_schema_dispatch)),
    (of_dask.to_pyarrow_table_dispatch, _on_host(of_dask.to_pyarrow_table_dispatch)),
]


def register() -> None:
    """Register the dispatch functions and kernels of GPU frames."""
    for kind, model in _MODELS.items():
        for types in (get_collection_type, of_dask.get_parallel_type):
            types.register(kind, types.dispatch(model))
        sizeof.register(kind, lambda part: part.nbytes)
        of_dask.grouper_dispatch.register(kind, lambda _: pd.Grouper)
    for dispatch, function in _OF_ALL:
        dispatch.register(KINDS, function)
    for dispatch, function in _OF_FRAMES:
        dispatch.register(DeviceFrame, function)
    for rows in (DeviceFrame, DeviceSeries):
        register_copy(rows, lambda part: part.each(Column.copied))  # labels are immutable
    register_copy(DeviceIndex, DeviceIndex.copy)
    protocol.register(DeviceFrame, shuffle)
    protocol.register_device(*KINDS)
