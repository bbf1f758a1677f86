"""GPU series: one column with an index and a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import interop, reductions, sort_keys, transform
from dask_exo.partitions.gpu_frames.column import NUMBERS, TEXT, Column, unsupported
from dask_exo.partitions.gpu_frames.elementwise import binary, refuse
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas, numbered
from dask_exo.partitions.gpu_frames.rows import LabelledRows, as_mask, not_aligned
from dask_exo.partitions.gpu_frames.sort_keys import group_rows
from dask_exo.partitions.gpu_frames.transform import cast, stack

_OPERATORS = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv",
              "true_divide": "truediv", "power": "pow"}  # fmt: skip


class DeviceSeries(LabelledRows):
    """Series in GPU memory with the interface of a pandas Series.

    The constructor copies values of the host to numpy, which simulates a GPU; see `from_pandas`.
    """

    name: Any
    ndim = 1

    def __init__(
        self, data: Any = (), index: Any = None, dtype: Any = None, name: Any = None
    ) -> None:
        series = pd.Series(data, index, dtype, name)
        self.arrays: list[Column] = [interop.from_pandas(series, np)]
        self._index, self.name = from_pandas(series.index, arrays.HOST), series.name

    @classmethod
    def of(cls, column: Column, index: DeviceIndex, name: Any = None) -> DeviceSeries:
        """Make a series of a column and an index."""
        series = cls.__new__(cls)
        series.arrays, series._index, series.name = [column], index, name
        return series

    @classmethod
    def from_pandas(cls, series: pd.Series, module: str) -> DeviceSeries:
        """Copy a pandas series to the GPU."""
        column = interop.from_pandas(series, arrays.module(module))
        return cls.of(column, from_pandas(series.index, module), series.name)

    def _with(self, columns: Sequence[Column], index: DeviceIndex | None = None) -> DeviceSeries:
        return DeviceSeries.of(columns[0], self._index if index is None else index, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceSeries.of, (self.column, self._index, self.name)

    @property
    def column(self) -> Column:
        """The only column."""
        return self.arrays[0]

    @property
    def dtype(self) -> Any:
        """The dtype of pandas."""
        return self.column.dtype

    dtypes = dtype

    @property
    def shape(self) -> tuple[int]:
        """Number of rows."""
        return (len(self),)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the index."""
        return self.column.nbytes

    def to_pandas(self) -> pd.Series:
        """Copy to pandas, on the host."""
        return pd.Series(self.array, self._index.to_pandas(), self.dtype, self.name)

    @property
    def array(self) -> Any:
        """Values on the host, as an extension array or array of pandas."""
        return interop.to_array(self.column)

    @property
    def values(self) -> Any:
        """(n,) values: the GPU array of numbers without a mask, `array` for others."""
        if self.column.kind in NUMBERS and not self.column.nullable:
            return self.column.values
        return self.array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or len(inputs) > 2:
            return NotImplemented
        if len(inputs) == 1:
            return self.each(lambda column: transform.ufunc(column, ufunc.__name__))
        if ufunc.__name__ not in _OPERATORS:
            return NotImplemented
        reflected = inputs[0] is not self
        other = inputs[0] if reflected else inputs[1]
        return self.apply_operator(_OPERATORS[ufunc.__name__], other, reflected=reflected)

    @property
    def __cuda_array_interface__(self) -> Any:
        if not hasattr(self.values, "__cuda_array_interface__"):
            raise AttributeError("the values are not on a GPU, or are not plain numbers")
        return self.column.expose().__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_pandas())

    def __getattr__(self, name: str) -> Any:
        return refuse(self, pd.Series, name)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.take_rows(key)
        return self.loc[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.arrays = self.put(key, value).arrays

    def put(self, mask: Any, value: Any) -> DeviceSeries:
        """Replace the values that a mask marks."""
        value = value.column if isinstance(value, DeviceSeries) else value
        return self._with([transform.choose(~self.positions(as_mask(mask)), self.column, value)])

    def apply_operator(self, name: Any, other: Any, *, reflected: bool = False) -> Any:
        """Apply an operator elementwise, to rows of equal labels."""
        if hasattr(other, "columns"):
            return NotImplemented
        label = self.name
        if isinstance(other, DeviceSeries):
            if not self._index.equals(other.index):
                raise not_aligned(name, self, other)
            label = self.name if self.name == other.name else None
            other = other.column
        elif isinstance(other, DeviceIndex):
            other = other.column
        elif hasattr(other, "shape") and getattr(other, "ndim", 0) == 1:
            other = Column(self.column.xp.asarray(other), np.dtype(other.dtype))
        sides = (other, self.column) if reflected else (self.column, other)
        return DeviceSeries.of(binary(name, *sides), self._index, label)

    def astype(self, dtype: Any, **_: Any) -> DeviceSeries:
        """Convert values to another dtype."""
        dtype = dtype.get(self.name, self.dtype) if isinstance(dtype, dict) else dtype
        return self._with([cast(self.column, dtype)])

    def fillna(self, value: Any = None, **_: Any) -> DeviceSeries:
        """Replace nulls by a value."""
        value = value.column if isinstance(value, DeviceSeries) else value
        return self._with([transform.fill(self.column, value)])

    def rename(self, index: Any = None, **_: Any) -> DeviceSeries:
        """Rename the series."""
        if callable(index) or isinstance(index, dict):
            raise unsupported("Series.rename of labels", "assign .index")
        return DeviceSeries.of(self.column, self._index, index)

    def to_frame(self, name: Any = None) -> Any:
        """Make a frame of the column."""
        from dask_exo.partitions.gpu_frames.frame import DeviceFrame

        name = self.name if name is None else name
        return DeviceFrame.of(self.arrays, pd.Index([0 if name is None else name]), self._index)

    def reset_index(self, level: Any = None, *, drop: bool = False, name: Any = None) -> Any:
        """Reset the index to row numbers; it becomes columns, unless it is dropped."""
        if drop and level is None:
            return self.numbered()
        return self.to_frame(name).reset_index(level, drop=drop)

    def _as_frame(self, change: Callable[[Any], Any]) -> DeviceSeries:
        """Apply a function to a frame of the only column "x"."""
        frame = change(self.to_frame("x"))
        return self._with(frame.arrays, frame.index)

    def reindex(self, labels: DeviceIndex) -> DeviceSeries:
        """Take rows by label; missing labels give nulls."""
        from dask_exo.partitions.gpu_frames.merge import pairs

        left, rows = pairs(labels.levels, self._index.levels, "left")
        if len(left) != len(labels):
            raise ValueError("cannot reindex on an axis with duplicate labels")
        return self._with([self.column.take_or_null(rows, name=self.name)], labels)

    def sort_values(self, **options: Any) -> DeviceSeries:
        """Sort rows by the values in a stable way; see `DeviceFrame.sort_values`."""
        return self._as_frame(lambda frame: frame.sort_values("x", **options))

    def dropna(self, **_: Any) -> DeviceSeries:
        """Drop rows that are null."""
        nulls = self.column.nulls()
        return self.take_rows(~nulls) if bool(nulls.any()) else self

    def drop_duplicates(self, **options: Any) -> DeviceSeries:
        """Drop rows whose values another row has; see `DeviceFrame.drop_duplicates`."""
        return self._as_frame(lambda frame: frame.drop_duplicates(**options))

    def searchsorted(self, value: Any, side: Any = "left") -> Any:
        """Count the sorted values before each of (m,) others; nulls are last."""
        if not isinstance(value, DeviceSeries):
            raise unsupported("searchsorted of values on the host")
        other, xp = value.column, value.column.xp
        column = self.column
        if column.xp is not xp:
            column = interop.from_pandas(self.to_pandas(), xp)
        values = stack([column, other])
        is_coded = column.kind == TEXT
        keys = values.values.astype(np.int64) if is_coded else sort_keys.ascending(values)
        return xp.searchsorted(keys[: len(column)], keys[len(column) :], side=side)

    def unique(self) -> DeviceSeries:
        """Return distinct values, in order of appearance."""
        grouped = group_rows([sort_keys.encode(self.column)], sort=False)
        return self._with([self.column.take(grouped.first)], numbered(grouped.count, self.module))

    def quantile(self, q: Any = 0.5, interpolation: Any = "linear") -> Any:
        """Compute quantiles, on the host."""
        column = reductions.quantile(self.column, np.atleast_1d(q), interpolation)
        quantiles = pd.Series(interop.to_array(column), dtype=column.dtype)
        if pd.api.types.is_scalar(q):
            return quantiles.iloc[0]
        return pd.Series(quantiles.array, pd.Index(q), name=self.name)


def _reduction(name: str) -> Callable[..., Any]:
    supported = {"skipna", "min_count", "ddof", "dropna"}

    def run(self: DeviceSeries, axis: Any = None, **options: Any) -> Any:  # noqa: ARG001
        chosen = {k: v for k, v in options.items() if k in supported}
        return reductions.reduce(name, self.column, **chosen)

    run.__doc__ = f"Reduce the values by {name}."
    return run


for _name in reductions.AGGREGATIONS:
    setattr(DeviceSeries, _name, _reduction(_name))
