"""Elementwise operations on a GPU series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu_frames import transform
from dask_exo.partitions.gpu_frames.column import NUMBERS, Column, as_nullable
from dask_exo.partitions.gpu_frames.elementwise import Operators, binary
from dask_exo.partitions.gpu_frames.index import DeviceIndex
from dask_exo.partitions.gpu_frames.interop import map_distinct
from dask_exo.partitions.gpu_frames.rows import LabelledRows, mask
from dask_exo.partitions.gpu_frames.transform import cast


class ValuesOfSeries(Operators, LabelledRows):
    """Mixin of `DeviceSeries`: elementwise operations."""

    column: Column
    name: Any
    of: Callable[..., Any]

    @property
    def dtype(self) -> Any:
        """The dtype of pandas."""
        return self.column.dtype

    def _like(self, column: Column) -> Any:
        return self.of(column, self._index, self.name)

    def _flags(self, values: Any) -> Any:
        return self._like(Column(values, np.dtype(bool)))

    def apply_operator(self, name: Any, other: Any, *, reflected: bool = False) -> Any:
        """Apply an operator elementwise."""
        if hasattr(other, "columns"):
            return NotImplemented
        label = self.name
        if isinstance(other, ValuesOfSeries):
            self._check_labels(other, name)
            label = self.name if self.name == other.name else None
            other = other.column
        elif isinstance(other, DeviceIndex):
            other = other.column
        elif hasattr(other, "shape") and getattr(other, "ndim", 0) == 1:
            xp = self.column.xp
            other = Column(xp.asarray(other), np.dtype(other.dtype))
        made = binary(name, *((other, self.column) if reflected else (self.column, other)))
        return self.of(made, self._index, label)

    def _check_labels(self, other: Any, name: Any) -> None:
        if not self._index.equals(other.index):
            raise DeviceOperationError(
                f"{name} of {len(self)} and {len(other)} rows under different labels does not "
                f"exist on a device, which does not align rows: merge them on the index, or use "
                f".to_backend('pandas')"
            )

    def __neg__(self) -> Any:
        return self._like(transform.negative(self.column))

    def __invert__(self) -> Any:
        return self._like(transform.inverted(self.column))

    def __abs__(self) -> Any:
        return self.abs()

    def abs(self) -> Any:
        """Return absolute values."""
        return self._like(transform.absolute(self.column))

    def round(self, decimals: int = 0) -> Any:
        """Round values to some decimals."""
        return self._like(transform.rounded(self.column, decimals))

    def clip(self, lower: Any = None, upper: Any = None, **_: Any) -> Any:
        """Clip values to two bounds."""
        made = self
        if lower is not None:
            made = made.where((made >= lower) | made.isna(), lower)
        return made if upper is None else made.where((made <= upper) | made.isna(), upper)

    def between(self, left: Any, right: Any, inclusive: Any = "both") -> Any:
        """Return whether values are between two bounds."""
        low = self >= left if inclusive in ("both", "left") else self > left
        high = self <= right if inclusive in ("both", "right") else self < right
        return low & high

    def isin(self, values: Any) -> Any:
        """Return whether values are among some."""
        dtype = as_nullable(bool, self.dtype)
        return self._like(Column(transform.is_in(self.column, values), dtype))

    def isna(self) -> Any:
        """Return which values are null."""
        return self._flags(self.column.nulls())

    isnull = isna

    def notna(self) -> Any:
        """Return which values are not null."""
        return self._flags(~self.column.nulls())

    notnull = notna

    def fillna(self, value: Any = None, **_: Any) -> Any:
        """Replace nulls by a value."""
        value = value.column if isinstance(value, ValuesOfSeries) else value
        return self._like(transform.fill(self.column, value))

    def ffill(self, **_: Any) -> Any:
        """Replace nulls by the last value before."""
        return self._like(transform.propagate(self.column))

    def bfill(self, **_: Any) -> Any:
        """Replace nulls by the next value."""
        return self._like(transform.propagate(self.column, backward=True))

    def where(self, cond: Any, other: Any = np.nan, **_: Any) -> Any:
        """Choose values where a condition holds, and others elsewhere."""
        other = other.column if isinstance(other, ValuesOfSeries) else other
        return self._like(transform.choose(mask(cond), self.column, other))

    def mask(self, cond: Any, other: Any = np.nan, **_: Any) -> Any:
        """Replace values where a condition holds."""
        return self.where(~mask(cond), other)

    def replace(self, to_replace: Any = None, value: Any = None, **_: Any) -> Any:
        """Replace some values by another one."""
        pairs = to_replace if isinstance(to_replace, dict) else {to_replace: value}
        column = self.column
        for old, new in pairs.items():
            column = transform.choose(~transform.is_in(self.column, [old]), column, new)
        return self._like(column)

    def map(self, arg: Any, na_action: Any = None) -> Any:  # noqa: ARG002
        """Map distinct values with a function or dict of the host; nulls stay null."""
        if isinstance(arg, ValuesOfSeries):
            arg = arg.to_pandas()
        return self._like(map_distinct(self.column, lambda values: values.map(arg)))

    def astype(self, dtype: Any, **_: Any) -> Any:
        """Convert values to another dtype."""
        dtype = dtype.get(self.name, self.dtype) if isinstance(dtype, dict) else dtype
        return self._like(cast(self.column, dtype))

    def shift(self, periods: int = 1, fill_value: Any = None, **_: Any) -> Any:
        """Shift values by some rows; backwards for a negative number."""
        return self._like(transform.shifted(self.column, periods, fill_value, name=self.name))

    def diff(self, periods: int = 1) -> Any:
        """Subtract the values of rows before."""
        if self.column.kind in NUMBERS and not self.column.nullable and self.column.kind != "f":
            small = self.dtype in (np.dtype(np.int8), np.dtype(np.int16))
            return self.astype(np.float32 if small else np.float64).diff(periods)
        return self - self.shift(periods)


def _cumulation(name: Any) -> Callable[..., Any]:
    def run(self: ValuesOfSeries, axis: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ARG001
        return self._like(transform.cumulated(self.column, name))

    run.__doc__ = f"Cumulate the values: {name}."
    return run


for _name in ("cumsum", "cumprod", "cummin", "cummax"):
    setattr(ValuesOfSeries, _name, _cumulation(_name))
