"""Elementwise methods of GPU frames and series, and ``.str``, ``.dt`` and ``.cat`` of a series.

Calendar fields are computed from the days since 1970.

References: H. Hinnant, "chrono-compatible low-level date algorithms" (2013), ``civil_from_days``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu_frames import transform
from dask_exo.partitions.gpu_frames.column import (
    CATEGORY,
    ON_HOST,
    SECOND,
    TEXT,
    Column,
    as_nullable,
    unit_of,
    unsupported,
)
from dask_exo.partitions.gpu_frames.elementwise import Operators
from dask_exo.partitions.gpu_frames.interop import map_distinct, recode
from dask_exo.partitions.gpu_frames.rows import LabelledRows, as_mask


class Values(Operators, LabelledRows):
    """Mixin of `DeviceSeries` and `DeviceFrame`: elementwise methods, column by column."""

    def _per_column(self, operand: Any) -> list[Any]:
        """Return the operand of each column: that of a frame, or one for all."""
        if isinstance(operand, Values) and hasattr(operand, "labels"):
            return operand.arrays
        return [getattr(operand, "column", operand)] * len(self.arrays)

    def _flags(self, flags: Callable[[Column], Any]) -> Any:
        return self.each(lambda column: Column(flags(column), np.dtype(bool)))

    def __neg__(self) -> Any:
        return self.each(lambda column: transform.ufunc(column, "negative"))

    def __invert__(self) -> Any:
        return self.each(lambda column: transform.ufunc(column, "invert"))

    def abs(self) -> Any:
        """Return absolute values."""
        return self.each(lambda column: transform.ufunc(column, "absolute"))

    def __abs__(self) -> Any:
        return self.abs()

    def round(self, decimals: int = 0) -> Any:
        """Round floats to some decimals."""
        return self.each(
            lambda c: replace(c, values=c.values.round(decimals)) if c.kind == "f" else c
        )

    def clip(self, lower: Any = None, upper: Any = None, **_: Any) -> Any:
        """Clip values to two bounds; nulls stay."""
        lower, upper = getattr(lower, "column", lower), getattr(upper, "column", upper)
        return self.each(lambda column: transform.clip(column, lower, upper))

    def isin(self, values: Any) -> Any:
        """Return which values are among others."""
        return self.each(
            lambda column: Column(transform.is_in(column, values), as_nullable(bool, column.dtype))
        )

    def isna(self) -> Any:
        """Return which values are null."""
        return self._flags(lambda column: column.nulls())

    isnull = isna

    def notna(self) -> Any:
        """Return which values are not null."""
        return self._flags(lambda column: ~column.nulls())

    notnull = notna

    def ffill(self, **_: Any) -> Any:
        """Replace nulls by the last value before."""
        return self.each(transform.propagate)

    def bfill(self, **_: Any) -> Any:
        """Replace nulls by the next value."""
        return self.each(lambda column: transform.propagate(column, backward=True))

    def where(self, cond: Any, other: Any = np.nan, **_: Any) -> Any:
        """Choose values where a condition holds, and others elsewhere."""
        return self._where([as_mask(operand) for operand in self._per_column(cond)], other)

    def mask(self, cond: Any, other: Any = np.nan, **_: Any) -> Any:
        """Replace values where a condition holds."""
        return self._where([~as_mask(operand) for operand in self._per_column(cond)], other)

    def _where(self, masks: list[Any], other: Any) -> Any:
        parts = zip(masks, self.arrays, self._per_column(other), strict=True)
        return self._with([transform.choose(*part) for part in parts])

    def replace(self, to_replace: Any = None, value: Any = None, **_: Any) -> Any:
        """Replace values by others."""
        pairs = to_replace if isinstance(to_replace, dict) else {to_replace: value}

        def change(column: Column) -> Column:
            result = column
            for old, new in pairs.items():
                result = transform.choose(~transform.is_in(column, [old]), result, new)
            return result

        return self.each(change)

    def shift(self, periods: int = 1, fill_value: Any = None, **_: Any) -> Any:
        """Shift values by some rows; backwards for a negative number."""
        return self._with(
            [transform.shifted(c, periods, fill_value, name=name) for name, c in self._named()]
        )

    def diff(self, periods: int = 1) -> Any:
        """Subtract the values of rows before."""
        return self.each(lambda column: transform.difference(column, periods))


def _cumulation(name: str) -> Callable[..., Any]:
    def run(self: Values, axis: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ARG001
        return self.each(lambda column: transform.cumulated(column, name))

    run.__doc__ = f"Cumulate the values: {name}."
    return run


for _name in ("cumsum", "cumprod", "cummin", "cummax"):
    setattr(Values, _name, _cumulation(_name))


_STRINGS = frozenset(
    (
        *("capitalize", "casefold", "center", "contains", "count", "endswith", "find"),
        *("fullmatch", "get", "isalnum", "isalpha", "isdecimal", "isdigit", "islower"),
        *("isnumeric", "isspace", "istitle", "isupper", "len", "ljust", "lower"),
        *("lstrip", "match", "pad", "removeprefix", "removesuffix", "repeat", "replace"),
        *("rfind", "rjust", "rstrip", "slice", "slice_replace", "startswith", "strip"),
        *("swapcase", "title", "translate", "upper", "wrap", "zfill"),
    )
)


class ColumnAccessor:
    """Functions of a column of one kind; ``like`` makes a series of a result."""

    _name: str
    _kinds: str
    _needed: str

    def __init__(self, column: Column, like: Callable[[Column], Any]) -> None:
        if column.kind not in self._kinds:
            raise AttributeError(
                f"Can only use .{self._name} accessor with {self._needed}, not {column.dtype}"
            )
        self._column, self._like = column, like


class Strings(ColumnAccessor):
    """``.str``: functions of pandas that map a string to a value.

    Functions run on the host, once for each distinct string.
    """

    _name, _kinds, _needed = "str", TEXT, "string values"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _STRINGS:
            raise unsupported(f".str.{name}")

        def run(*args: Any, **options: Any) -> Any:
            def change(values: pd.Series) -> Any:
                return getattr(values.str, name)(*args, **options)

            empty = change(pd.Series([None], dtype=self._column.dtype))
            # a predicate of a null is False for str, and null for string
            missing = bool(empty.iloc[0]) if empty.dtype == bool else None
            return self._like(map_distinct(self._column, change, missing))

        return run

    def __getitem__(self, place: Any) -> Any:
        return self._like(map_distinct(self._column, lambda values: values.str[place]))


class Times(ColumnAccessor):
    """``.dt``: fields of times, computed on the GPU."""

    _name, _kinds, _needed = "dt", "mM", "times"

    def __getattr__(self, name: str) -> Any:
        column = self._column
        is_zoned = not isinstance(column.dtype, np.dtype)
        fields = DURATIONS if column.kind == "m" else FIELDS
        if name not in fields or is_zoned:
            supported = f"use {', '.join(sorted(fields))} (without a time zone)"
            raise unsupported(f".dt.{name} of {column.dtype}", f"{supported}, or {ON_HOST}")
        return self._like(fields[name](column))


_CATEGORIES = frozenset(
    f"{change}_categories" for change in ("add", "remove", "rename", "reorder", "set")
) | {"as_ordered", "as_unordered"}


class Categories(ColumnAccessor):
    """``.cat``: the categories of a column, which functions of pandas change on the host."""

    _name, _kinds, _needed = "cat", CATEGORY, "a category"

    @property
    def categories(self) -> pd.Index:
        """Categories, on the host."""
        return self._column.dictionary

    @property
    def ordered(self) -> bool:
        """True if the categories are ordered."""
        return bool(self._column.dtype.ordered)

    @property
    def codes(self) -> Any:
        """Code of each row, -1 for nulls."""
        count = len(self.categories)
        dtype = next(d for d in (np.int8, np.int16, np.int32) if count <= np.iinfo(d).max)
        codes = self._like(Column(self._column.values.astype(dtype), np.dtype(dtype)))
        return codes.rename(None)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _CATEGORIES:
            raise unsupported(f".cat.{name}")

        def run(*args: Any, **options: Any) -> Any:
            args = tuple(getattr(argument, "array", argument) for argument in args)
            one_each = pd.Categorical.from_codes(
                range(len(self.categories)), dtype=self._column.dtype
            )
            changed = getattr(one_each, name)(*args, **options)
            return self._like(Column(recode(self._column, changed.codes), changed.dtype))

        return run


_INT32 = np.dtype(np.int32)


def civil(days: Any) -> tuple[Any, Any, Any]:
    """Compute year, month and day of days since 1970-01-01."""
    days = days + 719468  # since 0000-03-01
    era = days // 146097  # of 400 years
    of_era = days - era * 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153  # from March on
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 - 12 * (month >= 10)
    return year + era * 400 + (month <= 2), month, day


def _days(column: Column) -> Any:
    return column.values // (86400 * SECOND[unit_of(column.dtype)])


def _field(compute: Callable[[Column], Any]) -> Callable[[Column], Column]:
    """Convert a field to the dtype of pandas: int32, or float64 if there are nulls."""

    def run(column: Column) -> Column:
        nulls = column.nulls()
        field = compute(column)
        if not bool(nulls.any()):
            return Column(field.astype(_INT32), _INT32)
        values = column.xp.where(nulls, np.nan, field.astype(np.float64))
        return Column(values, np.dtype(np.float64))

    return run


def _part(size: int, count: int) -> Callable[[Column], Any]:
    """Compute a part of a time: units of ``size`` nanoseconds, modulo ``count``."""

    def run(column: Column) -> Any:
        step = 10**9 // SECOND[unit_of(column.dtype)]  # nanoseconds
        if step > size:
            return column.values * (step // size) % count
        return column.values // (size // step) % count

    return run


def _day_of_year(column: Column) -> Any:
    days = _days(column)
    year, _, _ = civil(days)
    before = year - 1
    start = 365 * before + before // 4 - before // 100 + before // 400 - 719162
    return days - start + 1


FIELDS: dict[str, Callable[[Column], Column]] = {
    "year": _field(lambda c: civil(_days(c))[0]),
    "month": _field(lambda c: civil(_days(c))[1]),
    "day": _field(lambda c: civil(_days(c))[2]),
    "quarter": _field(lambda c: (civil(_days(c))[1] + 2) // 3),
    "dayofweek": _field(lambda c: (_days(c) + 3) % 7),
    "day_of_week": _field(lambda c: (_days(c) + 3) % 7),
    "weekday": _field(lambda c: (_days(c) + 3) % 7),
    "dayofyear": _field(_day_of_year),
    "day_of_year": _field(_day_of_year),
    "hour": _field(_part(3600 * 10**9, 24)),
    "minute": _field(_part(60 * 10**9, 60)),
    "second": _field(_part(10**9, 60)),
    "microsecond": _field(_part(1000, 10**6)),
    "nanosecond": _field(_part(1, 1000)),
}
"""Fields of points in time."""


def _whole_days(column: Column) -> Column:
    days = _field(_days)(column)
    return days if days.kind == "f" else Column(days.values.astype(np.int64), np.dtype(np.int64))


DURATIONS: dict[str, Callable[[Column], Column]] = {
    "days": _whole_days,
    "seconds": _field(_part(10**9, 86400)),
}
"""Fields of durations."""
