"""Validation of user arguments: errors say what is wrong, what exists and what to pass."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import dask.dataframe as dd
import numpy as np

from dask_exo.errors import (
    AggregationError,
    ColumnError,
    ExoError,
    MergeArgumentError,
    ShuffleArgumentError,
    SortArgumentError,
)


def labels(frame: dd.DataFrame, by: Any) -> list[Any]:
    """Return the labels of the keys, each of one column or of the index."""
    names = list(by) if isinstance(by, list) else [by]
    if not names:
        raise SortArgumentError("by=[] names no column to sort by: give at least one")
    columns, index = list(frame.columns), frame.index.name
    for name in names:
        count = columns.count(name)
        if count > 1:
            raise SortArgumentError(
                f"by={by!r}: there are {count} columns called {name!r}; rename all but one"
            )
        is_index = index is not None and name == index
        if count and is_index:
            raise SortArgumentError(
                f"by={by!r}: {name!r} is both the index and a column; rename one of them"
            )
        if not count and not is_index:
            raise missing(name, columns, "to sort by")
    return names


def check_columns(names: Sequence[Any], frame: Any, purpose: str) -> None:
    """Raise `ColumnError` unless a frame has all columns of these names."""
    columns = list(frame.columns)
    for name in names:
        if name not in columns:
            raise missing(name, columns, purpose)


def missing(name: Any, columns: Sequence[Any], purpose: str) -> ColumnError:
    """Return an error that names the most similar column."""
    similar = difflib.get_close_matches(str(name), [str(c) for c in columns], n=1)
    hint = f"did you mean {similar[0]!r}?" if similar else f"there are {list(columns)}"
    return ColumnError(f"no column {name!r} {purpose}: {hint}")


def join_keys(  # noqa: PLR0913  as pandas has them
    left: Any,
    right: Any,
    *,
    on: Any,
    left_on: Any,
    right_on: Any,
    left_index: bool,
    right_index: bool,
) -> dict[str, Any]:
    """Return the keys of both sides, as arguments of `pandas.DataFrame.merge` other than ``on``."""
    by_side = left_on is not None or right_on is not None or left_index or right_index
    if on is None and not by_side:
        on = [name for name in left.columns if name in right.columns]
    if on is not None:
        if by_side:
            raise MergeArgumentError(
                f"on={on!r} is given, and left_on, right_on, left_index or right_index too: give "
                f"on, or one of left_on and left_index with one of right_on and right_index"
            )
        left_on = right_on = on
    sides = ((left, left_on, left_index, "left"), (right, right_on, right_index, "right"))
    keys = [_side_keys(*side) for side in sides]
    counts = [1 if names is None else len(names) for names in keys]
    if counts[0] != counts[1] or 0 in counts:
        given = ", ".join(
            f"{side}_index=True" if index else f"{side}_on={names!r}"
            for names, (_, _, index, side) in zip(keys, sides, strict=True)
        )
        raise MergeArgumentError(
            f"{given}: need as many keys of one side as of the other, at least one; an index is one"
        )
    indexes = {"left_index": bool(left_index), "right_index": bool(right_index)}
    return {"left_on": keys[0], "right_on": keys[1], **indexes}


def _side_keys(frame: Any, names: Any, index: bool, side: str) -> list[Any] | None:  # noqa: FBT001
    if index and names is not None:
        raise MergeArgumentError(
            f"{side}_on={names!r} and {side}_index=True: give one of them. To join on columns and "
            f"the index, reset_index() first"
        )
    if index:
        return None
    if names is None:
        raise MergeArgumentError(
            f"nothing is given to join the {side} side on: need {side}_on= or {side}_index=True, "
            f"or on= for columns that both have"
        )
    keys = list(names) if isinstance(names, (list, tuple)) else [names]
    columns = list(frame.columns)
    for name in keys:
        if name not in columns and name is not None and name == frame.index.name:
            raise MergeArgumentError(
                f"{name!r} is the index of the {side} side, not a column: use {side}_index=True, "
                f"or reset_index() first"
            )
    check_columns(keys, frame, "to join on")
    return keys


def directions(ascending: Any, names: Sequence[Any]) -> list[bool]:
    """Return one direction for each key in ``names``."""
    flags = list(ascending) if isinstance(ascending, (list, tuple)) else None
    if flags is not None and len(flags) != len(names):
        raise SortArgumentError(
            f"ascending={ascending!r} has {len(flags)} directions, need one or {len(names)}, as "
            f"many as there are keys in by={list(names)!r}"
        )
    directions = [ascending] * len(names) if flags is None else flags
    if not all(isinstance(flag, (bool, int, np.bool_)) for flag in directions):
        raise SortArgumentError(f"ascending={ascending!r}: need a bool, or a list of bools")
    return [bool(flag) for flag in directions]


def na_position(position: Any) -> str:
    """Return the position of nulls: ``"first"`` or ``"last"``."""
    if position not in ("first", "last"):
        raise SortArgumentError(f"invalid na_position: {position!r}; need 'first' or 'last'")
    return str(position)


def aggregates(spec: Mapping[Any, Any], known: Sequence[str]) -> list[tuple[Any, str]]:
    """Return pairs of a column and an aggregate."""
    requested = [
        (column, name)
        for column, names in spec.items()
        for name in (names if isinstance(names, (list, tuple)) else [names])
    ]
    wrong = [name for _, name in requested if name not in known]
    if wrong or not requested:
        what = f"{wrong[0]!r} is not an aggregate" if wrong else "spec={} is empty"
        hint = "; functions need whole groups: use Dask's groupby(...).apply"
        hint = hint if any(map(callable, wrong)) else ""
        raise AggregationError(f"{what}: there are {', '.join(known)}{hint}")
    repeated = [pair for pair in requested if requested.count(pair) > 1]
    if repeated:
        column, name = repeated[0]
        raise AggregationError(f"{name!r} of {column!r} is requested twice: leave one out")
    return requested


def count(npartitions: Any) -> int | None:
    """Return the number of output partitions; None for as many as the input has."""
    if npartitions is None or npartitions == "auto":
        return None
    is_int = isinstance(npartitions, (int, np.integer)) and not isinstance(npartitions, bool)
    if not is_int or npartitions < 1:
        raise SortArgumentError(
            f"npartitions={npartitions!r}: need a number from 1, None or 'auto'"
        )
    return int(npartitions)


def number_from(
    least: int, name: str, value: Any, error: type[ExoError] = ShuffleArgumentError
) -> None:
    """Raise ``error`` unless an argument is a whole number, ``least`` or more."""
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_int or value < least:
        raise error(f"{name}={value!r}: need a number from {least}")


def concurrency(value: Any, error: type[ExoError]) -> tuple[int, int | None]:
    """Return the least and most parallel calls; None for no upper limit.

    Examples
    --------
    >>> [concurrency(given, ExoError) for given in (None, 4, (1, 4))]
    [(0, None), (0, 4), (1, 4)]
    """
    if value is None:
        return 0, None
    least, most = value if isinstance(value, tuple) and len(value) == 2 else (0, value)
    number_from(0, "concurrency", least, error)
    number_from(max(1, least), "concurrency", most, error)
    return int(least), int(most)
