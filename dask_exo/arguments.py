"""Arguments of what a user calls, checked: what is wrong, what there is, and what to give."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
import numpy as np

from dask_exo.errors import (
    ColumnError,
    ExoError,
    MergeArgumentError,
    ShuffleArgumentError,
    SortArgumentError,
)


def labels(frame: dd.DataFrame, by: Any) -> list[Any]:
    """The labels of the keys, each of one column or of the index."""
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
    there = list(frame.columns)
    for name in names:
        if name not in there:
            raise missing(name, there, purpose)


def missing(name: Any, columns: Sequence[Any], purpose: str) -> ColumnError:
    """An error that names the nearest column there is."""
    near = difflib.get_close_matches(str(name), [str(c) for c in columns], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {list(columns)}"
    return ColumnError(f"no column {name!r} {purpose}: {hint}")


def join_keys(
    left: dd.DataFrame, right: Any, on: Any, left_on: Any, right_on: Any
) -> list[list[Any]]:
    """The columns of both sides that are compared."""
    if on is None and left_on is None and right_on is None:
        on = [name for name in left.columns if name in right.columns]
    if on is not None:
        left_on = right_on = on
    keys = [list(one) if isinstance(one, (list, tuple)) else [one] for one in (left_on, right_on)]
    if None in keys[0] or None in keys[1] or len(keys[0]) != len(keys[1]) or not keys[0]:
        raise MergeArgumentError(
            f"left_on={left_on!r}, right_on={right_on!r}: need as many columns of one side as of "
            f"the other, or on= for columns that both have. To join by an index, reset_index() "
            f"first"
        )
    for names, frame in zip(keys, (left, right), strict=True):
        check_columns(names, frame, "to join on")
    return keys


def directions(ascending: Any, names: Sequence[Any]) -> list[bool]:
    """Directions of the keys called ``names``, one for each."""
    given = list(ascending) if isinstance(ascending, (list, tuple)) else None
    if given is not None and len(given) != len(names):
        raise SortArgumentError(
            f"ascending={ascending!r} has {len(given)} directions, need one or {len(names)}, as "
            f"many as there are keys in by={list(names)!r}"
        )
    directions = [ascending] * len(names) if given is None else given
    if not all(isinstance(one, (bool, int, np.bool_)) for one in directions):
        raise SortArgumentError(f"ascending={ascending!r}: need a bool, or a list of bools")
    return [bool(one) for one in directions]


def na_position(given: Any) -> str:
    """Where nulls come."""
    if given not in ("first", "last"):
        raise SortArgumentError(f"invalid na_position: {given!r}; need 'first' or 'last'")
    return str(given)


def count(npartitions: Any) -> int | None:
    """Number of output partitions; None for as many as there are."""
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
