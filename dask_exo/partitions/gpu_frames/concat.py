"""Concatenation of GPU frames, series and indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu.stack import stack
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, concat_indexes, numbered
from dask_exo.partitions.gpu_frames.series import DeviceSeries


def concat(
    objects: Sequence[Any], axis: Any = 0, join: str = "outer", *, ignore_index: bool = False
) -> Any:
    """Concatenate along rows (axis 0) or columns (axis 1).

    Categories are united. Columns that a frame lacks are null in its rows.

    Raises
    ------
    DeviceOperationError
        Frames beside each other have different labels of rows.
    """
    if axis in (1, "columns"):
        return _beside(objects)
    if all(isinstance(one, DeviceIndex) for one in objects):
        return concat_indexes(objects)
    frames = [one for one in objects if isinstance(one, DeviceFrame)]
    if frames and len(frames) < len(objects):
        objects = [one if isinstance(one, DeviceFrame) else one.to_frame() for one in objects]
    index = concat_indexes([one.index for one in objects])
    if ignore_index:
        index = numbered(len(index), index.module)
    if not frames:
        names = {one.name for one in objects}
        column = stack([one.column for one in objects])
        return DeviceSeries.of(column, index, names.pop() if len(names) == 1 else None)
    return _below(objects, index, join)


def _below(frames: Sequence[DeviceFrame], index: DeviceIndex, join: str) -> DeviceFrame:
    first = frames[0]
    if all(first.columns.equals(frame.columns) for frame in frames[1:]):
        columns = [stack(some) for some in zip(*(f.arrays for f in frames), strict=True)]
        return DeviceFrame.of(columns, first.columns, index)
    empty = [pd.DataFrame([], columns=frame.columns) for frame in frames]
    labels = pd.concat(empty, join=join).columns
    columns = []
    for label in labels:
        model = next(frame[label].column for frame in frames if label in frame.columns)
        none = model.take(slice(0, 0))
        parts = [
            frame[label].column
            if label in frame.columns
            else none.take_or_null(model.xp.full(len(frame), -1), name=label)
            for frame in frames
        ]
        columns.append(stack(parts))
    return DeviceFrame.of(columns, labels, index)


def _beside(objects: Sequence[Any]) -> DeviceFrame:
    index = objects[0].index
    frames = [
        one if isinstance(one, DeviceFrame) else one.to_frame(i if one.name is None else None)
        for i, one in enumerate(objects)
    ]
    if not all(index.equals(frame.index) for frame in frames[1:]):
        raise DeviceOperationError(
            "frames beside each other must have the same labels of rows on a device, which does "
            "not align them: merge them on the index, or use .to_backend('pandas')"
        )
    labels = frames[0].columns
    for frame in frames[1:]:
        labels = labels.append(frame.columns)
    return DeviceFrame.of([c for frame in frames for c in frame.arrays], labels, index)
