"""GPU series: one column with an index and a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import interop, reductions, sort_keys, transform
from dask_exo.partitions.gpu_frames.accessors import Categories, Strings, Times
from dask_exo.partitions.gpu_frames.column import CATEGORY, NUMBERS, TEXT, Column
from dask_exo.partitions.gpu_frames.elementwise import refuse
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas, numbered
from dask_exo.partitions.gpu_frames.rows import mask
from dask_exo.partitions.gpu_frames.series_summary import SummaryOfSeries
from dask_exo.partitions.gpu_frames.transform import cast, stack


class DeviceSeries(SummaryOfSeries):
    """Series in GPU memory with the interface of a pandas Series.

    Parameters
    ----------
    data : Series or sequence, optional
        Values on the host; they are copied to numpy, which stands for the device.
    index, dtype, name
        As of `pandas.Series`.
    """

    def __init__(
        self, data: Any = (), index: Any = None, dtype: Any = None, name: Any = None
    ) -> None:
        if isinstance(data, DeviceSeries):
            column, labels = data.column, data.index
            name = data.name if name is None else name
        elif isinstance(data, DeviceIndex):
            column, labels = data.column, numbered(len(data), data.module)
        else:
            made = pd.Series(data, dtype=dtype, name=name)
            column = interop.from_pandas(made, np)
            labels, name = from_pandas(made.index, arrays.HOST), made.name
        self.column = column if dtype is None else cast(column, dtype)
        self._index, self.name = labels, name
        if index is not None:
            self.index = index

    @classmethod
    def of(cls, column: Column, index: DeviceIndex, name: Any = None) -> DeviceSeries:
        """Make a series of a column and an index."""
        made = cls.__new__(cls)
        made.column, made._index, made.name = column, index, name
        return made

    @classmethod
    def from_pandas(cls, series: pd.Series, module: str) -> DeviceSeries:
        """Copy a pandas series to the GPU."""
        column = interop.from_pandas(series, arrays.module(module))
        return cls.of(column, from_pandas(series.index, module), series.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceSeries.of, (self.column, self._index, self.name)

    def to_pandas(self) -> pd.Series:
        """Copy to pandas, on the host."""
        made = interop.to_array(self.column)
        return pd.Series(made, self._index.to_pandas(), self.dtype, self.name)

    @property
    def _constructor(self) -> type[DeviceSeries]:
        return DeviceSeries

    @property
    def _constructor_expanddim(self) -> Any:
        from dask_exo.partitions.gpu_frames.frame import DeviceFrame

        return DeviceFrame

    @property
    def dtypes(self) -> Any:
        """The dtype of pandas."""
        return self.column.dtype

    ndim = 1

    @property
    def shape(self) -> tuple[int]:
        """Number of rows."""
        return (len(self),)

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the index."""
        return self.column.nbytes

    def memory_usage(self, index: bool = True, deep: bool = False) -> int:  # noqa: ARG002, FBT001, FBT002
        """Bytes in memory."""
        return self.nbytes + (self._index.nbytes if index else 0)

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

    def to_numpy(self, dtype: Any = None, **options: Any) -> np.ndarray:
        """Copy the values to the host."""
        made = pd.Series(self.array, dtype=self.dtype)
        return np.asarray(made.to_numpy(dtype=dtype, **options))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.to_numpy(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or len(inputs) > 2:
            return NotImplemented
        if len(inputs) == 1:
            return self._like(transform.ufunc(self.column, ufunc.__name__))
        names = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv",
                 "true_divide": "truediv", "power": "pow"}  # fmt: skip
        if ufunc.__name__ not in names:
            return NotImplemented
        reflected = inputs[0] is not self
        other = inputs[0] if reflected else inputs[1]
        return self.apply_operator(names[ufunc.__name__], other, reflected=reflected)

    @property
    def __cuda_array_interface__(self) -> Any:
        if not hasattr(self.values, "__cuda_array_interface__"):
            raise AttributeError("the values are not on a GPU, or are not plain numbers")
        return self.values.__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_pandas())

    def tolist(self) -> list[Any]:
        """Return the values as Python objects."""
        return list(self.to_pandas().tolist())

    to_list = tolist

    def to_arrow(self) -> Any:
        """Copy the values to an Arrow array."""
        return interop.to_arrow(self.column)

    def __repr__(self) -> str:
        return f"DeviceSeries on {self.module}:\n{self.to_pandas()!r}"

    def __getattr__(self, name: str) -> Any:
        return refuse(self, pd.Series, name)

    @property
    def str(self) -> Strings:
        """Functions of strings."""
        return Strings(self.column, self._like)

    @property
    def dt(self) -> Times:
        """Functions of times."""
        return Times(self.column, self._like)

    @property
    def cat(self) -> Categories:
        """Functions of categories."""
        return Categories(self.column, self._like)

    def take_rows(self, rows: Any) -> DeviceSeries:
        """Take rows by positions, a mask or a slice."""
        return DeviceSeries.of(self.column.take(rows), self._index.take(rows), self.name)

    def take_or_null(self, rows: Any) -> DeviceSeries:
        """Take rows by positions, -1 giving nulls."""
        column = self.column.take_or_null(rows, name=self.name)
        return DeviceSeries.of(column, numbered(len(column), self.module), self.name)

    def with_index(self, index: DeviceIndex) -> DeviceSeries:
        """Replace the index."""
        return DeviceSeries.of(self.column, index, self.name)

    def row(self, place: int) -> Any:
        """Return one value."""
        if not -len(self) <= place < len(self):
            raise IndexError("single positional indexer is out-of-bounds")
        return reductions.scalar(self.column, place % len(self))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.take_rows(key)
        if pd.api.types.is_scalar(key):
            found = self.loc[key]
            return found.row(0) if len(found) == 1 else found
        return self.loc[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        value = value.column if isinstance(value, DeviceSeries) else value
        self.column = transform.choose(~self.positions(mask(key)), self.column, value)

    def squeeze(self, axis: Any = None) -> Any:  # noqa: ARG002
        """Return the only value, if there is one row."""
        return self.row(0) if len(self) == 1 else self

    def copy(self, deep: bool = True) -> DeviceSeries:  # noqa: ARG002, FBT001, FBT002
        """Return another series of the same immutable column."""
        return DeviceSeries.of(self.column, self._index, self.name)

    def rename(self, index: Any = None, **_: Any) -> DeviceSeries:
        """Rename the series."""
        if callable(index) or isinstance(index, dict):
            raise DeviceOperationError("rename of labels does not exist on a device: set .index")
        return DeviceSeries.of(self.column, self._index, index)

    def to_frame(self, name: Any = None) -> Any:
        """Make a frame of the column."""
        from dask_exo.partitions.gpu_frames.frame import DeviceFrame

        name = self.name if name is None else name
        label = pd.Index([0 if name is None else name])
        return DeviceFrame.of([self.column], label, self._index)

    def reset_index(self, level: Any = None, *, drop: bool = False, name: Any = None) -> Any:
        """Reset the index to row numbers; it becomes columns, unless it is dropped."""
        if drop and level is None:
            return self.numbered()
        return self.to_frame(name).reset_index(level, drop=drop)

    def sort_values(
        self,
        ascending: bool = True,  # noqa: FBT001, FBT002
        na_position: Any = "last",
        ignore_index: bool = False,  # noqa: FBT001, FBT002
        **_: Any,
    ) -> DeviceSeries:
        """Sort rows by the values in a stable way."""
        keys = sort_keys.of(
            self.column, descending=not ascending, nulls_first=na_position == "first"
        )
        made = self.take_rows(arrays.argsort(keys))
        return made.numbered() if ignore_index else made

    def nlargest(self, n: int = 5, keep: Any = "first") -> DeviceSeries:  # noqa: ARG002
        """Return the rows with the largest values."""
        return self.dropna().sort_values(ascending=False).head(n)

    def nsmallest(self, n: int = 5, keep: Any = "first") -> DeviceSeries:  # noqa: ARG002
        """Return the rows with the smallest values."""
        return self.dropna().sort_values().head(n)

    def dropna(self, **_: Any) -> DeviceSeries:
        """Drop rows that are null."""
        nulls = self.column.nulls()
        return self.take_rows(~nulls) if bool(nulls.any()) else self

    def drop_duplicates(self, keep: Any = "first", ignore_index: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002
        """Drop rows whose values occur before (or again)."""
        made = self.to_frame("x").drop_duplicates(keep=keep, ignore_index=ignore_index)
        return DeviceSeries.of(made["x"].column, made.index, self.name)

    def searchsorted(self, value: Any, side: Any = "left") -> Any:
        """Count the (m,) sorted values before each of others; nulls come before none."""
        one = pd.api.types.is_scalar(value)
        other = (
            value if isinstance(value, DeviceSeries) else DeviceSeries([value] if one else value)
        )
        xp = other.column.xp
        mine = (
            interop.from_pandas(self.to_pandas(), xp) if xp is not self.column.xp else self.column
        )
        if CATEGORY in (mine.kind, other.column.kind):
            from dask_exo.partitions.gpu_frames.interop import recategorize

            mine = cast(mine, other.dtype) if mine.kind != CATEGORY else mine
            other = other._like(recategorize(other.column, mine.dtype))
        if mine.kind in (TEXT, CATEGORY):
            both = stack([mine, other.column])
            keys = both.values.astype(np.int64)
        else:
            keys = sort_keys.ascending(stack([mine, other.column]))
        found = xp.searchsorted(keys[: len(mine)], keys[len(mine) :], side=side)
        return int(found[0]) if one else found

    def groupby(self, by: Any = None, **options: Any) -> Any:
        """Group rows; see `DeviceGroupBy`."""
        from dask_exo.partitions.gpu_frames.groupby import DeviceGroupBy

        return DeviceGroupBy(self, by, **options)
