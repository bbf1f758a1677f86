"""Index of GPU frames and series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from dask.base import normalize_token

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import interop, sort_keys, transform
from dask_exo.partitions.gpu_frames.column import Column, unsupported
from dask_exo.partitions.gpu_frames.elementwise import binary, refuse
from dask_exo.partitions.gpu_frames.transform import cast, stack


class DeviceIndex:
    """Index in GPU memory with the interface of a pandas Index, of one or several levels.

    A range index takes no memory until its labels are used.
    """

    ndim = 1
    _levels: tuple[Column, ...] | None
    names: tuple[Any, ...]
    _range: range | None
    _module: str

    @classmethod
    def of(
        cls,
        levels: Sequence[Column] | None,
        names: Sequence[Any] = (None,),
        numbers: range | None = None,
        module: str = arrays.HOST,
    ) -> DeviceIndex:
        """Make an index of columns, or of a range."""
        index = cls.__new__(cls)
        index._levels = None if levels is None else tuple(levels)
        index.names, index._range = tuple(names), numbers
        index._module = arrays.name_of(levels[0].values) if levels else module
        return index

    @property
    def parts(self) -> tuple[Any, tuple[Any, ...], range | None, str]:
        """Columns or range of the index."""
        return self._levels, self.names, self._range, self._module

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).of, self.parts

    @property
    def levels(self) -> tuple[Column, ...]:
        """(n,) labels of each level."""
        if self._levels is None:
            assert self._range is not None
            xp, numbers = arrays.module(self._module), self._range
            values = xp.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
            self._levels = (Column(values, np.dtype(np.int64)),)
        return self._levels

    @property
    def column(self) -> Column:
        """Labels of the only level."""
        if self.nlevels > 1:
            raise unsupported(
                f"an index of {self.nlevels} levels as one column", "use .reset_index() before"
            )
        return self.levels[0]

    @property
    def nlevels(self) -> int:
        """Number of levels."""
        return len(self.names)

    @property
    def name(self) -> Any:
        """Name of the only level."""
        return self.names[0] if self.nlevels == 1 else None

    @name.setter
    def name(self, name: Any) -> None:
        self.names = (name,)

    @property
    def dtype(self) -> Any:
        """The dtype of the only level."""
        if self._levels is None:
            return np.dtype(np.int64)
        return self._levels[0].dtype if self.nlevels == 1 else np.dtype(object)

    @property
    def module(self) -> str:
        """Name of the array module."""
        return self._module

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 0 if self._levels is None else sum(level.nbytes for level in self._levels)

    def __len__(self) -> int:
        return len(self._range) if self._levels is None else len(self._levels[0])  # type: ignore[arg-type]

    def take(self, rows: Any) -> DeviceIndex:
        """Take labels by positions, a mask or a slice."""
        if self._range is not None and isinstance(rows, slice):
            return self.of(None, self.names, self._range[rows], self._module)
        rows = getattr(rows, "column", rows)
        rows = rows.values if isinstance(rows, Column) else rows
        numbers = self._range
        if self._levels is None and numbers is not None and rows.dtype == np.int64:
            labels = rows if numbers == range(len(numbers)) else rows * numbers.step + numbers.start
            return self.of([Column(labels, np.dtype(np.int64))], self.names)
        return self.of([level.take(rows) for level in self.levels], self.names)

    def rename(self, name: Any) -> DeviceIndex:
        """Rename the index."""
        names = list(name) if self.nlevels > 1 and isinstance(name, (list, tuple)) else [name]
        return self.of(self._levels, names, self._range, self._module)

    def copy(self, deep: bool = False) -> DeviceIndex:  # noqa: ARG002, FBT001, FBT002
        """Return another index of the same immutable labels."""
        return self.of(self._levels, self.names, self._range, self._module)

    def place(self, level: Any) -> int:
        """Return the number of a level, given by name or number."""
        if level in self.names:
            return self.names.index(level)
        if isinstance(level, int) and -self.nlevels <= level < self.nlevels:
            return level % self.nlevels
        raise KeyError(f"the index has no level {level!r}, but {list(self.names)}")

    @property
    def is_monotonic_increasing(self) -> bool:
        """True if no label is smaller than the one before."""
        if self._range is not None:
            return self._range.step > 0
        return transform.monotonic(self.column)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_pandas())

    def __dask_tokenize__(self) -> Any:
        return type(self).__name__, self._module, normalize_token(self.to_pandas())

    def __repr__(self) -> str:
        return f"DeviceIndex({self.to_pandas()!r})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.to_pandas(), dtype=dtype)

    def __getattr__(self, name: str) -> Any:
        return refuse(self, pd.Index, name)

    def to_pandas(self) -> pd.Index:
        """Copy all labels to the host."""
        if self._range is not None:
            return pd.RangeIndex(self._range, name=self.name)
        labels = [pd.Index(interop.to_array(level), dtype=level.dtype) for level in self.levels]
        if self.nlevels == 1:
            return labels[0].rename(self.name)
        return pd.MultiIndex.from_arrays(labels, names=self.names)

    def to_series(self, index: Any = None, name: Any = None) -> Any:
        """Return the labels as a series, labelled by themselves."""
        from dask_exo.partitions.gpu_frames.series import DeviceSeries

        name = self.name if name is None else name
        return DeviceSeries.of(self.column, self if index is None else index, name)

    def astype(self, dtype: Any) -> DeviceIndex:
        """Convert labels to another dtype."""
        return DeviceIndex.of([cast(self.column, dtype)], self.names)

    def equals(self, other: Any) -> bool:
        """Return whether all labels are equal."""
        if self is other:
            return True
        if not isinstance(other, DeviceIndex) or len(self) != len(other):
            return False
        if self._range is not None and self._range == other._range:
            return True
        if self.nlevels != other.nlevels:
            return False
        return all(_same(a, b) for a, b in zip(self.levels, other.levels, strict=True))

    def get_slice_bound(self, label: Any, side: str) -> int:
        """Count the labels before the ``side`` ("left" or "right") of a label in a sorted index."""
        before = binary("lt" if side == "left" else "le", self.column, label)
        return int(before.values.sum())


def _same(a: Column, b: Column) -> bool:
    if a is b:
        return True
    if a.dtype != b.dtype:
        return False
    keys = sort_keys.encode(stack([a, b]))
    return bool((keys[: len(a)] == keys[len(a) :]).all())


def numbered(length: int, module: str = arrays.HOST, start: int = 0) -> DeviceIndex:
    """Make a range index from ``start`` on."""
    return DeviceIndex.of(None, numbers=range(start, start + length), module=module)


def from_pandas(index: pd.Index, module: str) -> DeviceIndex:
    """Copy a pandas index to the GPU."""
    if isinstance(index, pd.RangeIndex):
        numbers = range(index.start, index.stop, index.step)
        return DeviceIndex.of(None, [index.name], numbers, module)
    xp = arrays.module(module)
    if isinstance(index, pd.MultiIndex):
        levels = [interop.from_pandas(index.get_level_values(i), xp) for i in range(index.nlevels)]
        return DeviceIndex.of(levels, index.names)
    if index.dtype == object and not len(index):
        index = index.astype("str")
    return DeviceIndex.of([interop.from_pandas(index, xp)], [index.name])


def concat_indexes(indexes: Sequence[DeviceIndex]) -> DeviceIndex:
    """Concatenate indexes."""
    first = indexes[0]
    ranges = [i.parts[2] for i in indexes]
    if all(r is not None and r.step == 1 for r in ranges):
        numbers = [r for r in ranges if r]
        if all(a.stop == b.start for a, b in pairwise(numbers)):
            span = range(numbers[0].start, numbers[-1].stop) if numbers else range(0)
            return DeviceIndex.of(None, first.names, span, first.module)
    levels = [stack(columns) for columns in zip(*(i.levels for i in indexes), strict=True)]
    same_names = all(i.names == first.names for i in indexes)
    return DeviceIndex.of(levels, first.names if same_names else [None] * first.nlevels)
