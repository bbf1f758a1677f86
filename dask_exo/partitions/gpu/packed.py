"""Copy a whole frame between GPUs, or to the host, as one packed buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu import arrays, memory, staging
from dask_exo.partitions.gpu_columns.column import Column
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex


class PackedFrame(NamedTuple):
    """GPU frame as one buffer in host memory.

    Attributes
    ----------
    buffer : (b,) bytes
    places : tuple of Place
        Positions of the values of all columns, and then of their masks.
    columns : tuple of Column
        (c,) columns of the frame and then of the index, without rows.
    masked : tuple of int
        Numbers of the columns that have a mask.
    labels : Index
        Of the columns.
    rows : tuple
        Names of the levels of the index, and its range if it is one.
    module : str
        Array module of the frame: numpy or cupy.
    """

    buffer: np.ndarray
    places: tuple[staging.Place, ...]
    columns: tuple[Column, ...]
    masked: tuple[int, ...]
    labels: pd.Index
    rows: tuple[Any, ...]
    module: str

    def frame(self, module: str) -> DeviceFrame:
        """Restore the frame on a GPU, or on the host as arrays of numpy."""
        buffer = self.buffer
        if module == self.module:
            buffer = staging.to_device(buffer, arrays.module(module))
        found = staging.unpack(buffer, self.places)
        masks = dict(zip(self.masked, found[len(self.columns) :], strict=True))
        made = [
            replace(column, values=values, valid=masks.get(i))
            for i, (column, values) in enumerate(zip(self.columns, found, strict=False))
        ]
        count = len(self.labels)
        names, numbers = self.rows
        levels = None if numbers is not None else made[count:]
        index = DeviceIndex.of(levels, names, numbers, module)
        return DeviceFrame.of(made[:count], self.labels, index)


def begin(frame: DeviceFrame) -> Callable[[], PackedFrame]:
    """Start to copy a frame to the host; return a function that waits for the copy."""
    levels, names, numbers, module = frame.index.parts
    columns = [*frame.arrays, *(levels if numbers is None and levels else ())]
    masked = tuple(i for i, column in enumerate(columns) if column.valid is not None)
    several = [column.values for column in columns]
    several += [columns[i].valid for i in masked]
    buffer, places = staging.pack(several, arrays.module(module))
    coming = staging.to_host(buffer)
    none = np.empty(0, np.int8)
    described = tuple(replace(column, values=none, valid=None) for column in columns)
    rows = names, numbers
    return lambda: PackedFrame(coming(), places, described, masked, frame.labels, rows, module)


def unpacked(*parts: Any) -> DeviceFrame:
    """Restore a frame from the fields of a `PackedFrame`."""
    packed = PackedFrame(*parts)
    memory.prepare(packed.module)
    return packed.frame(packed.module)
