"""Levels of an index: columns of labels, or a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_columns.column import Column
from dask_exo.partitions.gpu_frames.operators import Operators


class LevelsOfIndex(Operators):
    """Base of `DeviceIndex`: its levels, and how to take labels.

    Attributes
    ----------
    names : tuple
        Names of the levels.
    """

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
    ) -> Self:
        """Make an index of columns, or of a range."""
        made = cls.__new__(cls)
        made._levels = None if levels is None else tuple(levels)
        made.names, made._range = tuple(names), numbers
        made._module = arrays.name_of(levels[0].values) if levels else module
        return made

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
            raise DeviceOperationError(
                f"an index of {self.nlevels} levels cannot be one column on a device: take "
                f".reset_index() first"
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

    @property
    def size(self) -> int:
        """Number of labels."""
        return len(self)

    @property
    def shape(self) -> tuple[int]:
        """Number of labels."""
        return (len(self),)

    ndim = 1

    def __len__(self) -> int:
        return len(self._range) if self._levels is None else len(self._levels[0])  # type: ignore[arg-type]

    def take(self, rows: Any) -> Self:
        """Take labels by positions, a mask or a slice."""
        if self._range is not None and isinstance(rows, slice):
            return self.of(None, self.names, self._range[rows], self._module)
        rows = getattr(rows, "column", rows)
        rows = rows.values if isinstance(rows, Column) else rows
        return self.of([level.take(rows) for level in self.levels], self.names)

    def rename(self, name: Any) -> Self:
        """Rename the index."""
        names = list(name) if self.nlevels > 1 and isinstance(name, (list, tuple)) else [name]
        return self.of(self._levels, names, self._range, self._module)

    def set_names(self, names: Any) -> Self:
        """Rename the levels."""
        return self.rename(names)

    def copy(self, deep: bool = False) -> Self:  # noqa: ARG002, FBT001, FBT002
        """Return another index of the same immutable labels."""
        return self.of(self._levels, self.names, self._range, self._module)

    def get_level_values(self, level: Any) -> Self:
        """Return the labels of one level, by number or name."""
        place = self.place(level)
        return self.of([self.levels[place]], [self.names[place]])

    def place(self, level: Any) -> int:
        """Return the number of a level, given by name or number.

        Raises
        ------
        KeyError
            There is none.
        """
        if level in self.names:
            return self.names.index(level)
        if isinstance(level, int) and -self.nlevels <= level < self.nlevels:
            return level % self.nlevels
        raise KeyError(f"the index has no level {level!r}, but {list(self.names)}")
