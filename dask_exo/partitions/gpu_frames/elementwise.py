"""Elementwise arithmetic and comparison of columns.

The dtype of a result, or the error of an unsupported operation, is that of pandas for empty columns
of the same dtypes, or for the same scalar.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames.column import (
    NAT,
    ON_HOST,
    SECOND,
    TEXT,
    TIMES,
    Column,
    is_null,
    numpy_of,
    unit_of,
    unsupported,
)
from dask_exo.partitions.gpu_frames.interop import from_pandas, search, unify

COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def _result_dtype(name: str, left: Any, right: Any) -> Any:
    if isinstance(left, Column) and isinstance(right, Column):
        return _of_dtypes(name, left.dtype, right.dtype)
    sides = [pd.Series([], dtype=x.dtype) if isinstance(x, Column) else x for x in (left, right)]
    return getattr(operator, name)(*sides).dtype


@lru_cache(maxsize=1024)
def _of_dtypes(name: str, left: Any, right: Any) -> Any:
    return getattr(operator, name)(pd.Series([], dtype=left), pd.Series([], dtype=right)).dtype


def binary(name: str, left: Any, right: Any) -> Column:
    """Apply an operator to two columns, or to a column and a scalar.

    Parameters
    ----------
    name : str
        Of a function of `operator`.
    left, right : Column or scalar
        (n,), one of them a column.

    Raises
    ------
    TypeError
        pandas does not support the operation of these dtypes.
    DeviceOperationError
        Only pandas supports it.
    """
    left, right = (_scalar(x) for x in (left, right))
    dtype = _result_dtype(name, left, right)
    columns = [x for x in (left, right) if isinstance(x, Column)]
    kinds = {c.kind for c in columns}
    if name in COMPARISONS and TEXT in kinds:
        return _compare_strings(name, left, right, dtype)
    if TEXT in kinds:
        dtypes = " and ".join(str(c.dtype) for c in columns)
        raise unsupported(f"{name} of columns of {dtypes}")
    if kinds & TIMES:
        return _of_times(name, left, right, dtype)
    return _of_numbers(name, left, right, dtype)


def _scalar(side: Any) -> Any:
    """Return the value of a GPU array without an axis; others as they are."""
    is_value = getattr(side, "shape", None) == () and hasattr(side, "__cuda_array_interface__")
    return side.item() if is_value else side


def _of_numbers(name: str, left: Any, right: Any, dtype: Any) -> Column:
    column: Column = left if isinstance(left, Column) else right
    xp, plain = column.xp, numpy_of(dtype)
    a, b = (x.values if isinstance(x, Column) else x for x in (left, right))
    a, b = (column.values.dtype.type(0) if x is pd.NA else x for x in (a, b))
    if name == "pow" and xp is not np:
        check_exponent(xp, a, b)
    with np.errstate(all="ignore"):
        if name in ("floordiv", "mod") and xp is not np and "f" in {_kind(a), _kind(b)}:
            values = divide_floats(xp, a, b)[name == "mod"]
        else:
            values = getattr(operator, name)(a, b)
        if name in ("floordiv", "mod") and values.dtype.kind in "iu":
            values, dtype = _by_zero(name, a, b, values, dtype)
        elif name == "floordiv" and values.dtype.kind == "f":
            values = xp.where(xp.asarray(b) == 0, xp.true_divide(a, b), values)
    if not isinstance(dtype, np.dtype):
        return _masked(name, left, right, values.astype(plain, copy=False), dtype)
    return Column(values.astype(dtype, copy=False), dtype)


def _kind(side: Any) -> str:
    return str(np.result_type(side).kind if np.isscalar(side) else side.dtype.kind)


def check_exponent(xp: Any, a: Any, b: Any) -> None:
    """Raise the error of numpy: cupy computes a power of integers to a negative one as 0."""
    if _kind(a) in "iu" and _kind(b) == "i" and bool((xp.asarray(b) < 0).any()):
        raise ValueError("Integers to negative integer powers are not allowed.")


def divide_floats(xp: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Return floor and remainder of floats, rounded as numpy does.

    cupy rounds the quotient first: 5.0 // 0.1 is 50 there and 49 in numpy. The remainder by
    ``fmod`` is exact; see ``npy_divmod``.

    Examples
    --------
    >>> floor, rest = divide_floats(np, np.array([5.0, -5.0, 5.0]), np.array([0.1, 0.1, np.inf]))
    >>> floor.tolist(), rest.round(3).tolist()
    ([49.0, -50.0, 0.0], [0.1, 0.0, 5.0])
    """
    rest = xp.fmod(a, b)
    quotient = (a - rest) / b
    other_sign = (rest != 0) & ((rest < 0) != (xp.asarray(b) < 0))
    quotient = xp.where(other_sign, quotient - 1, quotient)
    rest = xp.where(other_sign, rest + b, rest)
    rest = xp.where(rest == 0, xp.copysign(xp.zeros_like(rest), b), rest)
    floor = xp.floor(quotient)
    floor = xp.where(quotient - floor > 0.5, floor + 1, floor)
    floor = xp.where(quotient == 0, xp.copysign(xp.zeros_like(floor), a / b), floor)
    return xp.where(xp.asarray(b) == 0, a / b, floor), rest


def _by_zero(name: str, a: Any, b: Any, values: Any, dtype: Any) -> tuple[Any, Any]:
    """Set integers divided by 0 to infinity or NaN, as pandas does."""
    xp = arrays.of(values)
    zero = xp.asarray(b) == 0
    if not isinstance(dtype, np.dtype) or not bool(zero.any()):
        return values, dtype
    quotients = xp.true_divide(a, b) if name == "floordiv" else np.nan
    return xp.where(zero, quotients, values.astype(np.float64)), np.dtype(np.float64)


