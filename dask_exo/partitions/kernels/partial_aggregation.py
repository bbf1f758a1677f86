"""What a groupby makes of a partition before its rows travel to those of their group.

Dask groups each partition, shuffles the partial groups and groups them once more. Where hardly two
rows of a partition have a key in common, the first grouping saves nothing: there each row becomes a
partial group of its own, in the columns that the grouping would have made. A sample of the keys
decides, for each partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from dask_exo.dask_adapter import apply_func_to_column, apply_funcs, mean_chunk, sum_of_squares
from dask_exo.partitions.kernels import cardinality, string_sort

WORTH = 0.75  # groups for a row: above it is quicker to let the rows travel
FEWEST = 10_000  # rows of which a sample is taken


class PartialColumn(NamedTuple):
    """A column of partial groups: of which column, and what of it."""

    source: Any
    method: str


def partial_groups(
    frame: Any, *by: Any, chunk: Callable[..., Any], options: dict[str, Any], **reset: Any
) -> Any:
    """Group a partition if that makes it smaller, with the keys as columns.

    Parameters
    ----------
    frame : DataFrame
        (n,) rows.
    *by : label or Series
        Keys.
    chunk : callable
        Dask's; ``chunk(frame, *by, **options)`` groups.
    options : dict
    **reset
        For ``reset_index`` of what that returns.

    Returns
    -------
    DataFrame
        A row for each group, or several: their order is that of the first of their rows.
    """
    columns, keys = _columns(frame, by, chunk, options), list(by)
    if columns:
        there = frame[keys]
        if options.get("dropna") is not False:
            there = there.dropna()  # of nulls no group is made
        values = there if len(keys) > 1 else there.iloc[:, 0]
        if len(there) >= FEWEST and cardinality.estimate_distinct(values) > WORTH * len(there):
            rows = frame if len(there) == len(frame) else frame.dropna(subset=keys)
            # the types, which are for pandas to say
            like = chunk(rows.head(1), *by, **options).reset_index(**reset)
            return _rows_as_groups(rows, keys, columns, like)
    return chunk(frame, *by, **options).reset_index(**reset)


def _rows_as_groups(
    rows: pd.DataFrame, keys: list[Any], columns: list[PartialColumn], like: pd.DataFrame
) -> pd.DataFrame:
    """Each row as a group of its own, with the columns of an example."""
    made = [rows[key] for key in keys] + [_ungrouped(rows, *column) for column in columns]
    values = {
        place: one.array if one.dtype == dtype else one.astype(dtype).array
        for place, (one, dtype) in enumerate(zip(made, like.dtypes, strict=True))
    }
    return pd.DataFrame(values, copy=False).set_axis(like.columns, axis=1)


def _columns(
    frame: Any, by: tuple[Any, ...], chunk: Any, options: dict[str, Any]
) -> list[PartialColumn] | None:
    """Which columns partial groups have, beside the keys; None where pandas has to make them."""
    if type(frame) is not pd.DataFrame or len(frame) < FEWEST or not frame.columns.is_unique:
        return None
    if not all(isinstance(key, str) and key in frame and _plain(frame[key]) for key in by):
        return None
    if chunk is apply_funcs:
        columns = [_of_function(*function) for function in options["funcs"]]
    elif chunk is mean_chunk:
        numbers = frame.drop(columns=list(by)).select_dtypes(["number", "bool"]).columns
        columns = [PartialColumn(name, method) for method in ("sum", "count") for name in numbers]
    else:
        columns = _of_chunk(frame, by, **options)
    return (
        columns
        if all(c.source in frame and _is_supported(frame[c.source], c) for c in columns)
        else None
    )


def _of_function(_: str, func: Any, arguments: dict[str, Any]) -> PartialColumn:
    if func is sum_of_squares:
        return PartialColumn(arguments["column"], "sum of squares")
    method = getattr(arguments.get("func"), "method", "") if func is apply_func_to_column else ""
    return PartialColumn(arguments.get("column"), method)


def _of_chunk(
    frame: pd.DataFrame,
    by: tuple[Any, ...],
    *,
    chunk: Any,
    columns: Any,
    **others: Any,
) -> list[PartialColumn]:
    if columns is None:
        columns = [name for name in frame.columns if name not in by]
    if any(value for name, value in others.items() if name not in ("observed", "dropna")):
        return []  # numeric_only, say
    labels = [columns] if isinstance(columns, str) else columns if isinstance(columns, list) else []
    return [PartialColumn(label, getattr(chunk, "method", "")) for label in labels]


def _plain(keys: pd.Series[Any]) -> bool:
    return is_numeric_dtype(keys.dtype) or _has_order(keys.dtype)


def _is_supported(values: pd.Series[Any], column: PartialColumn) -> bool:
    """Whether what pandas would make of a row alone is known here."""
    if column.method in ("sum", "sum of squares", "prod"):
        return is_numeric_dtype(values.dtype) or is_bool_dtype(values.dtype)
    if column.method in ("min", "max"):
        return is_numeric_dtype(values.dtype) or _has_order(values.dtype)
    return column.method == "count"


def _has_order(dtype: Any) -> bool:
    return string_sort.is_arrow_string(dtype) or is_datetime64_any_dtype(dtype)


def _ungrouped(frame: pd.DataFrame, source: Any, method: str) -> pd.Series[Any]:
    values = frame[source]
    if method == "count":
        return values.notna()
    if method == "sum of squares":
        values = values.pow(2)
    if method in ("min", "max"):
        return values
    if not values.isna().any():
        return values
    neutral = 1 if method == "prod" else 0
    return values.fillna(bool(neutral) if is_bool_dtype(values.dtype) else neutral)
