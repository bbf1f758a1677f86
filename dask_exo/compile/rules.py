"""The rules: which operations Polars does as pandas does, for which dtypes.

A missing float is null or NaN, whichever Polars makes of it. Operations that tell them apart get
nulls only (``missing``). Integers and booleans have no nulls: `dask_exo.compile.query` checks it.
pandas has two dtypes of strings. Comparisons of a missing ``str`` are False (True for ``!=``), and
those of a missing ``string`` are missing: a ``flag``, which a filter can use.

No rule covers what differs:

* ``x + 0`` and ``0 - x`` of floats: Polars leaves out the zero, and so the sign of ``-0.0``.
* Sums, also of groups: pandas compensates their rounding.
* ``str.lower``, ``str.strip`` and the like: other tables of Unicode.
* ``round``: ties and halves. ``//`` and ``%``: zero divisors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.compile.terms import ComputedColumn

TIMES = frozenset(np.dtype(f"datetime64[{unit}]") for unit in ("s", "ms", "us", "ns"))
BOOL = np.dtype(bool)
DIGITS = 15  # of integers that are exact as floats
_NUMPY_KINDS = {"int64": "int", "int32": "int32", "float64": "float", "bool": "bool"}


def kind(value: Any) -> str:
    """Return the kind of a column or constant, by which rules decide; empty if no rule has it."""
    if isinstance(value, ComputedColumn):
        return _kind_of_dtype(value.dtype)
    return _kind_of_constant(value)


def _kind_of_constant(value: Any) -> str:
    if isinstance(value, pd.Timestamp | np.datetime64):
        stamp = pd.Timestamp(value)
        return "time" if stamp is not pd.NaT and stamp.tz is None and not stamp.nanosecond else ""
    match value.item() if isinstance(value, np.bool_ | np.int64 | np.float64) else value:
        case bool():
            return "bool"
        case int(number) if abs(number) < 2**62:
            return "int"
        case float(number) if not np.isnan(number):
            return "float"
        case str(text) if "\0" not in text:
            return "text"
    return ""


def _kind_of_dtype(dtype: Any) -> str:
    if isinstance(dtype, pd.ArrowDtype):
        return _kind_of_arrow(dtype.pyarrow_dtype)
    if isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow":
        return "string" if dtype.na_value is pd.NA else "text"
    if isinstance(dtype, pd.BooleanDtype):
        return "flag"
    return "time" if dtype in TIMES else _NUMPY_KINDS.get(str(dtype), "")


def _kind_of_arrow(arrow: pa.DataType) -> str:
    if pa.types.is_decimal128(arrow):
        return "decimal" if arrow.precision <= DIGITS and arrow.scale >= 0 else "long decimal"
    if pa.types.is_date32(arrow):
        return "date"
    if pa.types.is_float64(arrow):
        return "arrow float"
    if pa.types.is_boolean(arrow):
        return "flag"
    return "arrow time" if pa.types.is_timestamp(arrow) and arrow.tz is None else ""


def unit_of(dtype: Any) -> str:
    """Return the unit that Polars has for the times of a dtype: it has no seconds."""
    unit = np.datetime_data(dtype)[0]
    return "ms" if unit == "s" else unit


class Rule(NamedTuple):
    """Kinds of inputs for which an operation is the same, and the Polars expression.

    ``build`` gets a Polars expression for each input, then the constants.
    """

    kinds: frozenset[tuple[str, ...]]
    build: Callable[..., Any]


def _each(*names: str) -> frozenset[tuple[str, ...]]:
    return frozenset((name,) for name in names)


def _pairs(*names: str) -> frozenset[tuple[str, ...]]:
    return frozenset((a, b) for a in names for b in names)


def _same(*names: str) -> frozenset[tuple[str, ...]]:
    return frozenset((name, name) for name in names)


def _keep(a: Any, condition: Any, *others: Any) -> Any:
    import polars as pl

    return pl.when(condition).then(a).otherwise(others[0] if others else None)


def _divide(a: Any, b: Any) -> Any:
    import polars as pl

    a = a.cast(pl.Float64)
    if b.meta.is_literal():  # Polars multiplies by the reciprocal of one value: one for each row
        b = (a.is_nan().cast(pl.Float64) * 0.0 + 1.0) * b
    return a / b


_NUMBER = _pairs("int", "float")
_COMPARED = _NUMBER | _pairs("int", "int32") | _same("text", "time", "bool") | {("string", "text")}
_NULLABLE = ("float", "text", "string", "time")
_LOGIC = _pairs("bool", "flag")
_TEXT, _TIME = _each("text", "string"), _each("time")

RULES: dict[str, Rule] = {
    "add": Rule(_NUMBER, lambda a, b: a + b),
    "sub": Rule(_NUMBER, lambda a, b: a - b),
    "mul": Rule(_NUMBER, lambda a, b: a * b),
    "div": Rule(_NUMBER, _divide),
    "neg": Rule(_each("float"), lambda a: -a),
    "abs": Rule(_each("float"), lambda a: a.abs()),
    "eq": Rule(_COMPARED, lambda a, b: a.eq(b)),
    "ne": Rule(_COMPARED, lambda a, b: a.ne(b)),
    "lt": Rule(_COMPARED, lambda a, b: a.lt(b)),
    "le": Rule(_COMPARED, lambda a, b: a.le(b)),
    "gt": Rule(_COMPARED, lambda a, b: a.gt(b)),
    "ge": Rule(_COMPARED, lambda a, b: a.ge(b)),
    "and": Rule(_LOGIC, lambda a, b: a & b),
    "or": Rule(_LOGIC, lambda a, b: a | b),
    "invert": Rule(_each("bool", "flag"), lambda a: ~a),
    "filled": Rule(_each("flag"), lambda a, value: a.fill_null(value)),
    "missing": Rule(_each("float"), lambda a: a.fill_nan(None)),
    "isna": Rule(_each(*_NULLABLE), lambda a: a.is_null()),
    "notna": Rule(_each(*_NULLABLE), lambda a: a.is_not_null()),
    "fillna": Rule(
        _same(*_NULLABLE) | {("float", "int"), ("string", "text")}, lambda a, b: a.fill_null(b)
    ),
    "keep": Rule(_each(*_NULLABLE), _keep),
    "isin": Rule(
        _each("int", "text", "string"), lambda a, *v: a.is_in(list(v)).fill_null(value=False)
    ),
    "str.startswith": Rule(_TEXT, lambda a, text: a.str.starts_with(text)),
    "str.endswith": Rule(_TEXT, lambda a, text: a.str.ends_with(text)),
    "str.contains": Rule(_TEXT, lambda a, text: a.str.contains(text)),
    "str.slice": Rule(_TEXT, lambda a, start, stop: a.str.slice(start, stop - start)),
    "dt.year": Rule(_TIME, lambda a: a.dt.year()),
    "dt.quarter": Rule(_TIME, lambda a: a.dt.quarter()),
    "dt.month": Rule(_TIME, lambda a: a.dt.month()),
    "dt.day": Rule(_TIME, lambda a: a.dt.day()),
    "dt.day_of_week": Rule(_TIME, lambda a: a.dt.weekday() - 1),
    "dt.hour": Rule(_TIME, lambda a: a.dt.hour()),
    "dt.minute": Rule(_TIME, lambda a: a.dt.minute()),
    "dt.second": Rule(_TIME, lambda a: a.dt.second()),
}
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
TELLS_NAN = COMPARISONS | {"isna", "notna", "fillna"}
"""Operations for which a NaN and a null are not alike in Polars."""

CASTS = frozenset(
    {
        ("decimal", "double[pyarrow]"),
        ("arrow float", "float64"),
        ("date", "timestamp[s][pyarrow]"),
        ("arrow time", "datetime64[s]"),
        ("int", "float64"),
        ("int32", "int64"),
        ("int32", "float64"),
        ("bool", "int64"),
        ("bool", "float64"),
    }
)
"""Kinds and the dtypes they can be cast to."""