def _masked(name: str, left: Any, right: Any, values: Any, dtype: Any) -> Column:
    """Mask a result of nullable dtypes: null if an operand is, except in Kleene logic."""
    column: Column = left if isinstance(left, Column) else right
    xp = column.xp
    masks = [
        ~x.nulls() if isinstance(x, Column) else xp.full(len(column), not is_null(x))
        for x in (left, right)
    ]
    valid = masks[0] & masks[1]
    if name in ("and_", "or_"):
        a, b = (
            x.values if isinstance(x, Column) else xp.full(len(column), x is not pd.NA and bool(x))
            for x in (left, right)
        )
        decided = (masks[0] & (a == (name == "or_"))) | (masks[1] & (b == (name == "or_")))
        values = xp.where(decided, name == "or_", values)
        valid = valid | decided
    elif values.dtype.kind == "f":
        valid = valid & ~xp.isnan(values)
    return Column(values, dtype, None if bool(valid.all()) else valid)


def _of_times(name: str, left: Any, right: Any, dtype: Any) -> Column:
    column: Column = left if isinstance(left, Column) else right
    xp = column.xp
    a, b = _operand(left, column), _operand(right, column)
    is_time = not isinstance(dtype, np.dtype) or dtype.kind in TIMES
    if is_time and name not in COMPARISONS:
        unit = unit_of(dtype)
    else:
        units = [unit_of(x.dtype) for x in (a, b) if x.kind in TIMES]
        unit = max(units, key=SECOND.__getitem__)
    numbers = [in_unit(x, unit) if x.kind in TIMES else x.values for x in (a, b)]
    nulls = a.nulls() | b.nulls()
    with np.errstate(all="ignore"):
        values = getattr(operator, name)(*numbers)
    if name in COMPARISONS:
        return Column(xp.where(nulls, name == "ne", values), np.dtype(bool))
    if not is_time:  # one duration by another
        if dtype.kind != "f" and not bool(nulls.any()):
            return Column(values.astype(dtype), dtype)
        return Column(xp.where(nulls, np.nan, values.astype(np.float64)), np.dtype(np.float64))
    if values.dtype.kind == "f":
        nulls = nulls | xp.isnan(values)
        values = xp.where(nulls, 0, values)
    return Column(xp.where(nulls, np.int64(NAT), values.astype(np.int64)), dtype)


def _operand(side: Any, like: Column) -> Column:
    """Return an operand as a column; a scalar has one row."""
    if isinstance(side, Column):
        return side
    if is_null(side):
        return Column(like.xp.full(1, NAT), like.dtype)
    if isinstance(side, (str, dt.date)):
        side = pd.Timestamp(side)
    return from_pandas(pd.Series([side]), like.xp)


def in_unit(column: Column, unit: str) -> Any:
    """Convert a column of times to (n,) int64 of another unit, rounded down; nulls stay."""
    old, new = SECOND[unit_of(column.dtype)], SECOND[unit]
    if old == new:
        return column.values
    values = column.values * (new // old) if new > old else column.values // (old // new)
    return column.xp.where(column.values == NAT, np.int64(NAT), values)


def _compare_strings(name: str, left: Any, right: Any, dtype: Any) -> Column:
    """Compare strings by their codes."""
    if not isinstance(left, Column):
        name = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}.get(name, name)
        left, right = right, left
    xp = left.xp
    if not isinstance(right, Column):
        values = _with_scalar(name, left, right)
        nulls = left.nulls() | is_null(right)
    else:
        if left.kind != right.kind:
            raise unsupported(
                f"comparing columns of {left.dtype} and {right.dtype}",
                f"convert one with .astype(...), or {ON_HOST}",
            )
        a, b = unify([left, right])
        values = getattr(operator, name)(a.values, b.values)
        nulls = a.nulls() | b.nulls()
    if isinstance(dtype, np.dtype):
        return Column(xp.where(nulls, name == "ne", values), np.dtype(bool))
    return Column(values, dtype, ~nulls if bool(nulls.any()) else None)


def _with_scalar(name: str, column: Column, scalar: Any) -> Any:
    if is_null(scalar):
        return column.xp.zeros(len(column), bool)
    if not isinstance(scalar, str):
        return column.xp.full(len(column), name == "ne")
    place, is_there = search(column.words, scalar)
    codes = column.values
    if name in ("eq", "ne"):  # what no row has has no code, and nulls have -1
        return getattr(operator, name)(codes, place if is_there else -2)
    if name in ("lt", "ge"):
        return getattr(operator, name)(codes, place)
    return codes < place + is_there if name == "le" else codes >= place + is_there


def _dunder(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    return lambda self, other: self.apply_operator(name, other, reflected=reflected)


class Operators:
    """Mixin that maps operators to ``apply_operator(name, other, reflected=...)``."""

    __hash__ = None  # type: ignore[assignment]  # equality is row by row


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor"):
    setattr(Operators, f"__{_name.rstrip('_')}__", _dunder(_name))
    setattr(Operators, f"__r{_name.rstrip('_')}__", _dunder(_name, reflected=True))
for _name in COMPARISONS:
    setattr(Operators, f"__{_name}__", _dunder(_name))


def refuse(owner: object, kind: type, name: str) -> Any:
    """Raise `DeviceOperationError` for an attribute that only pandas has, else AttributeError."""
    owner_name = type(owner).__name__
    if not name.startswith("_") and hasattr(kind, name):
        raise DeviceOperationError(
            f"{owner_name} has no {name!r}, which {kind.__name__} of pandas has: do that step on "
            f"the host, between .to_backend('pandas') and .to_backend('exo-cupy')"
        )
    raise AttributeError(f"{owner_name!r} object has no attribute {name!r}")
