"""Joins of GPU frames, as in pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu.stack import stack
from dask_exo.partitions.gpu_columns.column import Column
from dask_exo.partitions.gpu_columns.join import HOWS, pairs
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, numbered
from dask_exo.partitions.gpu_frames.series import DeviceSeries


def merge(  # noqa: PLR0913  as pandas has them
    left: DeviceFrame,
    right: Any,
    how: Any = "inner",
    on: Any = None,
    *,
    left_on: Any = None,
    right_on: Any = None,
    left_index: bool = False,
    right_index: bool = False,
    suffixes: tuple[Any, Any] = ("_x", "_y"),
    indicator: Any = False,
    **_: Any,
) -> DeviceFrame:
    """Join two frames.

    Parameters
    ----------
    left, right : DeviceFrame
        (n,) and (m,) rows.
    how, on, left_on, right_on, left_index, right_index, suffixes, indicator
        As of `pandas.merge`; "leftsemi" besides, as Dask has it.

    Returns
    -------
    DeviceFrame

    Raises
    ------
    DeviceOperationError
        There is no such join on a device.
    ValueError
        Labels of columns would repeat.
    """
    if how not in HOWS:
        raise DeviceOperationError(
            f"merge(how={how!r}) does not exist on a device, which has {', '.join(HOWS)}: use "
            f".to_backend('pandas')"
        )
    right = right.to_frame() if isinstance(right, DeviceSeries) else right
    if on is None and left_on is None and right_on is None and not (left_index or right_index):
        on = [label for label in left.columns if label in right.columns]
    left_names = _names(left, on if on is not None else left_on, from_index=left_index)
    right_names = _names(right, on if on is not None else right_on, from_index=right_index)
    mine, theirs = _keys(left, left_names), _keys(right, right_names)
    rows = pairs(mine, theirs, how)
    if how == "leftsemi":
        return left.take_rows(rows[0]).numbered()
    index, key = _index(left, right, rows, (mine, theirs), (left_index, right_index))
    shared = [
        (a, b) for a, b in zip(left_names, right_names, strict=True) if a is not None and a == b
    ]
    columns, labels = _columns(left, right, rows, [a for a, _ in shared], suffixes, key)
    made = DeviceFrame.of(columns, labels, index)
    if indicator:
        _mark(made, rows, indicator)
    return made


def _names(frame: DeviceFrame, names: Any, *, from_index: bool) -> list[Any]:
    """Return the labels of the keys; None is the index."""
    if from_index:
        return [None]
    several = list(names) if isinstance(names, (list, tuple, pd.Index)) else [names]
    for name in several:
        if name not in frame.columns and name not in frame.index.names:
            raise KeyError(name)
    return several


def _keys(frame: DeviceFrame, names: Sequence[Any]) -> list[Column]:
    if list(names) == [None]:
        return list(frame.index.levels)
    return frame.key_columns(names)


def _both(mine: Column, theirs: Column, rows: tuple[Any, Any]) -> Column:
    """Combine the keys of both sides: the left one, or the right one if it is missing."""
    left, right = rows
    if not bool((left < 0).any()):
        return mine.take(left)
    whole = stack([mine, theirs])
    return whole.take(mine.xp.where(left < 0, right + len(mine), left))


def _index(
    left: DeviceFrame,
    right: DeviceFrame,
    rows: tuple[Any, Any],
    keys: tuple[Sequence[Column], Sequence[Column]],
    by_index: tuple[bool, bool],
) -> tuple[DeviceIndex, Any]:
    """Return the index of the result, and the combined key if it is the index."""
    if not any(by_index):
        return numbered(len(rows[0]), left.module), None
    joined = [_both(a, b, rows) for a, b in zip(*keys, strict=True)]
    if all(by_index):
        names = left.index.names if left.index.names == right.index.names else [None] * len(joined)
        return DeviceIndex.of(joined, names), joined
    # labels of the side that was not joined by its own
    side = 1 if by_index[0] else 0
    other = (left, right)[side].index
    if bool((rows[side] < 0).any()):
        raise DeviceOperationError(
            "a join of columns with an index, in which rows have no partner, does not exist on a "
            "device: .reset_index() before"
        )
    return other.take(rows[side]), joined


def _columns(  # noqa: PLR0917
    left: DeviceFrame,
    right: DeviceFrame,
    rows: tuple[Any, Any],
    shared: Sequence[Any],
    suffixes: tuple[Any, Any],
    key: Any,  # noqa: ARG001
) -> tuple[list[Column], pd.Index]:
    """Return the columns of both sides, shared keys once."""
    kept = [label for label in right.columns if label not in set(shared)]
    double = set(left.columns) & set(kept)
    if double and not any(suffixes):
        raise ValueError(f"columns overlap but no suffix specified: {sorted(map(str, double))}")
    columns: list[Column] = []
    labels: list[Any] = []
    for label, series in left.items():
        if label in shared:
            columns.append(_both(series.column, right[label].column, rows))
        else:
            columns.append(series.column.take_or_null(rows[0], name=label))
        labels.append(f"{label}{suffixes[0]}" if label in double and suffixes[0] else label)
    for label in kept:
        columns.append(right[label].column.take_or_null(rows[1], name=label))
        labels.append(f"{label}{suffixes[1]}" if label in double and suffixes[1] else label)
    return columns, pd.Index(labels, dtype=object if not labels else None)


def _mark(frame: DeviceFrame, rows: tuple[Any, Any], indicator: Any) -> None:
    """Add the indicator column: the sides that a row comes from."""
    xp = frame.arrays[0].xp
    sides = xp.where(rows[0] < 0, 1, xp.where(rows[1] < 0, 0, 2)).astype(np.int32)
    dtype = pd.CategoricalDtype(["left_only", "right_only", "both"])
    name = "_merge" if indicator is True else indicator
    frame[name] = DeviceSeries.of(Column(sides, dtype), frame.index)
