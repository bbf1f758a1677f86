"""Calendar fields of times, computed from the days since 1970.

References: H. Hinnant, "chrono-compatible low-level date algorithms" (2013), ``civil_from_days``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_exo.partitions.gpu_columns.column import Column, unit_of

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
