"""Elementwise operations on a GPU frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu_frames import transform
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.gpu_frames.elementwise import Operators
from dask_exo.partitions.gpu_frames.frame_rows import RowsOfFrame
from dask_exo.partitions.gpu_frames.rows import mask
from dask_exo.partitions.gpu_frames.series import DeviceSeries


class ValuesOfFrame(Operators, RowsOfFrame):
    """Mixin of `DeviceFrame`: elementwise operations."""

    items: Callable[[], Any]

    def each(self, change: Callable[[Column], Column]) -> Any:
        """Apply a function to each column."""
        return self.of([change(c) for c in self.arrays], self.labels, self._index)

    def apply_operator(self, name: str, other: Any, *, reflected: bool = False) -> Any:
        """Apply an operator to all columns, with a scalar, a frame, or a value for each column."""
        if isinstance(other, ValuesOfFrame):
            self._check_labels(other)
            if not self.labels.equals(other.labels):
                raise DeviceOperationError(
                    f"{name} of frames with columns {list(self.labels)} and {list(other.labels)} "
                    f"does not exist on a device, which does not align them: choose the same"
                )
            others: list[Any] = [s for _, s in other.items()]
        elif isinstance(other, pd.Series):
            others = [other[label] for label in self.labels]
        elif isinstance(other, DeviceSeries):
            raise DeviceOperationError(
                f"{name} of a frame and a series does not exist on a device: apply it to columns"
            )
        else:
            others = [other] * len(self.arrays)
        made = [
            series.apply_operator(name, one, reflected=reflected).column
            for (_, series), one in zip(self.items(), others, strict=True)
        ]
        return self.of(made, self.labels, self._index)

    def _by_column(self, name: str, *args: Any, **options: Any) -> Any:
        made = [getattr(series, name)(*args, **options).column for _, series in self.items()]
        return self.of(made, self.labels, self._index)

    def __neg__(self) -> Any:
        return self.each(transform.negative)

    def __invert__(self) -> Any:
        return self.each(transform.inverted)

    def __abs__(self) -> Any:
        return self.each(transform.absolute)

    def round(self, decimals: int = 0) -> Any:
        """Round values to some decimals."""
        return self.each(lambda column: transform.rounded(column, decimals))

    def where(self, cond: Any, other: Any = np.nan, **_: Any) -> Any:
        """Choose values where a condition holds, and others elsewhere."""
        columns = []
        for i, column in enumerate(self.arrays):
            here = cond.arrays[i].values if isinstance(cond, ValuesOfFrame) else mask(cond)
            new = other.arrays[i] if isinstance(other, ValuesOfFrame) else other
            new = new.column if isinstance(new, DeviceSeries) else new
            columns.append(transform.choose(here, column, new))
        return self.of(columns, self.labels, self._index)

    def mask(self, cond: Any, other: Any = np.nan, **_: Any) -> Any:
        """Replace values where a condition holds."""
        return self.where(~cond, other)

    def fillna(self, value: Any = None, **_: Any) -> Any:
        """Replace nulls: by one value for all columns, or by label."""
        by_label = (
            value if isinstance(value, (dict, pd.Series)) else dict.fromkeys(self.labels, value)
        )
        columns = [
            transform.fill(column, by_label[label]) if label in by_label else column
            for label, column in zip(self.labels, self.arrays, strict=True)
        ]
        return self.of(columns, self.labels, self._index)

    def isin(self, values: Any) -> Any:
        """Return whether values are among some."""
        return self._by_column("isin", values)


def _each(name: str) -> Callable[..., Any]:
    def run(self: ValuesOfFrame, *args: Any, **options: Any) -> Any:
        return self._by_column(name, *args, **options)

    run.__doc__ = f"{getattr(DeviceSeries, name).__doc__} Of each column."
    return run


for _name in (
    *("abs", "bfill", "clip", "cummax", "cummin", "cumprod", "cumsum", "diff", "ffill"),
    *("isna", "isnull", "notna", "notnull", "replace", "shift"),
):
    setattr(ValuesOfFrame, _name, _each(_name))
