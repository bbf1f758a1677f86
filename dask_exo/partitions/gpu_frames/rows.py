"""Rows of GPU frames and series: selection, order, and elementwise methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask.base import normalize_token

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys, transform
from dask_exo.partitions.gpu_frames.column import ON_HOST, Column, unsupported
from dask_exo.partitions.gpu_frames.elementwise import Operators
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas, numbered
from dask_exo.partitions.kernels.sort_keys import pack


def as_mask(condition: Any) -> Any:
    """Convert a series, column or array to an (n,) bool mask on the GPU; nulls are False."""
    column = getattr(condition, "column", condition)
    if not isinstance(column, Column):
        return condition
    if column.kind != "b":
        raise TypeError(f"rows are selected by booleans, not by a column of {column.dtype}")
    return column.values if column.valid is None else column.values & column.valid


def not_aligned(name: str, left: LabelledRows, right: LabelledRows) -> DeviceOperationError:
    """Return the error for an operation on rows of different labels."""
    return unsupported(
        f"{name} of {len(left)} and {len(right)} rows with different labels",
        f"merge them by a column, or {ON_HOST}",
    )


class LabelledRows(Operators):
    """Base of `DeviceSeries` and `DeviceFrame`: columns of one length, and labels of the rows.

    Attributes
    ----------
    arrays : list of Column
        (c,) columns of n rows each; one for a series.
    """

    arrays: list[Column]
    _index: DeviceIndex
    _with: Callable[..., Any]  # replaces the columns, and the index; names stay
    to_pandas: Callable[[], Any]

    def each(self, change: Callable[[Column], Column]) -> Any:
        """Apply a function to each column."""
        return self._with([change(column) for column in self.arrays])

    def copy(self, deep: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002
        """Return another object of the same immutable columns."""
        return self._with(self.arrays)

    def with_index(self, index: DeviceIndex) -> Any:
        """Replace the index."""
        return self._with(self.arrays, index)

    def numbered(self) -> Any:
        """Reset the index to row numbers."""
        return self.with_index(numbered(len(self), self.module))

    def __len__(self) -> int:
        return len(self._index)

    def __bool__(self) -> bool:
        raise ValueError(
            f"the truth of a {type(self).__name__} is ambiguous: use .empty, .any() or .all()"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__} on {self.module}:\n{self.to_pandas()!r}"

    def to_numpy(self, dtype: Any = None, **options: Any) -> np.ndarray:
        """Copy the values to the host."""
        return np.asarray(self.to_pandas().to_numpy(dtype, **options))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.to_numpy(dtype)

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.module, normalize_token(self.to_pandas())

    @property
    def index(self) -> DeviceIndex:
        """Labels of the rows."""
        return self._index

    @index.setter
    def index(self, index: Any) -> None:
        if not isinstance(index, DeviceIndex):
            is_series = hasattr(index, "column")
            index = (
                DeviceIndex.of([index.column], [index.name])
                if is_series
                else from_pandas(pd.Index(index), self.module)
            )
        if len(index) != len(self._index):
            raise ValueError(f"{len(index)} labels were given for {len(self._index)} rows")
        self._index = index

    @property
    def module(self) -> str:
        """Name of the array module."""
        return self._index.module

    @property
    def _constructor(self) -> type[Any]:
        return type(self)

    @property
    def empty(self) -> bool:
        """True if there are no rows."""
        return len(self) == 0

    @property
    def iloc(self) -> PositionSelector:
        """Selector of rows by position."""
        return PositionSelector(self)

    @property
    def loc(self) -> LabelSelector:
        """Selector of rows by a condition, or by a range of labels."""
        return LabelSelector(self)

    def take_rows(self, rows: Any) -> Any:
        """Take rows by positions, a mask or a slice."""
        if not isinstance(rows, slice) and getattr(rows, "dtype", None) == np.dtype(bool):
            rows = arrays.of(rows).flatnonzero(rows)  # once, not for each column
        return self._with([c.take(rows) for c in self.arrays], self._index.take(rows))

    def head(self, n: int = 5) -> Any:
        """Return the first rows."""
        return self.take_rows(slice(None, n))

    def tail(self, n: int = 5) -> Any:
        """Return the last rows."""
        return self.take_rows(slice(-n, None) if n else slice(0, 0))

    def take(self, indices: Any, axis: Any = 0) -> Any:
        """Take rows by position."""
        if axis not in (0, "index"):
            raise unsupported("take(axis=1)", "select columns by label")
        return self.take_rows(self.positions(indices))

    def positions(self, rows: Any) -> Any:
        """Convert positions to an array on the GPU."""
        column = getattr(rows, "column", None)
        return arrays.module(self.module).asarray(rows if column is None else column.values)

    def sort_index(self, ascending: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
        """Sort rows by the index."""
        return self.take_rows(in_order(self._index.levels, [ascending] * self._index.nlevels))

    def groupby(self, by: Any = None, **options: Any) -> Any:
        """Group rows; see `DeviceGroupBy`."""
        from dask_exo.partitions.gpu_frames.groupby import DeviceGroupBy

        return DeviceGroupBy(self, by, **options)

    def __neg__(self) -> Any:
        return self.each(lambda column: transform.ufunc(column, "negative"))

    def __invert__(self) -> Any:
        return self.each(lambda column: transform.ufunc(column, "invert"))

    def pow(self, exponent: Any) -> Any:
        """Raise values to a power, as Dask's variance of groups does."""
        return self**exponent

    def abs(self) -> Any:
        """Return absolute values."""
        return self.each(lambda column: transform.ufunc(column, "absolute"))

    def isna(self) -> Any:
        """Return which values are null."""
        return self.each(lambda column: Column(column.nulls(), np.dtype(bool)))

    def notna(self) -> Any:
        """Return which values are not null."""
        return self.each(lambda column: Column(~column.nulls(), np.dtype(bool)))

    isnull, notnull = isna, notna


