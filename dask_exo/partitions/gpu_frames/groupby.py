"""Groupby of GPU frames and series."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, reduce
from operator import or_
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import Column, unsupported
from dask_exo.partitions.gpu_frames.elementwise import refuse
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex
from dask_exo.partitions.gpu_frames.reductions import AGGREGATIONS
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.gpu_frames.sort_keys import Groups, group_rows


class DeviceGroupBy:
    """Groupby object of a GPU frame or series, with the interface of pandas."""

    def __init__(
        self,
        obj: Any,
        by: Any = None,
        *,
        level: Any = None,
        sort: bool = True,
        dropna: bool = True,
        as_index: bool = True,
        **_: Any,
    ) -> None:
        if not as_index:
            raise unsupported("groupby(as_index=False)", "use .reset_index() of the result")
        self.obj = obj
        self._sort, self._dropna = bool(sort), dropna is not False
        self.keys, self._labels = _keys(obj, by, level)
        self._selection: Any = None

    @property
    def grouping(self) -> SimpleNamespace:
        """Keys, under the name that Dask expects of cudf."""
        return SimpleNamespace(keys=self.keys)

    @cached_property
    def row_groups(self) -> Groups:
        """Groups of the rows."""
        columns = [key.column for key in self.keys]
        masks = [c.nulls() for c in columns if self._dropna and not c.never_null]
        nulls = reduce(or_, masks) if masks else None
        return group_rows([sort_keys.encode(c) for c in columns], nulls, sort=self._sort)

    def __getitem__(self, key: Any) -> DeviceGroupBy:
        labels = self.obj.columns
        if isinstance(key, (set, pd.Index)) or (isinstance(key, tuple) and key not in labels):
            key = list(key)
        names = key if isinstance(key, list) else [key]
        if missing := [name for name in names if name not in labels]:
            raise KeyError(f"Columns not found: {missing}")
        grouped = DeviceGroupBy.__new__(DeviceGroupBy)
        _ = self.row_groups  # once for all selections
        grouped.__dict__.update(self.__dict__)
        grouped._selection = key
        return grouped

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("obj", "keys"):
            raise AttributeError(name)
        if isinstance(self.obj, DeviceFrame) and name in self.obj.columns:
            return self[name]
        return refuse(self, pd.core.groupby.DataFrameGroupBy, name)

    @property
    def _index(self) -> DeviceIndex:
        groups = self.row_groups
        levels = [key.column.take(groups.first) for key in self.keys]
        return DeviceIndex.of(levels, [key.name for key in self.keys])

    def _values(self) -> Any:
        """Return the columns to aggregate: a frame or a series."""
        if isinstance(self.obj, DeviceSeries):
            return self.obj
        if self._selection is not None:
            return self.obj[self._selection]
        places = [i for i, label in enumerate(self.obj.columns) if label not in self._labels]
        return self.obj.choose_columns(places)

    def _reduced(self, change: Callable[[Column], Column], *, numeric_only: bool = False) -> Any:
        values = self._values()
        index = self._index
        if isinstance(values, DeviceSeries):
            return DeviceSeries.of(change(values.column), index, values.name)
        if numeric_only:
            values = values._get_numeric_data()
        return DeviceFrame.of([change(c) for c in values.arrays], values.columns, index)

    def size(self) -> Any:
        """Count the rows of each group."""
        column = Column(self.row_groups.sizes, np.dtype(np.int64))
        name = self.obj.name if isinstance(self.obj, DeviceSeries) else None
        return DeviceSeries.of(column, self._index, name)


def _keys(obj: Any, by: Any, level: Any) -> tuple[list[DeviceSeries], set[Any]]:
    """Return the key columns, and the labels of those that are in the frame."""
    if by is None:
        levels = list(level) if isinstance(level, (list, tuple)) else [level]
        index = obj.index
        places = [index.place(item) for item in levels]
        return [DeviceSeries.of(index.levels[i], index, index.names[i]) for i in places], set()
    items = list(by) if isinstance(by, (list, pd.Index)) else [by]
    # Dask passes its own expressions when it computes metadata
    items = [getattr(item, "_meta", item) for item in items]
    labels = {item for item in items if not hasattr(item, "column")}
    keys = []
    for item in items:
        if hasattr(item, "column"):
            keys.append(DeviceSeries.of(item.column, obj.index, item.name))
        elif isinstance(obj, DeviceFrame) and item in obj.columns:
            keys.append(obj[item])
        elif item in obj.index.names:
            keys.append(DeviceSeries.of(obj.index.levels[obj.index.place(item)], obj.index, item))
        else:
            raise KeyError(item)
    return keys, labels


def _aggregation(name: str) -> Callable[..., Any]:
    compute = AGGREGATIONS[name]
    supported = {"ddof", "min_count", "dropna"}

    def run(self: DeviceGroupBy, numeric_only: Any = None, **options: Any) -> Any:
        arguments = {k: v for k, v in options.items() if k in supported}
        return self._reduced(
            lambda column: compute(column, self.row_groups, **arguments),
            numeric_only=numeric_only is True,
        )

    run.__doc__ = f"Reduce the columns of each group by {name}."
    return run


for _name in AGGREGATIONS:
    setattr(DeviceGroupBy, _name, _aggregation(_name))
