"""Skip the partial aggregation of a groupby if it would not reduce the rows.

Dask aggregates each partition, shuffles the partial groups and aggregates them again. If hardly two
rows of a partition share a key, the first aggregation saves nothing: each row then becomes a
partial group of its own, with equal columns. A sample of the keys decides for each partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from dask_exo.dask_adapter import apply_func_to_column, apply_funcs, mean_chunk, sum_of_squares
from dask_exo.partitions.kernels import argsort, cardinality

WORTH = 0.75  # groups a row; above it, sending all rows is faster
FEWEST = 10_000  # fewest rows that are sampled


class PartialColumn(NamedTuple):
    """Column of partial groups: its source column, and the aggregation."""

    source: Any
    method: str


def partial_groups(
    frame: Any, *by: Any, chunk: Callable[..., Any], options: dict[str, Any], **reset: Any
) -> Any:
    """Aggregate a partition if that makes it smaller; return keys as columns.

    ``chunk(frame, *by, **options)`` is Dask's aggregation, and ``reset`` are options of
    ``reset_index`` of its result.
    """
    columns, keys = _columns(frame, by, chunk, options), list(by)
    if columns:
        valid = frame[keys]
        if options.get("dropna") is not False:
            valid = valid.dropna()  # nulls are in no group
        values = valid if len(keys) > 1 else valid.iloc[:, 0]
        if len(valid) >= FEWEST and cardinality.estimate_distinct(values) > WORTH * len(valid):
            rows = frame if len(valid) == len(frame) else frame.dropna(subset=keys)
            # the dtypes, as pandas chooses them
            example = chunk(rows.head(1), *by, **options).reset_index(**reset)
            return _rows_as_groups(rows, keys, columns, example)
    return chunk(frame, *by, **options).reset_index(**reset)


def _rows_as_groups(
    rows: pd.DataFrame, keys: list[Any], columns: list[PartialColumn], example: pd.DataFrame
) -> pd.DataFrame:
    """Make each row a group, with the columns and dtypes of an example."""
    series = [rows[key] for key in keys] + [_ungrouped(rows, *column) for column in columns]
    values = {
        place: column.array if column.dtype == dtype else column.astype(dtype).array
        for place, (column, dtype) in enumerate(zip(series, example.dtypes, strict=True))
    }
    return pd.DataFrame(values, copy=False).set_axis(example.columns, axis=1)


def _columns(
    frame: Any, by: tuple[Any, ...], chunk: Any, options: dict[str, Any]
) -> list[PartialColumn] | None:
    """List the columns of partial groups except the keys; None if pandas must compute them."""
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
    frame: pd.DataFrame, by: tuple[Any, ...], *, chunk: Any, columns: Any, **options: Any
) -> list[PartialColumn]:
    if columns is None:
        columns = [name for name in frame.columns if name not in by]
    if any(value for name, value in options.items() if name not in ("observed", "dropna")):
        return []  # numeric_only, say
    labels = [columns] if isinstance(columns, str) else columns if isinstance(columns, list) else []
    return [PartialColumn(label, getattr(chunk, "method", "")) for label in labels]


def _plain(keys: pd.Series[Any]) -> bool:
    return is_numeric_dtype(keys.dtype) or _has_order(keys.dtype)


def _is_supported(values: pd.Series[Any], column: PartialColumn) -> bool:
    """Return whether `_ungrouped` supports the aggregation of a dtype."""
    if column.method in ("sum", "sum of squares", "prod"):
        return is_numeric_dtype(values.dtype) or is_bool_dtype(values.dtype)
    if column.method in ("min", "max"):
        return is_numeric_dtype(values.dtype) or _has_order(values.dtype)
    return column.method == "count"


def _has_order(dtype: Any) -> bool:
    return argsort.is_arrow_string(dtype) or is_datetime64_any_dtype(dtype)


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
