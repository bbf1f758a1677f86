"""Operations on the labels and columns of a GPU frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import interop, transform
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.gpu_frames.index import DeviceIndex
from dask_exo.partitions.gpu_frames.rows import LabelledRows, mask
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.gpu_frames.transform import cast

_BOOLEANS = (np.dtype(bool), pd.BooleanDtype(), pd.ArrowDtype(pa.bool_()))


class ColumnsOfFrame(LabelledRows):
    """Mixin of `DeviceFrame`: operations on whole columns."""

    arrays: list[Column]
    labels: pd.Index
    of: Callable[..., Any]
    columns: Any
    copy: Any
    each: Any
    where: Any

    def _places(self) -> pd.DataFrame:
        """Return positions of columns as a pandas series, which resolves labels."""
        return pd.DataFrame([range(len(self.arrays))], columns=self.labels)

    def choose_columns(self, places: Any) -> Any:
        """Choose columns by position."""
        chosen = self._places().iloc[0, places]
        if not isinstance(chosen, pd.Series):
            label = self.labels[int(chosen)]
            return DeviceSeries.of(self.arrays[int(chosen)], self._index, label)
        return self._chosen(chosen)

    def _chosen(self, places: pd.Series) -> Any:
        return self.of([self.arrays[int(i)] for i in places], places.index, self._index)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self.take_rows(key)
        if hasattr(key, "labels"):
            return self.where(key)
        if getattr(key, "dtype", None) in _BOOLEANS:
            self._check_labels(key)
            return self.take_rows(self.positions(mask(key)))
        found = self._places()[key]
        if isinstance(found, pd.Series):
            return DeviceSeries.of(self.arrays[int(found.iloc[0])], self._index, found.name)
        return self._chosen(found.iloc[0])

    def _check_labels(self, other: Any) -> None:
        if isinstance(other, LabelledRows) and not self._index.equals(other.index):
            raise DeviceOperationError(
                f"{len(self)} and {len(other)} rows under different labels were put together, "
                f"which are not aligned on a device: merge them on the index, or use "
                f".to_backend('pandas')"
            )

    def _column(self, value: Any) -> Column:
        if isinstance(value, (DeviceSeries, DeviceIndex)):
            if isinstance(value, DeviceSeries) and not self._index.equals(value.index):
                value = value.reindex(self._index)
            return value.column
        if pd.api.types.is_scalar(value):
            return transform.constant(value, len(self), arrays.module(self.module))
        if hasattr(value, "__cuda_array_interface__"):
            return Column(value, np.dtype(value.dtype))
        values = value if isinstance(value, pd.Series) else pd.Series(value)
        if len(values) != len(self):
            raise ValueError(f"{len(values)} values were given for {len(self)} rows")
        return interop.from_pandas(values, arrays.module(self.module))

    def __setitem__(self, key: Any, value: Any) -> None:
        if hasattr(key, "labels"):
            self.arrays = self.where(~key, value).arrays
        elif isinstance(key, (list, pd.Index)):
            for i, label in enumerate(key):
                self[label] = value.choose_columns(i) if hasattr(value, "columns") else value
        elif key in self.labels:
            self.arrays = list(self.arrays)
            self.arrays[self.labels.get_loc(key)] = self._column(value)
        else:
            self.insert(len(self.arrays), key, value)

    def __delitem__(self, key: Any) -> None:
        left = self.drop(columns=[key])
        self.arrays, self.labels = left.arrays, left.labels

    def insert(self, loc: int, column: Any, value: Any, allow_duplicates: bool = False) -> None:  # noqa: FBT001, FBT002
        """Insert a column at a position."""
        if column in self.labels and not allow_duplicates:
            raise ValueError(f"cannot insert {column}, already exists")
        made = self._column(value)
        labels = pd.DataFrame([], columns=self.labels)
        labels.insert(loc, column, None, allow_duplicates)
        if not len(self.labels):
            labels.columns = pd.Index([column])
        self.arrays, self.labels = [*self.arrays[:loc], made, *self.arrays[loc:]], labels.columns

    def assign(self, **columns: Any) -> Any:
        """Add or replace columns."""
        made = self.copy()
        for label, value in columns.items():
            made[label] = value(made) if callable(value) else value
        return made

    def drop(
        self, labels: Any = None, axis: Any = 0, *, columns: Any = None, errors: Any = "raise"
    ) -> Any:
        """Drop columns."""
        if columns is None and axis in (1, "columns"):
            columns = labels
        if columns is None:
            raise DeviceOperationError(
                "rows cannot be dropped by label on a device: choose those that stay, "
                "df[~df.index.isin(...)]"
            )
        return self._chosen(self._places().drop(columns=columns, errors=errors).iloc[0])

    def pop(self, item: Any) -> DeviceSeries:
        """Remove and return a column."""
        column: DeviceSeries = self[item]
        del self[item]
        return column

    def rename(self, mapper: Any = None, *, columns: Any = None, axis: Any = None, **_: Any) -> Any:
        """Rename columns."""
        columns = mapper if columns is None and axis in (1, "columns") else columns
        labels = self._places().rename(columns=columns).columns
        return self.of(self.arrays, labels, self._index)

    def add_prefix(self, prefix: str, **_: Any) -> Any:
        """Add a prefix to the labels of columns."""
        return self.rename(columns=lambda label: f"{prefix}{label}")

    def add_suffix(self, suffix: str, **_: Any) -> Any:
        """Add a suffix to the labels of columns."""
        return self.rename(columns=lambda label: f"{label}{suffix}")

    def set_axis(self, labels: Any, *, axis: Any = 0, **_: Any) -> Any:
        """Replace the labels of rows or columns."""
        made = self.copy()
        if axis in (1, "columns"):
            made.columns = labels
        else:
            made.index = labels
        return made

    def select_dtypes(self, include: Any = None, exclude: Any = None) -> Any:
        """Choose columns by dtype."""
        empty = pd.DataFrame({i: pd.Series([], dtype=c.dtype) for i, c in enumerate(self.arrays)})
        places = empty.select_dtypes(include, exclude).columns
        return self.choose_columns(list(places))

    def astype(self, dtype: Any, **_: Any) -> Any:
        """Convert columns to other dtypes: one for all, or by label."""
        if not isinstance(dtype, (dict, pd.Series)):
            return self.each(lambda column: cast(column, dtype))
        made = self.copy()
        for label, one in dtype.items():
            made[label] = made[label].astype(one)
        return made
