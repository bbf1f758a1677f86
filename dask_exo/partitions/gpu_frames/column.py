"""Column in GPU memory: plain arrays of numbers, times or codes.

Strings are codes of a dictionary on the host. Its words are distinct and ascend, so that codes
compare as strings do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import pandas_dtype

from dask_exo.errors import DeviceOperationError, DeviceTypeError
from dask_exo.partitions.gpu import arrays, memory

NAT = np.iinfo(np.int64).min  # a null time
TEXT = "T"  # the kind of strings, for which numpy has no letter
NUMBERS = frozenset("biuf")
TIMES = frozenset("mM")
SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # units of time


@dataclass(frozen=True)
class Column:
    """Values of one dtype in GPU memory.

    Attributes
    ----------
    values : (n,)
        Numbers; int64 in the unit of ``dtype`` for times; codes for strings, -1 for nulls.
    dtype : dtype of pandas
    valid : (n,) bool, optional
        Values of a nullable dtype that are not null; None for all. Other dtypes mark nulls by a
        value.
    words : Index, optional
        Dictionary of strings.
    """

    values: Any
    dtype: Any
    valid: Any = None
    words: Any = None

    def __len__(self) -> int:
        return len(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return Column, (self.values, self.dtype, self.valid, self.words)

    @cached_property
    def kind(self) -> str:
        """Letter of the kind: one of numpy's, or `TEXT`."""
        return kind_of(self.dtype)

    @property
    def xp(self) -> Any:
        """Array module of the values."""
        return arrays.of(self.values)

    @property
    def nullable(self) -> bool:
        """True if ``valid`` marks nulls."""
        return is_nullable(self.dtype)

    @property
    def never_null(self) -> bool:
        """True if no value can be null: integers and booleans without a mask."""
        return self.kind in "biu" and self.__dict__["valid"] is None

    @property
    def nbytes(self) -> int:
        """Bytes of the values in GPU memory, and of the dictionary."""
        size = int(self.values.nbytes) + (0 if self.valid is None else int(self.valid.nbytes))
        return size + (0 if self.words is None else int(self.words.memory_usage()))

    def expose(self) -> Any:
        """Return the values for another library, which keeps only this object alive.

        They are never spilled from then on: that library would read memory of others.
        """
        stored = self.__dict__["values"]
        return stored.expose() if isinstance(stored, memory.View) else stored

    def copied(self) -> Column:
        """Return a copy in memory of its own, on the same GPU."""
        valid = None if self.valid is None else self.valid.copy()
        return replace(self, values=self.values.copy(), valid=valid)

    def nulls(self) -> Any:
        """Return (n,) bool of nulls."""
        xp = self.xp
        if self.nullable:
            return xp.zeros(len(self), bool) if self.valid is None else ~self.valid
        if self.kind == "f":
            return xp.isnan(self.values)
        if self.kind in TIMES:
            return self.values == NAT
        if self.kind == TEXT:
            return self.values < 0
        return xp.zeros(len(self), bool)

    def take(self, rows: Any) -> Column:
        """Take rows by positions, a mask or a slice."""
        valid = None if self.valid is None else self.valid[rows]
        return replace(self, values=self.values[rows], valid=valid)

    def take_or_null(self, rows: Any, *, name: Any = None) -> Column:
        """Take rows by positions, -1 giving a null, in a dtype that can hold nulls."""
        missing = rows < 0
        if not bool(missing.any()):
            return self.take(rows)
        column = self
        if self.kind in "biu" and not self.nullable:
            if self.kind == "b":
                raise DeviceTypeError(
                    f"column {name!r} of booleans would get nulls, for which bool has no value: "
                    f"convert it before with .astype('boolean')"
                )
            column = Column(self.values.astype(np.float64), np.dtype(np.float64))
        if not len(column):  # all rows are missing: one value stands for them
            column = replace(column, values=self.xp.zeros(1, column.values.dtype), valid=None)
        return column.take(self.xp.where(missing, 0, rows)).with_nulls(missing)

    def with_nulls(self, missing: Any) -> Column:
        """Set rows to null, in a dtype that can hold nulls."""
        xp = self.xp
        if self.nullable:
            valid = ~missing if self.valid is None else self.valid & ~missing
            return replace(self, valid=valid)
        null: Any = {"f": np.nan, "m": NAT, "M": NAT}.get(self.kind, -1)
        values = xp.where(missing, xp.asarray(null, self.values.dtype), self.values)
        return replace(self, values=values)


