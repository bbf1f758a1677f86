"""``.str``, ``.dt`` and ``.cat`` of a device series.

Calendar fields are computed from the days since 1970.

References: H. Hinnant, "chrono-compatible low-level date algorithms" (2013), ``civil_from_days``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu_frames.column import CATEGORY, TEXT, Column, unit_of
from dask_exo.partitions.gpu_frames.interop import map_distinct, recategorize

_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT32 = np.dtype(np.int32)


def civil(days: Any) -> tuple[Any, Any, Any]:
    """Compute year, month and day of days since 1970-01-01.

    Examples
    --------
    >>> [int(part[0]) for part in civil(np.array([11016]))]
    [2000, 2, 29]
    """
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
    return column.values // (86400 * _SECOND[unit_of(column.dtype)])


def _field(compute: Callable[[Column], Any]) -> Callable[[Column], Column]:
    """Convert a field to the dtype of pandas: int32, or float64 if there are nulls."""

    def run(column: Column) -> Column:
        nulls = column.nulls()
        found = compute(column)
        if not bool(nulls.any()):
            return Column(found.astype(_INT32), _INT32)
        values = column.xp.where(nulls, np.nan, found.astype(np.float64))
        return Column(values, np.dtype(np.float64))

    return run


def _part(size: int, count: int) -> Callable[[Column], Any]:
    """Compute a part of the day: units of ``size`` seconds, modulo ``count``."""
    return lambda c: c.values // (size * _SECOND[unit_of(c.dtype)]) % count


def _fraction(steps: int, count: int) -> Callable[[Column], Any]:
    """Compute a part of the second: units of 1 / ``steps`` seconds, modulo ``count``."""

    def run(column: Column) -> Any:
        have = _SECOND[unit_of(column.dtype)]
        if have < steps:
            return column.values * (steps // have) % count
        return column.values // (have // steps) % count

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
    "hour": _field(_part(3600, 24)),
    "minute": _field(_part(60, 60)),
    "second": _field(_part(1, 60)),
    "microsecond": _field(_fraction(10**6, 10**6)),
    "nanosecond": _field(_fraction(10**9, 1000)),
}
"""Of points in time."""


def _whole_days(column: Column) -> Column:
    made = _field(_days)(column)
    return made if made.kind == "f" else Column(made.values.astype(np.int64), np.dtype(np.int64))


DURATIONS: dict[str, Callable[[Column], Column]] = {
    "days": _whole_days,
    "seconds": _field(_part(1, 86400)),
}
"""Of durations."""


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
Like = Callable[[Column], Any]


class Strings:
    """``.str``: functions of pandas that map a string to a value.

    Functions run on the host, once for each distinct string.
    """

    def __init__(self, column: Column, like: Like) -> None:
        if column.kind != TEXT:
            raise AttributeError(
                f"Can only use .str accessor with string values, not {column.dtype}"
            )
        self._column, self._like = column, like

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _STRINGS:
            raise DeviceOperationError(
                f".str.{name} does not exist on a device: do it on the host after "
                f".to_backend('pandas')"
            )

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


class Times:
    """``.dt``: fields of times, computed on the GPU."""

    def __init__(self, column: Column, like: Like) -> None:
        if column.kind not in "mM":
            raise AttributeError(f"Can only use .dt accessor with times, not {column.dtype}")
        self._column, self._like = column, like

    def __getattr__(self, name: str) -> Any:
        column = self._column
        is_zoned = not isinstance(column.dtype, np.dtype)
        fields = DURATIONS if column.kind == "m" else FIELDS
        if name not in fields or is_zoned:
            raise DeviceOperationError(
                f".dt.{name} of {column.dtype} does not exist on a device, which has "
                f"{', '.join(sorted(fields))} (without a time zone): do it on the host after "
                f".to_backend('pandas')"
            )
        return self._like(fields[name](column))


class Categories:
    """``.cat``: the categories of a column."""

    def __init__(self, column: Column, like: Like) -> None:
        if column.kind != CATEGORY:
            raise AttributeError(f"Can only use .cat accessor with a category, not {column.dtype}")
        self._column, self._like = column, like

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
        made = self._like(Column(self._column.values.astype(dtype), np.dtype(dtype)))
        return made.rename(None)

    def set_categories(self, new_categories: Any, ordered: bool | None = None) -> Any:  # noqa: FBT001
        """Set other categories; values that are not among them become null."""
        new_categories = getattr(new_categories, "array", new_categories)
        is_ordered = self.ordered if ordered is None else ordered
        dtype = pd.CategoricalDtype(new_categories, is_ordered)
        return self._like(recategorize(self._column, dtype))

    def as_ordered(self) -> Any:
        """Make the categories ordered."""
        return self.set_categories(self.categories, ordered=True)

    def as_unordered(self) -> Any:
        """Make the categories unordered."""
        return self.set_categories(self.categories, ordered=False)

    def add_categories(self, new_categories: Any) -> Any:
        """Add categories."""
        more = [new_categories] if isinstance(new_categories, str) else list(new_categories)
        return self.set_categories(self.categories.append(pd.Index(more)))

    def remove_unused_categories(self) -> Any:
        """Remove categories that no row has."""
        xp = self._column.xp
        used = xp.unique(self._column.values)
        from dask_exo.partitions.gpu.arrays import host

        return self.set_categories(self.categories[host(used[used >= 0])])

    def __getattr__(self, name: str) -> Any:
        raise DeviceOperationError(
            f".cat.{name} does not exist on a device: do it on the host after .to_backend('pandas')"
        )
