"""Translate expressions over a Parquet source into a `Table`, as far as rules cover them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.compile.rules import BOOL, CASTS, COMPARISONS, RULES, TELLS_NAN, kind, unit_of
from dask_exo.compile.terms import ComputedColumn, Table, Term, column
from dask_exo.dask_adapter import (
    CoreExpr,
    DataNode,
    DelayedExpr,
    FunctionMap,
    FusedIO,
    PropertyMap,
    ReadParquetFSSpec,
    elementwise,
)

Handler = Callable[["Translator", Any], Table]
FEW = 1_000  # values, which go with every task


class NotCoveredError(Exception):
    """No rule covers an operation; says which."""


def reader_of(expr: CoreExpr) -> CoreExpr:
    """Return what reads the files of a source."""
    inner: CoreExpr = expr.operand("_expr") if isinstance(expr, FusedIO) else expr
    return inner


def is_source(expr: CoreExpr) -> bool:
    """Return whether an expression reads Parquet files as frames that rules know."""
    reader = reader_of(expr)
    if type(reader) is not ReadParquetFSSpec or reader.filters or reader._plan["empty"]:
        return False
    meta = reader._meta
    return (
        isinstance(meta, pd.DataFrame)
        and type(meta.index) is pd.RangeIndex
        and not reader._dataset_info["partitions"]
        and all(
            kind(ComputedColumn(column(""), dtype)) not in ("", "flag") for dtype in meta.dtypes
        )
        and _plain(meta.columns)
    )


def _plain(names: pd.Index) -> bool:
    """Return whether the labels of columns are distinct strings."""
    return names.is_unique and names.name is None and all(type(each) is str for each in names)


class Translator:
    """Translates expressions, each once."""

    def __init__(self) -> None:
        self._known: dict[str, Table | str] = {}  # or the reason why there is none

    def result(self, expr: CoreExpr) -> Table:
        """Return the table of an expression whose values leave Polars."""
        table = self.table(expr)
        for each in table.columns.values():
            if kind(each) in ("", "flag"):
                raise NotCoveredError(f"a result of {each.dtype}")
        return table

    def table(self, expr: Any) -> Table:
        """Return the table of an expression.

        Raises
        ------
        NotCoveredError
            No rule covers it, or something below it.
        """
        if not isinstance(expr, CoreExpr):
            raise NotCoveredError(f"a constant {type(expr).__name__}")
        found = self._known.get(expr._name)
        if found is None:
            try:
                found = self._translate(expr)
            except NotCoveredError as error:  # not kept: it refers to frames of all callers
                found = str(error)
            self._known[expr._name] = found
        if isinstance(found, str):
            raise NotCoveredError(found)
        return found

    def series(self, expr: Any, rows: Table | None = None) -> Table:
        """Return the table of a series, which has the same rows as another table."""
        found = self.table(expr)
        if not found.series or (rows is not None and not found.same_rows(rows)):
            raise NotCoveredError("operations of frames, or of different rows")
        return found

    def _translate(self, expr: CoreExpr) -> Table:
        if is_source(expr):
            meta = expr._meta
            columns = {n: ComputedColumn(column(n), meta[n].dtype) for n in meta.columns}
            return Table(expr._name, columns)
        handler = _HANDLERS.get(type(expr))
        if handler is None:
            raise NotCoveredError(type(expr).__name__)
        return handler(self, expr)


def constant_of(expr: DelayedExpr) -> Any:
    """Return a delayed value; raise `NotCoveredError` if it is still to be computed."""
    delayed = expr.operand("obj")
    node = delayed.dask[delayed.key]
    if not isinstance(node, DataNode):
        raise NotCoveredError("a value that is still to be computed")
    return node.value


def _checked(operation: str, *inputs: Any, constants: tuple[Any, ...] = ()) -> Term:
    """Return the term of an operation on columns and constants.

    Raises
    ------
    NotCoveredError
        Its rule does not hold for the kinds of the inputs.
    """
    kinds = tuple(map(kind, inputs))
    dtypes = [each.dtype for each in inputs if isinstance(each, ComputedColumn)]
    if kinds not in RULES[operation].kinds:
        raise NotCoveredError(f"{operation} of {' and '.join(each or 'others' for each in kinds)}")
    if kinds == ("time", "time") and len(set(dtypes)) > 1:
        raise NotCoveredError(f"{operation} of times in different units")
    zeros = [each for each in inputs if not isinstance(each, ComputedColumn) and each == 0]
    if operation in ("add", "sub") and zeros and "float" in kinds:
        raise NotCoveredError(f"{operation} of zero")
    terms = [e.term if isinstance(e, ComputedColumn) else _constant(e, dtypes[0]) for e in inputs]
    if operation in TELLS_NAN:
        terms = [
            Term("missing", (term,)) if name == "float" and _can_be_nan(term) else term
            for term, name in zip(terms, kinds, strict=True)
        ]
    if operation in COMPARISONS and kinds == ("time", "time"):
        dates = [date for each in terms if (date := _date(each))]
        terms = dates if len(dates) == len(terms) else terms
    term = Term(operation, tuple(terms), constants)
    if "string" in kinds or not (operation in COMPARISONS or operation in _PREDICATES):
        return term
    return Term("filled", (term,), (operation == "ne",))


def _can_be_nan(term: Term) -> bool:
    """Return whether a term of floats can be NaN: those made of decimals cannot."""
    while term.operation == "cast":
        (term,), (target, _) = term.inputs, term.constants
        if target == "double[pyarrow]":  # of a decimal
            return False
    return term.operation != "constant"


def _date(term: Term) -> Term | None:
    """Return a term of dates that compares as one of times does; None if there is none."""
    if term.operation == "time":
        stamp, unit = term.constants
        days, rest = divmod(stamp, DAY)
        return None if rest or unit != "ms" else Term("date", (), (days,))
    for target in ("datetime64[s]", "timestamp[s][pyarrow]"):
        if term.operation != "cast" or term.constants[0] != target:
            return None
        (term,) = term.inputs
    return term


DAY = 86_400_000  # milliseconds
_PREDICATES = frozenset({"str.startswith", "str.endswith", "str.contains"})


def _constant(value: Any, dtype: Any) -> Term:
    """Return the term of a constant beside a column of some dtype."""
    if isinstance(value, pd.Timestamp | np.datetime64):
        stamp, unit = pd.Timestamp(value), unit_of(dtype)
        if stamp.as_unit(unit) != stamp:
            raise NotCoveredError(f"a time between two units of {dtype}")
        return Term("time", (), (int(stamp.as_unit(unit).asm8.view("i8")), unit))
    return Term("constant", (), (value.item() if isinstance(value, np.generic) else value,))


def _as_series(rows: Table, expr: CoreExpr, term: Term) -> Table:
    return rows.select({expr._meta.name: ComputedColumn(term, expr._meta.dtype)}, series=True)


def _binary(operation: str) -> Handler:
    def handler(translator: Translator, expr: Any) -> Table:
        sides = (expr.left, expr.right)
        first = next(each for each in sides if isinstance(each, CoreExpr))
        rows = translator.series(first)
        inputs = [
            translator.series(each, rows).only if isinstance(each, CoreExpr) else each
            for each in sides
        ]
        return _as_series(rows, expr, _checked(operation, *inputs))

    return handler


def _unary(operation: str) -> Handler:
    def handler(translator: Translator, expr: Any) -> Table:
        rows = translator.series(expr.frame)
        return _as_series(rows, expr, _checked(operation, rows.only))

    return handler


def _projection(translator: Translator, expr: Any) -> Table:
    table, columns = translator.table(expr.frame), expr.operand("columns")
    if table.series:
        raise NotCoveredError("an item of a series")
    if isinstance(columns, pd.Index | list):
        if len(set(columns)) < len(columns):
            raise NotCoveredError("a column that is selected twice")
        return table.select({name: table.columns[name] for name in columns})
    return table.select({columns: table.columns[columns]}, series=True)


def _assign(translator: Translator, expr: Any) -> Table:
    table = translator.table(expr.frame)
    columns = dict(table.columns)
    for name, value in zip(expr.keys, expr.vals, strict=True):
        columns[name] = translator.series(value, table).only
        if kind(columns[name]) == "flag":
            raise NotCoveredError("booleans that can be missing")
    return table.select(columns)


def _filter(translator: Translator, expr: Any) -> Table:
    table = translator.table(expr.frame)
    condition = translator.series(expr.predicate, table).only
    if kind(condition) not in ("bool", "flag"):
        raise NotCoveredError(f"a filter by {condition.dtype}")
    return table.where(condition.term)


def _renamed(translator: Translator, expr: Any) -> Table:
    table, names = translator.table(expr.frame), expr._meta.columns
    if not _plain(names):
        raise NotCoveredError("columns whose labels are not distinct strings")
    return table.select(dict(zip(names, table.columns.values(), strict=True)))


def _dropna(translator: Translator, expr: Any) -> Table:
    table = translator.table(expr.frame)
    names = expr.operand("subset") if "subset" in expr._parameters else None
    if "how" in expr._parameters and {"all"} & {expr.operand("how")}:
        raise NotCoveredError("dropna(how='all')")
    if "thresh" in expr._parameters and isinstance(expr.operand("thresh"), int):
        raise NotCoveredError("dropna(thresh=…)")
    names = list(table.columns) if names is None else [names] if isinstance(names, str) else names
    read = [table.columns[name] for name in names]
    return table.where(
        *(_checked("notna", each) for each in read if kind(each) not in ("int", "int32", "bool"))
    )


def _fillna(translator: Translator, expr: Any) -> Table:
    rows, value = translator.series(expr.frame), expr.operand("value")
    if expr._meta.dtype != rows.only.dtype or isinstance(value, CoreExpr):
        raise NotCoveredError("fillna by values of another type")
    return _as_series(rows, expr, _checked("fillna", rows.only, value))


def _keep(operation: str) -> Handler:
    """Return the handler of ``where`` and ``mask`` of a series."""

    def handler(translator: Translator, expr: Any) -> Table:
        rows, other = translator.series(expr.frame), expr.operand("other")
        condition = translator.series(expr.cond, rows).only
        if condition.dtype != BOOL or expr._meta.dtype != rows.only.dtype:
            raise NotCoveredError(f"{operation} by {condition.dtype}")
        term = _checked("keep", rows.only)
        chosen = condition.term if operation == "where" else Term("invert", (condition.term,))
        others: tuple[Term, ...] = ()
        if isinstance(other, CoreExpr):
            values = translator.series(other, rows).only
            if values.dtype != rows.only.dtype:
                raise NotCoveredError(f"{operation} with values of another type")
            others = (values.term,)
        elif kind(other) == kind(rows.only).replace("string", "text"):
            others = (_constant(other, rows.only.dtype),)
        elif not (type(other) is float and np.isnan(other)):
            raise NotCoveredError(f"{operation} with {type(other).__name__}")
        return _as_series(rows, expr, term._replace(inputs=(rows.only.term, chosen, *others)))

    return handler


def _astype(translator: Translator, expr: Any) -> Table:
    rows = translator.series(expr.frame)
    target = expr._meta.dtype
    if (kind(rows.only), str(target)) not in CASTS:
        raise NotCoveredError(f"astype from {rows.only.dtype} to {target}")
    scale = rows.only.dtype.pyarrow_dtype.scale if kind(rows.only) == "decimal" else 0
    return _as_series(rows, expr, Term("cast", (rows.only.term,), (str(target), scale)))


def _between(translator: Translator, expr: Any) -> Table:
    rows = translator.series(expr.frame)
    if kind(rows.only) == "string":
        raise NotCoveredError("between of strings")
    low = "ge" if expr.inclusive in ("both", "left") else "gt"
    high = "le" if expr.inclusive in ("both", "right") else "lt"
    limits = _checked(low, rows.only, expr.left), _checked(high, rows.only, expr.right)
    return _as_series(rows, expr, Term("and", limits))


def _isin(translator: Translator, expr: Any) -> Table:
    rows, values = translator.series(expr.frame), expr.operand("values")
    if isinstance(values, DelayedExpr):
        values = constant_of(values)
    if isinstance(values, np.ndarray) and values.ndim == 1:
        values = values.tolist()
    expected = kind(rows.only).replace("string", "text")
    if not isinstance(values, list) or len(values) > FEW or set(map(kind, values)) != {expected}:
        raise NotCoveredError("isin values of another type, or many")
    return _as_series(rows, expr, _checked("isin", rows.only, constants=tuple(values)))


_PATTERN = re.compile(r"[\w ]*(\.\*[\w ]*)*")  # both libraries read these alike


def _accessor(translator: Translator, expr: Any) -> Table:
    rows = translator.series(expr.frame)
    operation = f"{expr.operand('accessor')}.{expr.operand('attr')}"
    is_method = "args" in expr._parameters
    args = tuple(expr.operand("args")) if is_method else ()
    kwargs = expr.operand("kwargs") if is_method else {}
    if operation not in RULES or kwargs or not _allowed(operation, args):
        raise NotCoveredError(operation)
    return _as_series(rows, expr, _checked(operation, rows.only, constants=args))


def _allowed(operation: str, args: tuple[Any, ...]) -> bool:
    """Return whether both libraries read the arguments of an accessor's method alike."""
    if operation == "str.slice":
        places = len(args) == 2 and all(type(each) is int for each in args)
        return places and 0 <= args[0] <= args[1]
    if operation.startswith("str."):
        plain = len(args) == 1 and type(args[0]) is str
        return plain and (operation != "str.contains" or bool(_PATTERN.fullmatch(args[0])))
    return not args


_HANDLERS: dict[type, Handler] = {
    elementwise.Projection: _projection,
    elementwise.Assign: _assign,
    elementwise.Filter: _filter,
    elementwise.RenameFrame: _renamed,
    elementwise.ColumnsSetter: _renamed,
    elementwise.ToFrame: _renamed,
    elementwise.DropnaFrame: _dropna,
    elementwise.DropnaSeries: _dropna,
    elementwise.Fillna: _fillna,
    elementwise.Where: _keep("where"),
    elementwise.Mask: _keep("mask"),
    elementwise.AsType: _astype,
    elementwise.Between: _between,
    elementwise.Isin: _isin,
    elementwise.Invert: _unary("invert"),
    elementwise.Neg: _unary("neg"),
    elementwise.Abs: _unary("abs"),
    elementwise.IsNa: _unary("isna"),
    elementwise.NotNull: _unary("notna"),
    FunctionMap: _accessor,
    PropertyMap: _accessor,
    **{
        getattr(elementwise, name): _binary(name.lower())
        for name in ("Add", "Sub", "Mul", "Div", "EQ", "NE", "LT", "LE", "GT", "GE", "And", "Or")
    },
}
