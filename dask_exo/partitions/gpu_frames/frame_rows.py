"""Operations on the rows of a GPU frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.gpu_frames.frame_columns import ColumnsOfFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, numbered
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.gpu_frames.sort_keys import groups


class RowsOfFrame(ColumnsOfFrame):
    """Mixin of `DeviceFrame`: operations on whole rows."""

    def take_rows(self, rows: Any) -> Any:
        """Take rows by positions, a mask or a slice."""
        if not isinstance(rows, slice) and getattr(rows, "dtype", None) == np.dtype(bool):
            rows = arrays.of(rows).flatnonzero(rows)  # once, not for each column
        columns = [column.take(rows) for column in self.arrays]
        return self.of(columns, self.labels, self._index.take(rows))

    def take_or_null(self, rows: Any) -> Any:
        """Take rows by positions, -1 giving nulls."""
        columns = [
            column.take_or_null(rows, name=label)
            for label, column in zip(self.labels, self.arrays, strict=True)
        ]
        return self.of(columns, self.labels, numbered(len(rows), self.module))

    def with_index(self, index: DeviceIndex) -> Any:
        """Replace the index."""
        return self.of(self.arrays, self.labels, index)

    def row(self, place: int) -> pd.Series:
        """Return one row, on the host."""
        place = place % len(self) if -len(self) <= place < 0 else place
        return self.take_rows(slice(place, place + 1)).to_pandas().iloc[0]

    def squeeze(self, axis: Any = None) -> Any:  # noqa: ARG002
        """Return the only row on the host, or the only column."""
        made = self.row(0) if len(self) == 1 else self
        if len(self.arrays) > 1:
            return made
        return made.iloc[0] if len(self) == 1 else self.choose_columns(0)

    def copy(self, deep: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002
        """Return another frame of the same immutable columns."""
        return self.of(self.arrays, self.labels, self._index)

    def reset_index(self, level: Any = None, *, drop: bool = False, **_: Any) -> Any:
        """Reset the index to row numbers; it becomes columns, unless it is dropped."""
        if level is not None:
            raise DeviceOperationError(
                "reset_index(level=...) does not exist on a device: use .to_backend('pandas')"
            )
        made = self.numbered()
        if drop:
            return made
        index = self._index
        for i in reversed(range(index.nlevels)):
            plain = "index" if index.nlevels == 1 else f"level_{i}"
            name = plain if index.names[i] is None else index.names[i]
            if self.labels.nlevels > 1 and not isinstance(name, tuple):
                name = (name, *[""] * (self.labels.nlevels - 1))
            made.insert(0, name, DeviceSeries.of(index.levels[i], made.index))
        return made

    def set_index(self, keys: Any, drop: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
        """Make columns the index."""
        several = keys if isinstance(keys, list) else [keys]
        series = [self[key] if not hasattr(key, "column") else key for key in several]
        index = DeviceIndex.of([s.column for s in series], [s.name for s in series])
        dropped = [key for key in several if not hasattr(key, "column")] if drop else []
        return (self.drop(columns=dropped) if dropped else self.copy()).with_index(index)

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
        names = [by] if not isinstance(by, (list, pd.Index)) else list(by)
        ways = list(ascending) if isinstance(ascending, (list, tuple)) else [ascending] * len(names)
        keys = [
            sort_keys.of(column, descending=not way, nulls_first=na_position == "first")
            for column, way in zip(self.key_columns(names), ways, strict=True)
        ]
        made = self.take_rows(arrays.argsort(sort_keys.pack(keys)))
        return made.numbered() if ignore_index else made

    def key_columns(self, names: Sequence[Any]) -> list[Column]:
        """Return columns by label, or levels of the index by name."""
        return [
            self[name].column
            if name in self.labels
            else self._index.levels[self._index.place(name)]
            for name in names
        ]

    def nlargest(self, n: int, columns: Any, keep: str = "first") -> Any:  # noqa: ARG002
        """Return the rows with the largest values."""
        return self.sort_values(columns, ascending=False).head(n)

    def nsmallest(self, n: int, columns: Any, keep: str = "first") -> Any:  # noqa: ARG002
        """Return the rows with the smallest values."""
        return self.sort_values(columns).head(n)

    def drop_duplicates(
        self, subset: Any = None, *, keep: Any = "first", ignore_index: bool = False, **_: Any
    ) -> Any:
        """Drop rows that occur before (or again)."""
        repeated = self.duplicated(subset, keep).column.values
        made = self.take_rows(~repeated)
        return made.numbered() if ignore_index else made

    def duplicated(self, subset: Any = None, keep: Any = "first") -> DeviceSeries:
        """Return which rows occur before (or again)."""
        xp = arrays.module(self.module)
        names = list(self.labels) if subset is None else subset
        names = names if isinstance(names, (list, pd.Index)) else [names]
        repeated = xp.ones(len(self), bool)
        if not len(names) or not len(self):
            return DeviceSeries.of(Column(repeated & False, np.dtype(bool)), self._index)
        found = groups([sort_keys.of(self[name].column) for name in names])
        if keep == "last":
            repeated[found.order[found.ends() - 1]] = False
        elif keep == "first":
            repeated[found.first] = False
        else:
            repeated = (found.tally() > 1)[found.ids]
        return DeviceSeries.of(Column(repeated, np.dtype(bool)), self._index)

    def dropna(self, *, how: Any = "any", subset: Any = None, thresh: Any = None, **_: Any) -> Any:
        """Drop rows with nulls."""
        subset = (
            [subset] if subset is not None and not isinstance(subset, (list, pd.Index)) else subset
        )
        frame = self if subset is None else self[list(subset)]
        xp = arrays.module(self.module)
        there = xp.zeros(len(self), np.int64)
        for column in frame.arrays:
            there = there + ~column.nulls()
        few = thresh if isinstance(thresh, int) else (len(frame.arrays) if how == "any" else 1)
        return self.take_rows(there >= few)
