"""Row selection of frames and series: by position, label and mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dask.base import normalize_token

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys, transform
from dask_exo.partitions.gpu_frames.elementwise import binary
from dask_exo.partitions.gpu_frames.index import DeviceIndex, from_pandas, numbered


def mask(condition: Any) -> Any:
    """Convert a series or array to an (n,) bool mask on the GPU; nulls are False.

    Raises
    ------
    TypeError
        It is of another dtype.
    """
    column = getattr(condition, "column", None)
    if column is None:
        return condition
    if column.kind != "b":
        raise TypeError(f"rows are chosen by booleans, not by a column of {column.dtype}")
    return column.values if column.valid is None else column.values & column.valid


class LabelledRows:
    """Base of labelled rows; subclasses implement how to take them."""

    _index: DeviceIndex

    def take_rows(self, rows: Any) -> Any:
        """Take rows by positions, a mask or a slice."""
        raise NotImplementedError

    def with_index(self, index: DeviceIndex) -> Any:
        """Replace the index."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._index)

    @property
    def index(self) -> DeviceIndex:
        """The labels."""
        return self._index

    @index.setter
    def index(self, index: Any) -> None:
        self._index = self._labels(index)

    def _labels(self, index: Any) -> DeviceIndex:
        made = index
        if not isinstance(index, DeviceIndex):
            if hasattr(index, "column"):
                made = DeviceIndex.of([index.column], [index.name])
            else:
                made = from_pandas(pd.Index(index), self.module)
        if len(made) != len(self._index):
            raise ValueError(f"{len(made)} labels were given for {len(self._index)} rows")
        return made

    @property
    def module(self) -> str:
        """Name of the array module."""
        return self._index.module

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

    def head(self, n: int = 5) -> Any:
        """Return the first rows."""
        return self.take_rows(slice(None, n))

    def tail(self, n: int = 5) -> Any:
        """Return the last rows."""
        return self.take_rows(slice(-n, None) if n else slice(0, 0))

    def take(self, indices: Any, axis: Any = 0) -> Any:
        """Take rows by position."""
        if axis not in (0, "index"):
            raise DeviceOperationError("take(axis=1) does not exist on a device: choose columns")
        return self.take_rows(self.positions(indices))

    def positions(self, rows: Any) -> Any:
        """Convert positions to an array on the GPU."""
        column = getattr(rows, "column", None)
        values = rows if column is None else column.values
        return arrays.module(self.module).asarray(values)

    def reindex(self, index: Any = None, fill_value: Any = None) -> Any:
        """Take rows by label; missing labels give nulls.

        Raises
        ------
        ValueError
            A label is there several times.
        """
        from dask_exo.partitions.gpu_frames.merge import pairs

        wanted = (
            index if isinstance(index, DeviceIndex) else from_pandas(pd.Index(index), self.module)
        )
        mine, rows = pairs(wanted.levels, self._index.levels, "left")
        if len(mine) != len(wanted):
            raise ValueError("cannot reindex on an axis with duplicate labels")
        made = self.take_or_null(rows).with_index(wanted)
        return made if fill_value is None else made.fillna(fill_value)

    def take_or_null(self, rows: Any) -> Any:
        """Take rows by positions, -1 giving nulls."""
        raise NotImplementedError

    def sort_index(self, ascending: bool = True, **_: Any) -> Any:  # noqa: FBT001, FBT002
        """Sort rows by the index."""
        keys = [sort_keys.of(level, descending=not ascending) for level in self._index.levels]
        return self.take_rows(arrays.argsort(sort_keys.pack(keys)))

    def sample(
        self,
        n: int | None = None,
        frac: float | None = None,
        replace: bool = False,  # noqa: FBT001, FBT002
        random_state: Any = None,
    ) -> Any:
        """Sample rows: the same ones as pandas."""
        places = pd.Series(np.arange(len(self)))
        chosen = places.sample(n=n, frac=frac, replace=replace, random_state=random_state)
        return self.take(chosen.to_numpy())

    def numbered(self) -> Any:
        """Reset the index to row numbers."""
        return self.with_index(numbered(len(self), self.module))

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self.module, normalize_token(self.to_pandas())

    def to_pandas(self) -> Any:
        """Copy to pandas, on the host."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        raise ValueError(
            f"the truth of a {type(self).__name__} is ambiguous: use .empty, .any() or .all()"
        )


class PositionSelector:
    """``iloc``."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getitem__(self, key: Any) -> Any:
        owner, columns = self._owner, slice(None)
        if isinstance(key, tuple):
            key, columns = key
            owner = owner.choose_columns(columns)
        if isinstance(key, (int, np.integer)):
            return owner.row(int(key))
        if isinstance(key, slice):
            return owner if key == slice(None) else owner.take_rows(key)
        return owner.take_rows(owner.positions(mask(key)))


class LabelSelector:
    """``loc``."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getitem__(self, key: Any) -> Any:
        owner = self._owner
        if isinstance(key, tuple) and hasattr(owner, "columns"):
            key, columns = key
            if not (isinstance(columns, slice) and columns == slice(None)):
                owner = owner[columns]
        if isinstance(key, slice):
            return owner if key == slice(None) else owner.take_rows(self._between(key))
        if pd.api.types.is_scalar(key):
            found = binary("eq", owner.index.column, key).values
            if not bool(found.any()):
                raise KeyError(key)
            return owner.take_rows(found)
        if (
            hasattr(key, "dtype")
            and key.dtype != bool
            and not isinstance(key.dtype, pd.BooleanDtype)
        ):
            key = list(key)
        if isinstance(key, list) and not all(isinstance(k, (bool, np.bool_)) for k in key):
            return self._of_labels(owner, key)
        return owner.take_rows(owner.positions(mask(key)))

    def _between(self, key: slice) -> Any:
        index = self._owner.index
        if not index.is_monotonic_increasing:
            raise KeyError(
                "rows cannot be sliced by labels that are not sorted: .sort_index() before"
            )
        start = 0 if key.start is None else index.get_slice_bound(key.start, "left")
        stop = len(index) if key.stop is None else index.get_slice_bound(key.stop, "right")
        return slice(start, stop, key.step)

    def _of_labels(self, owner: Any, labels: list[Any]) -> Any:
        from dask_exo.partitions.gpu_frames import interop
        from dask_exo.partitions.gpu_frames.merge import pairs

        mine = owner.index.column
        wanted = interop.from_pandas(pd.Series(labels, dtype=mine.dtype), mine.xp)
        _, rows = pairs([wanted], [mine], "left")
        if bool((rows < 0).any()):
            lost = [label for label in labels if not bool(transform.is_in(mine, [label]).any())]
            raise KeyError(f"{lost} not in index")
        return owner.take_rows(rows)
