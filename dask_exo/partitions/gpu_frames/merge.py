"""Joins and concatenation of GPU frames, as in pandas.

A join counts rows in a table over numbered keys. Keys in a narrow range of integers number
themselves; others are ranked by a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import Column
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, concat_indexes, numbered
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.gpu_frames.transform import stack


def concat(
    objects: Sequence[Any], axis: Any = 0, join: str = "outer", *, ignore_index: bool = False
) -> Any:
    """Concatenate along rows (axis 0) or columns (axis 1).

    Categories are united. Columns that a frame lacks are null in its rows.

    Raises
    ------
    DeviceOperationError
        Frames beside each other have different labels of rows.
    """
    if axis in (1, "columns"):
        return _beside(objects)
    if all(isinstance(one, DeviceIndex) for one in objects):
        return concat_indexes(objects)
    frames = [one for one in objects if isinstance(one, DeviceFrame)]
    if frames and len(frames) < len(objects):
        objects = [one if isinstance(one, DeviceFrame) else one.to_frame() for one in objects]
    index = concat_indexes([one.index for one in objects])
    if ignore_index:
        index = numbered(len(index), index.module)
    if not frames:
        names = {one.name for one in objects}
        column = stack([one.column for one in objects])
        return DeviceSeries.of(column, index, names.pop() if len(names) == 1 else None)
    return _below(objects, index, join)


def _below(frames: Sequence[DeviceFrame], index: DeviceIndex, join: str) -> DeviceFrame:
    first = frames[0]
    if all(first.columns.equals(frame.columns) for frame in frames[1:]):
        columns = [stack(some) for some in zip(*(f.arrays for f in frames), strict=True)]
        return DeviceFrame.of(columns, first.columns, index)
    empty = [pd.DataFrame([], columns=frame.columns) for frame in frames]
    labels = pd.concat(empty, join=join).columns
    columns = []
    for label in labels:
        model = next(frame[label].column for frame in frames if label in frame.columns)
        none = model.take(slice(0, 0))
        parts = [
            frame[label].column
            if label in frame.columns
            else none.take_or_null(model.xp.full(len(frame), -1), name=label)
            for frame in frames
        ]
        columns.append(stack(parts))
    return DeviceFrame.of(columns, labels, index)


def _beside(objects: Sequence[Any]) -> DeviceFrame:
    index = objects[0].index
    frames = [
        one if isinstance(one, DeviceFrame) else one.to_frame(i if one.name is None else None)
        for i, one in enumerate(objects)
    ]
    if not all(index.equals(frame.index) for frame in frames[1:]):
        raise DeviceOperationError(
            "frames beside each other must have the same labels of rows on a device, which does "
            "not align them: merge them on the index, or use .to_backend('pandas')"
        )
    labels = frames[0].columns
    for frame in frames[1:]:
        labels = labels.append(frame.columns)
    return DeviceFrame.of([c for frame in frames for c in frame.arrays], labels, index)


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


_SPARSE = 4
HOWS = ("inner", "left", "right", "outer", "leftsemi")


def pairs(left: Sequence[Column], right: Sequence[Column], how: str) -> tuple[Any, Any]:
    """Find the pairs of rows with equal keys.

    Parameters
    ----------
    left, right : sequence of Column
        (n,) and (m,) rows of the keys; nulls equal each other, as in pandas.
    how : {"inner", "left", "right", "outer", "leftsemi"}

    Returns
    -------
    left, right : (p,)
        Rows of each side, -1 where there is none. In the order of the left rows, for "right" of the
        right ones, for "outer" of the keys, nulls last.

    Examples
    --------
    >>> a, b = (Column(np.array(v), np.dtype("i8")) for v in ([1, 2, 2], [2, 3, 2]))
    >>> [rows.tolist() for rows in pairs([a], [b], "left")]
    [[0, 1, 1, 2, 2], [-1, 0, 2, 0, 2]]
    """
    if how == "right":
        other, mine = pairs(right, left, "left")
        return mine, other
    both = [stack([a, b]) for a, b in zip(left, right, strict=True)]
    keys = _numbers(sort_keys.pack([sort_keys.of(column) for column in both]))
    n = len(left[0])
    mine, theirs = keys[:n], keys[n:]
    found = arrays.argsort(theirs)
    xp = arrays.of(keys)
    size = int(keys.max()) + 1 if len(keys) else 0
    each = xp.bincount(theirs, minlength=size)
    counts = each[mine]
    start = (xp.cumsum(each) - each)[mine]
    if how == "leftsemi":
        rows = xp.flatnonzero(counts > 0)
        return rows, rows
    kept = counts if how == "inner" else xp.maximum(counts, 1)
    owner, place = arrays.spread(kept)
    found = xp.append(found, np.int64(-1))  # where nothing matches
    rows = xp.where(counts[owner] > 0, start[owner] + place, len(theirs))
    matched = found[rows]
    if how != "outer":
        return owner, matched
    alone = xp.ones(len(theirs) + 1, bool)
    alone[matched] = False
    alone = xp.flatnonzero(alone[:-1])
    lefts = xp.concatenate([owner, xp.full(len(alone), -1, np.int64)])
    rights = xp.concatenate([matched, alone])
    order = arrays.argsort(xp.concatenate([mine[owner], theirs[alone]]))
    return lefts[order], rights[order]


def _numbers(keys: Any) -> Any:
    """Map keys to integers from 0 in their order, with few gaps."""
    if not len(keys):
        return keys
    low = int(keys.min())
    if int(keys.max()) - low < _SPARSE * len(keys):
        return keys - low
    return sort_keys.ranks(keys)
