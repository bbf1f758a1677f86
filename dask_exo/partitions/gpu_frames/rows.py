"""Rows of GPU frames and series: selection by position, label and mask; order and duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask.base import normalize_token

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import ON_HOST, Column, unsupported
from dask_exo.partitions.gpu_frames.elementwise import binary
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas, numbered
from dask_exo.partitions.gpu_frames.sort_keys import group_rows
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
        f"merge them on the index, or {ON_HOST}",
    )


class LabelledRows:
    """Base of `DeviceSeries` and `DeviceFrame`: columns of one length, and labels of the rows.

    Attributes
    ----------
    arrays : list of Column
        (c,) columns of n rows each; one for a series.
    """

    arrays: list[Column]
    _index: DeviceIndex
    _with: Callable[..., Any]  # replaces the columns, and the index; names stay
    _named: Callable[[], list[tuple[Any, Column]]]  # returns names and columns
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

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.module, normalize_token(self.to_pandas())

    @property
    def index(self) -> DeviceIndex:
        """Labels of the rows."""
        return self._index

    @index.setter
    def index(self, index: Any) -> None:
        if not isinstance(index, DeviceIndex) and hasattr(index, "column"):
            index = DeviceIndex.of([index.column], [index.name])
        index = self._as_index(index)
        if len(index) != len(self._index):
            raise ValueError(f"{len(index)} labels were given for {len(self._index)} rows")
        self._index = index

    def _as_index(self, labels: Any) -> DeviceIndex:
        if isinstance(labels, DeviceIndex):
            return labels
        return from_pandas(pd.Index(labels), self.module)

    @property
    def module(self) -> str:
        """Name of the array module."""
        return self._index.module

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self) * len(self.arrays)

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
        """Selector of rows by label or mask."""
        return LabelSelector(self)

    def take_rows(self, rows: Any) -> Any:
        """Take rows by positions, a mask or a slice."""
        if not isinstance(rows, slice) and getattr(rows, "dtype", None) == np.dtype(bool):
            rows = arrays.of(rows).flatnonzero(rows)  # once, not for each column
        return self._with([c.take(rows) for c in self.arrays], self._index.take(rows))

    def take_or_null(self, rows: Any) -> Any:
        """Take rows by positions, -1 giving nulls."""
        columns = [column.take_or_null(rows, name=name) for name, column in self._named()]
        return self._with(columns, numbered(len(rows), self.module))

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

    def reindex(self, labels: DeviceIndex) -> Any:
        """Take rows by label; missing labels give nulls."""
        from dask_exo.partitions.gpu_frames.merge import pairs

        left, rows = pairs(labels.levels, self._index.levels, "left")
        if len(left) != len(labels):
            raise ValueError("cannot reindex on an axis with duplicate labels")
        return self.take_or_null(rows).with_index(labels)

    def sort_index(self, ascending: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
        """Sort rows by the index."""
        keys = [sort_keys.encode(level, descending=not ascending) for level in self._index.levels]
        return self.take_rows(arrays.argsort(pack(keys)))

    def groupby(self, by: Any = None, **options: Any) -> Any:
        """Group rows; see `DeviceGroupBy`."""
        from dask_exo.partitions.gpu_frames.groupby import DeviceGroupBy

        return DeviceGroupBy(self, by, **options)


class RowsOfFrame(LabelledRows):
    """Mixin of `DeviceFrame`: operations on whole rows."""

    labels: pd.Index
    choose_columns: Any
    drop: Any
    __getitem__: Callable[..., Any]

    @property
    def _constructor_sliced(self) -> Any:
        from dask_exo.partitions.gpu_frames.series import DeviceSeries

        return DeviceSeries

    def row(self, place: int) -> pd.Series:
        """Return one row, on the host."""
        place = place % len(self) if -len(self) <= place < 0 else place
        return self.take_rows(slice(place, place + 1)).to_pandas().iloc[0]

    def reset_index(self, level: Any = None, *, drop: bool = False, **_: Any) -> Any:
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

    def set_index(self, keys: Any, drop: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
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
    ) -> Any:
        """Sort rows by columns in a stable way."""
        names = list(by) if isinstance(by, (list, pd.Index)) else [by]
        flags = (
            list(ascending) if isinstance(ascending, (list, tuple)) else [ascending] * len(names)
        )
        keys = [
            sort_keys.encode(column, descending=not flag, nulls_first=na_position == "first")
            for column, flag in zip(self.key_columns(names), flags, strict=True)
        ]
        ordered = self.take_rows(arrays.argsort(pack(keys)))
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
    ) -> Any:
        """Drop the rows that `duplicated` marks."""
        rest = self.take_rows(~self.duplicated(subset, keep).column.values)
        return rest.numbered() if ignore_index else rest

    def duplicated(self, subset: Any = None, keep: Any = "first") -> Any:
        """Mark rows that equal an earlier row, or a later one for ``keep="last"``."""
        names = self.labels if subset is None else subset
        names = list(names) if isinstance(names, (list, pd.Index)) else [names]
        mask = arrays.module(self.module).ones(len(self), bool)
        if not names or not len(self):
            mask &= False
        else:
            grouped = group_rows([sort_keys.encode(self[name].column) for name in names])
            if keep in ("first", "last"):
                mask[grouped.first if keep == "first" else grouped.last] = False
            else:
                mask = (grouped.sizes > 1)[grouped.ids]
        return self._constructor_sliced.of(Column(mask, np.dtype(bool)), self._index)

    def dropna(self, *, how: Any = "any", subset: Any = None, thresh: Any = None, **_: Any) -> Any:
        """Drop rows with nulls."""
        columns = self.arrays
        if subset is not None:
            names = list(subset) if isinstance(subset, (list, pd.Index)) else [subset]
            columns = self[names].arrays
        counts = arrays.module(self.module).zeros(len(self), np.int64)
        for column in columns:
            counts = counts + ~column.nulls()
        least = thresh if isinstance(thresh, int) else (len(columns) if how == "any" else 1)
        return self.take_rows(counts >= least)


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
            return owner.row(int(key))
        if isinstance(key, slice):
            return owner if key == slice(None) else owner.take_rows(key)
        return owner.take_rows(owner.positions(as_mask(key)))


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
        if pd.api.types.is_scalar(key):
            matches = binary("eq", owner.index.column, key).values
            if not bool(matches.any()):
                raise KeyError(key)
            return owner.take_rows(matches)
        if getattr(key, "dtype", None) not in ("bool", "boolean"):
            raise unsupported("loc with a list of labels", f"filter by a column, or {ON_HOST}")
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