class _ManagedArray:
    """Array of a column, counted in the memory budget of its GPU; see `memory`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, column: Any, owner: type) -> Any:
        stored = column.__dict__[self._name]
        return stored.get() if isinstance(stored, memory.View) else stored

    def __set__(self, column: Any, array: Any) -> None:
        arena = memory.arena_of(array) if array is not None and array.size else None
        column.__dict__[self._name] = array if arena is None else arena.hold(array)


for _name in ("values", "valid"):  # after the dataclass, which would take them for defaults
    setattr(Column, _name, _ManagedArray(_name))


def kind_of(dtype: Any) -> str:
    """Return the letter of a dtype, or raise `DeviceTypeError`; see `Column.kind`."""
    if isinstance(dtype, pd.StringDtype):
        return TEXT
    if isinstance(dtype, pd.DatetimeTZDtype):
        return "M"
    plain = dtype if isinstance(dtype, np.dtype) else getattr(dtype, "numpy_dtype", None)
    is_known = is_nullable(dtype) or isinstance(dtype, np.dtype)
    if is_known and plain is not None and plain.kind in "biufmM" and plain.str[1:] != "f2":
        return str(plain.kind)
    raise DeviceTypeError(
        f"a column of dtype {dtype} is not supported on a GPU, which has numbers, booleans, times "
        f"and strings: convert it before with .astype(...) ('str' for strings) or leave it out"
    )


ON_HOST = "do it on the host after .to_backend('pandas')"


def unsupported(operation: str, instead: str = ON_HOST) -> DeviceOperationError:
    """Return the error for an operation that only the host supports."""
    return DeviceOperationError(f"{operation} is not supported on a GPU: {instead}")


def only(column: Column, kinds: str, name: str) -> None:
    """Raise `DeviceOperationError` unless the kind of a column is one of ``kinds``."""
    if column.kind not in kinds:
        raise unsupported(
            f"{name} of a column of {column.dtype}",
            f"leave it out (numeric_only=True), or {ON_HOST}",
        )


def is_null(value: Any) -> bool:
    """Return whether an operand is a null, and no column."""
    return not isinstance(value, Column) and bool(pd.isna(value))


def is_nullable(dtype: Any) -> bool:
    """Return whether a dtype of numbers is nullable (`Int64`, `boolean`, Arrow)."""
    if not isinstance(dtype, pd.api.extensions.ExtensionDtype):
        return False
    plain = getattr(dtype, "numpy_dtype", None)
    return plain is not None and plain.kind in NUMBERS


def as_nullable(plain: Any, like: Any) -> Any:
    """Return a dtype of numbers that is nullable in the way of another dtype."""
    plain = np.dtype(plain)
    if not is_nullable(like):
        return plain
    if isinstance(like, pd.ArrowDtype):
        return pd.ArrowDtype(pa.from_numpy_dtype(plain))
    name = {"b": "boolean", "f": "Float", "i": "Int", "u": "UInt"}[plain.kind]
    return pandas_dtype(name if plain.kind == "b" else f"{name}{8 * plain.itemsize}")


def numpy_of(dtype: Any) -> np.dtype:
    """Return the numpy dtype of the values in memory."""
    return dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.numpy_dtype)


def unit_of(dtype: Any) -> str:
    """Return the unit of a dtype of times."""
    return str(dtype.unit if isinstance(dtype, pd.DatetimeTZDtype) else np.datetime_data(dtype)[0])
