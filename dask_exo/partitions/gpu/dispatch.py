"""Dispatch functions of Dask for GPU frames.

Frames of Dask's metadata are empty and in host memory, so that building a graph needs no GPU.

References: ``dask/dataframe/dispatch.py``, ``dask/dataframe/backends.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dask.array.dispatch import percentile_lookup
from dask.dataframe.dispatch import (
    concat_dispatch,
    from_pyarrow_table_dispatch,
    get_parallel_type,
    group_split_dispatch,
    grouper_dispatch,
    hash_object_dispatch,
    make_meta_dispatch,
    make_meta_obj,
    meta_nonempty,
    pyarrow_schema_dispatch,
    to_pandas_dispatch,
    to_pyarrow_table_dispatch,
    tolist_dispatch,
)
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
    frame = make_meta_obj.dispatch(pd.DataFrame)(description, index=index)
    return _convert(frame)


def _with_rows(meta: Any) -> Any:
    """Return metadata with two rows; Dask asks for them several times for each expression."""
    described = _description(meta)
    if described not in _nonempty:
        host = meta.to_pandas()
        if len(_nonempty) >= MOST_KEPT:
            _nonempty.clear()
        _nonempty[described] = _convert(meta_nonempty.dispatch(type(host))(host))
    return _nonempty[described].copy()


MOST_KEPT = 1000
_nonempty: dict[Any, Any] = {}


def _description(meta: Any) -> Any:
    is_index = isinstance(meta, DeviceIndex)
    levels, names, numbers, _ = (meta if is_index else meta.index).parts
    rows = names, numbers, tuple(level.dtype for level in levels or ())
    if is_index:
        return rows
    labels = tuple(meta.columns) if isinstance(meta, DeviceFrame) else meta.name
    return type(meta), labels, tuple(column.dtype for column in meta.arrays), rows


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
    host = from_pyarrow_table_dispatch(meta.to_pandas(), table, **options)
    return to_device(host, meta.module)


_OF_ALL: list[tuple[Any, Any]] = [
    (concat_dispatch, concat),
    (hash_object_dispatch, hashes),
    (make_meta_dispatch, _empty),
    (make_meta_obj, _of_description),
    (meta_nonempty, _with_rows),
    (percentile_lookup, _percentile),
    (to_pandas_dispatch, lambda part, **_: part.to_pandas()),
    (tolist_dispatch, lambda part: part.to_pandas().tolist()),
]
_OF_FRAMES: list[tuple[Any, Any]] = [
    (from_pyarrow_table_dispatch, _from_table),
    (group_split_dispatch, _split),
    (pyarrow_schema_dispatch, lambda part, **o: pyarrow_schema_dispatch(part.to_pandas(), **o)),
    (to_pyarrow_table_dispatch, lambda part, **o: to_pyarrow_table_dispatch(part.to_pandas(), **o)),
]


def register() -> None:
    """Register the dispatch functions and kernels of GPU frames."""
    for kind, model in _MODELS.items():
        for types in (get_collection_type, get_parallel_type):
            types.register(kind, types.dispatch(model))
        sizeof.register(kind, lambda part: part.nbytes)
        grouper_dispatch.register(kind, lambda _: pd.Grouper)
    for dispatch, function in _OF_ALL:
        dispatch.register(KINDS, function)
    for dispatch, function in _OF_FRAMES:
        dispatch.register(DeviceFrame, function)
    for rows in (DeviceFrame, DeviceSeries):
        register_copy(rows, lambda part: part.each(Column.copied))  # labels are immutable
    register_copy(DeviceIndex, DeviceIndex.copy)
    protocol.register(DeviceFrame, shuffle)
    protocol.register_device(*KINDS)