def in_order(
    columns: Sequence[Column], ascending: Sequence[bool], *, nulls_first: bool = False
) -> Any:
    """Return the (n,) rows in the stable order of some columns."""
    keys = [
        sort_keys.encode(column, descending=not up, nulls_first=nulls_first)
        for column, up in zip(columns, ascending, strict=True)
    ]
    return arrays.argsort(pack(keys))


class PositionSelector:
    """``iloc``."""

    def __init__(self, owner: LabelledRows) -> None:
        self._owner: Any = owner

    def __getitem__(self, key: Any) -> Any:
        owner = self._owner
        if isinstance(key, tuple):
            key, columns = key
            owner = owner.choose_columns(columns)
        if isinstance(key, (int, np.integer)):
            return owner.take_rows(slice(key, key + 1 or None)).to_pandas().iloc[0]
        return owner.take_rows(key if isinstance(key, slice) else owner.positions(as_mask(key)))


class LabelSelector(PositionSelector):
    """``loc``."""

    def __getitem__(self, key: Any) -> Any:
        owner = self._owner
        if isinstance(key, tuple) and hasattr(owner, "columns"):
            key, columns = key
            if not (isinstance(columns, slice) and columns == slice(None)):
                owner = owner[columns]
        if isinstance(key, slice):
            return owner if key == slice(None) else owner.take_rows(self._between(key))
        if getattr(key, "dtype", None) not in ("bool", "boolean"):
            raise unsupported("loc with labels", f"filter by a column, or {ON_HOST}")
        return owner.take_rows(owner.positions(as_mask(key)))

    def _between(self, key: slice) -> slice:
        index = self._owner.index
        if not index.is_monotonic_increasing:
            raise KeyError(
                "rows cannot be sliced by labels that are not sorted: .sort_index() before"
            )
        start = 0 if key.start is None else index.get_slice_bound(key.start, "left")
        stop = len(index) if key.stop is None else index.get_slice_bound(key.stop, "right")
        return slice(start, stop, key.step)
