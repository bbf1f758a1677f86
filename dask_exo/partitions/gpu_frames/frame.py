"""GPU frames: labelled columns in GPU memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import interop, sort_keys, transform
from dask_exo.partitions.gpu_frames.column import NUMBERS, Column, unsupported
from dask_exo.partitions.gpu_frames.elementwise import refuse
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas
from dask_exo.partitions.gpu_frames.rows import LabelledRows, as_mask, in_order, not_aligned
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.gpu_frames.sort_keys import group_rows

_FIELDS = frozenset({"arrays", "labels", "_index", "index", "columns"})
_BOOLEANS = (np.dtype(bool), pd.BooleanDtype(), pd.ArrowDtype(pa.bool_()))


class DeviceFrame(LabelledRows):
    """Frame in GPU memory with the interface of a pandas DataFrame.

    The constructor copies columns of the host to numpy, which simulates a GPU, or takes a dict of
    `DeviceSeries` with equal labels of rows; see `from_pandas`.

    Attributes
    ----------
    arrays : list of Column
        (c,) columns of n rows each.
    labels : Index
        (c,) labels of the columns, on the host.
    """

    labels: pd.Index
    merge: Callable[..., DeviceFrame]  # of `dask_exo.partitions.gpu_frames.merge`
    ndim = 2

    def __init__(
        self, data: Any = None, index: Any = None, columns: Any = None, dtype: Any = None
    ) -> None:
        if isinstance(data, dict) and any(isinstance(v, DeviceSeries) for v in data.values()):
            source = _of_series(data)
        else:
            frame = pd.DataFrame(data, index=index, columns=columns, dtype=dtype)
            source = DeviceFrame.from_pandas(frame, arrays.HOST)
        self.arrays, self.labels, self._index = source.arrays, source.labels, source.index

    @classmethod
    def of(cls, columns: Sequence[Column], labels: pd.Index, index: DeviceIndex) -> DeviceFrame:
        """Make a frame of columns and labels."""
        frame = cls.__new__(cls)
        frame.arrays, frame.labels, frame._index = list(columns), labels, index
        return frame

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame, module: str) -> DeviceFrame:
        """Copy a pandas frame to the GPU; `DeviceTypeError` names a column that it cannot have."""
        xp = arrays.module(module)
        columns = []
        for place, label in enumerate(frame.columns):
            try:
                columns.append(interop.from_pandas(frame.iloc[:, place], xp))
            except TypeError as error:
                error.args = (f"column {label!r}: {error}",)
                raise
        return cls.of(columns, frame.columns, from_pandas(frame.index, module))

    def _with(self, columns: Sequence[Column], index: DeviceIndex | None = None) -> DeviceFrame:
        return DeviceFrame.of(columns, self.labels, self._index if index is None else index)

    def __reduce__(self) -> tuple[Any, ...]:
        from dask_exo.partitions.gpu.shuffle import start_copy

        return methodcaller("frame", self.module), (start_copy(self, stay=True)(),)

    def to_pandas(self) -> pd.DataFrame:
        """Copy to pandas, on the host."""
        index = self._index.to_pandas()
        columns = {
            i: pd.Series(interop.to_array(column), index, column.dtype)
            for i, column in enumerate(self.arrays)
        }
        frame = pd.DataFrame(columns, index=index)
        frame.columns = self.labels
        return frame

    @property
    def columns(self) -> pd.Index:
        """(c,) labels of the columns."""
        return self.labels

    @columns.setter
    def columns(self, labels: Any) -> None:
        labels = labels if isinstance(labels, pd.Index) else pd.Index(labels)
        if len(labels) != len(self.arrays):
            raise ValueError(f"{len(labels)} labels were given for {len(self.arrays)} columns")
        self.labels = labels

    @property
    def dtypes(self) -> pd.Series:
        """(c,) dtypes of the columns, on the host."""
        return pd.Series([c.dtype for c in self.arrays], index=self.labels, dtype=object)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self), len(self.arrays)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, with the index."""
        return sum(column.nbytes for column in self.arrays) + self._index.nbytes

    @property
    def values(self) -> Any:
        """(n, c) numbers on the GPU."""
        xp = arrays.module(self.module)
        if any(c.kind not in NUMBERS or c.nullable for c in self.arrays):
            return self.to_pandas().to_numpy()
        if not self.arrays:
            return xp.zeros((len(self), 0))
        return xp.stack([column.values for column in self.arrays], axis=1)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or len(inputs) != 1:
            return NotImplemented
        return self.each(lambda column: transform.ufunc(column, ufunc.__name__))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.labels)

    def __contains__(self, label: Any) -> bool:
        return label in self.labels

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS and name in self.labels:
            return self[name]
        return refuse(self, pd.DataFrame, name)

    # Dask takes what has a mean for a frame
    mean = property(lambda self: refuse(self, pd.DataFrame, "mean"))

    def items(self) -> Iterator[tuple[Any, DeviceSeries]]:
        """Yield labels and columns."""
        for label, column in zip(self.labels, self.arrays, strict=True):
            yield label, DeviceSeries.of(column, self._index, label)

    def _places(self) -> pd.DataFrame:
        """Return positions of columns as a frame of one row, which resolves labels."""
        return pd.DataFrame([range(len(self.arrays))], columns=self.labels)

    def _at(self, places: pd.Series) -> DeviceFrame:
        return DeviceFrame.of([self.arrays[int(i)] for i in places], places.index, self._index)

    def choose_columns(self, places: Any) -> Any:
        """Choose columns by position."""
        selection = self._places().iloc[0, places]
        if isinstance(selection, pd.Series):
            return self._at(selection)
        place = int(selection)
        return DeviceSeries.of(self.arrays[place], self._index, self.labels[place])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.take_rows(key)
        if getattr(key, "dtype", None) in _BOOLEANS:
            self._check_labels(key, "selection")
            return self.take_rows(self.positions(as_mask(key)))
        place = self._places()[key]
        if isinstance(place, pd.Series):
            return DeviceSeries.of(self.arrays[int(place.iloc[0])], self._index, place.name)
        return self._at(place.iloc[0])

    def _check_labels(self, other: Any, name: str) -> None:
        if isinstance(other, LabelledRows) and not self._index.equals(other.index):
            raise not_aligned(name, self, other)

    def apply_operator(self, name: str, other: Any, *, reflected: bool = False) -> Any:
        """Apply an operator to all columns, with a scalar, a frame, or a value for each column."""
        others: list[Any] = [other] * len(self.arrays)
        if isinstance(other, DeviceFrame):
            self._check_labels(other, name)
            if not self.labels.equals(other.labels):
                raise unsupported(
                    f"{name} of frames with columns {list(self.labels)} and {list(other.labels)}",
                    "select the same columns in the same order",
                )
            others = [series for _, series in other.items()]
        elif isinstance(other, pd.Series):
            others = [other[label] for label in self.labels]
        elif isinstance(other, DeviceSeries):
            raise unsupported(f"{name} of a frame and a series", "apply it to columns")
        columns = [
            series.apply_operator(name, operand, reflected=reflected).column
            for (_, series), operand in zip(self.items(), others, strict=True)
        ]
        return self._with(columns)

    def astype(self, dtype: Any, **_: Any) -> Any:
        """Convert columns to other dtypes: one for all, or by label."""
        if not isinstance(dtype, (dict, pd.Series)):
            return self.each(lambda column: transform.cast(column, dtype))
        frame = self.copy()
        for label, column_dtype in dtype.items():
            frame[label] = frame[label].astype(column_dtype)
        return frame

    def fillna(self, value: Any = None, **_: Any) -> DeviceFrame:
        """Replace nulls: by one value for all columns, or by label."""
        is_by_label = isinstance(value, (dict, pd.Series))
        by_label = value if is_by_label else dict.fromkeys(self.labels, value)
        return self._with(
            [
                transform.fill(column, by_label[label]) if label in by_label else column
                for label, column in zip(self.labels, self.arrays, strict=True)
            ]
        )

    def _column(self, value: Any) -> Column:
        if isinstance(value, Column):
            return value
        if isinstance(value, DeviceIndex):
            return value.column
        if isinstance(value, DeviceSeries):
            is_aligned = self._index.equals(value.index)
            return value.column if is_aligned else value.reindex(self._index).column
        if hasattr(value, "__cuda_array_interface__"):  # of cupy, PyTorch, numba
            return self._from_gpu(arrays.module(arrays.DEVICE).asarray(value))
        if pd.api.types.is_scalar(value):
            return transform.constant(value, len(self), arrays.module(self.module))
        values = value if isinstance(value, pd.Series) else pd.Series(value)
        if len(values) != len(self):
            raise ValueError(f"{len(values)} values were given for {len(self)} rows")
        return interop.from_pandas(values, arrays.module(self.module))

    def _from_gpu(self, values: Any) -> Column:
        """Return an array of the GPU as a column; one without an axis is a scalar."""
        if values.ndim == 0:
            return self._column(values.item())
        if values.ndim != 1 or len(values) != len(self):
            raise ValueError(
                f"an array of shape {tuple(values.shape)} was given for {len(self)} rows: make it "
                f"one value for each row, for example by .reshape(-1) or .ravel()"
            )
        return Column(arrays.module(arrays.DEVICE).ascontiguousarray(values), values.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, DeviceFrame):  # a mask
            for label, mask in key.items():
                self[label] = self[label].put(mask, value)
        elif isinstance(key, (list, pd.Index)):
            for i, label in enumerate(key):
                self[label] = value.choose_columns(i) if isinstance(value, DeviceFrame) else value
        elif key in self.labels:
            self.arrays: list[Column] = list(self.arrays)
            self.arrays[self.labels.get_loc(key)] = self._column(value)
        else:
            self.insert(len(self.arrays), key, value)

    def insert(self, loc: int, column: Any, value: Any, allow_duplicates: bool = False) -> None:  # noqa: FBT001, FBT002
        """Insert a column at a position."""
        if column in self.labels and not allow_duplicates:
            raise ValueError(f"cannot insert {column}, already exists")
        self.arrays = [*self.arrays[:loc], self._column(value), *self.arrays[loc:]]
        self.labels = self.labels.insert(loc, column) if len(self.labels) else pd.Index([column])

    def assign(self, **columns: Any) -> Any:
        """Add or replace columns."""
        frame = self.copy()
        for label, value in columns.items():
            frame[label] = value(frame) if callable(value) else value
        return frame

    def drop(
        self, labels: Any = None, axis: Any = 0, *, columns: Any = None, errors: Any = "raise"
    ) -> Any:
        """Drop columns."""
        if columns is None and axis in (1, "columns"):
            columns = labels
        if columns is None:
            raise unsupported("drop of rows by label", "filter by a column")
        return self._at(self._places().drop(columns=columns, errors=errors).iloc[0])

    def rename(self, mapper: Any = None, *, columns: Any = None, axis: Any = None, **_: Any) -> Any:
        """Rename columns."""
        columns = mapper if columns is None and axis in (1, "columns") else columns
        labels = self._places().rename(columns=columns).columns
        return DeviceFrame.of(self.arrays, labels, self._index)

    def select_dtypes(self, include: Any = None, exclude: Any = None) -> DeviceFrame:
        """Choose columns by dtype."""
        empty = pd.DataFrame({i: pd.Series([], dtype=c.dtype) for i, c in enumerate(self.arrays)})
        return self.choose_columns(list(empty.select_dtypes(include, exclude).columns))

    def _get_numeric_data(self) -> DeviceFrame:
        """Choose columns of numbers and booleans; Dask's variance of groups asks for them."""
        return self.select_dtypes(["number", "bool"])

    def reset_index(self, level: Any = None, *, drop: bool = False, **_: Any) -> DeviceFrame:
        """Reset the index to row numbers; it becomes columns, unless it is dropped."""
        if level is not None:
            raise unsupported("reset_index(level=...)")
        frame = self.numbered()
        if drop:
            return frame
        index = self._index
        for i in reversed(range(index.nlevels)):
            default = "index" if index.nlevels == 1 else f"level_{i}"
            name = default if index.names[i] is None else index.names[i]
            if self.labels.nlevels > 1 and not isinstance(name, tuple):
                name = (name, *[""] * (self.labels.nlevels - 1))
            frame.insert(0, name, index.levels[i])
        return frame

    def set_index(self, keys: Any, drop: bool = True, **_: Any) -> DeviceFrame:  # noqa: FBT001, FBT002
        """Make columns the index."""
        items = keys if isinstance(keys, list) else [keys]
        labels = [key for key in items if not hasattr(key, "column")]
        series = [key if hasattr(key, "column") else self[key] for key in items]
        index = DeviceIndex.of([s.column for s in series], [s.name for s in series])
        frame = self.drop(columns=labels) if drop and labels else self
        return frame.with_index(index)

    def sort_values(
        self,
        by: Any,
        *,
        ascending: Any = True,
        na_position: str = "last",
        ignore_index: bool = False,
        **_: Any,
    ) -> DeviceFrame:
        """Sort rows by columns in a stable way."""
        keys = self.key_columns(_as_list(by))
        flags = ascending if isinstance(ascending, (list, tuple)) else [ascending] * len(keys)
        ordered = self.take_rows(in_order(keys, flags, nulls_first=na_position == "first"))
        return ordered.numbered() if ignore_index else ordered

    def key_columns(self, names: Sequence[Any]) -> list[Column]:
        """Return columns by label, or levels of the index by name; all of them for ``[None]``."""
        if list(names) == [None]:
            return list(self._index.levels)
        return [
            self[name].column
            if name in self.labels
            else self._index.levels[self._index.place(name)]
            for name in names
        ]

    def drop_duplicates(
        self, subset: Any = None, *, keep: Any = "first", ignore_index: bool = False, **_: Any
    ) -> DeviceFrame:
        """Drop the rows that `duplicated` marks."""
        rest = self.take_rows(~self.duplicated(subset, keep).column.values)
        return rest.numbered() if ignore_index else rest

    def duplicated(self, subset: Any = None, keep: Any = "first") -> DeviceSeries:
        """Mark rows that equal an earlier row, or a later one for ``keep="last"``."""
        names = _as_list(self.labels if subset is None else subset)
        mask = arrays.module(self.module).zeros(len(self), bool)
        if names and len(self):
            groups = group_rows([sort_keys.encode(self[name].column) for name in names])
            mask = (groups.sizes > 1)[groups.ids]
            if keep in ("first", "last"):
                mask[groups.first if keep == "first" else groups.last] = False
        return DeviceSeries.of(Column(mask, np.dtype(bool)), self._index)

    def dropna(
        self, *, how: Any = "any", subset: Any = None, thresh: Any = None, **_: Any
    ) -> DeviceFrame:
        """Drop rows with nulls."""
        columns = self.arrays if subset is None else self[_as_list(subset)].arrays
        counts = arrays.module(self.module).zeros(len(self), np.int64)
        for column in columns:
            counts = counts + ~column.nulls()
        least = thresh if isinstance(thresh, int) else (len(columns) if how == "any" else 1)
        return self.take_rows(counts >= least)


def _as_list(names: Any) -> list[Any]:
    return list(names) if isinstance(names, (list, pd.Index)) else [names]


def _of_series(data: dict[Any, Any]) -> DeviceFrame:
    first = next(v for v in data.values() if isinstance(v, DeviceSeries))
    frame = DeviceFrame.of([], pd.Index([], dtype=object), first.index)
    frame.arrays = [frame._column(value) for value in data.values()]
    frame.labels = pd.DataFrame({label: [] for label in data}).columns
    return frame
