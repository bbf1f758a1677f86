"""Joins and concatenation of GPU frames, as in pandas.

A join counts rows in a table over numbered keys. Keys in a narrow range of integers number
themselves; others are ranked by a sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import sort_keys
from dask_exo.partitions.gpu_frames.column import ON_HOST, Column, unsupported
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex, concat_indexes, numbered
from dask_exo.partitions.gpu_frames.series import DeviceSeries
from dask_exo.partitions.gpu_frames.transform import stack
from dask_exo.partitions.kernels.sort_keys import pack, ranks


def concat(
    objects: Sequence[Any],
    axis: Any = 0,
    join: str = "outer",
    *,
    ignore_index: bool = False,
    **_: Any,
) -> Any:
    """Concatenate along rows (axis 0) or columns (axis 1); missing columns become nulls."""
    if axis in (1, "columns"):
        return _concat_columns(objects)
    if all(isinstance(item, DeviceIndex) for item in objects):
        return concat_indexes(objects)
    frames = [item for item in objects if isinstance(item, DeviceFrame)]
    if frames and len(frames) < len(objects):
        objects = [item if isinstance(item, DeviceFrame) else item.to_frame() for item in objects]
    index = concat_indexes([item.index for item in objects])
    if ignore_index:
        index = numbered(len(index), index.module)
    if not frames:
        names = {item.name for item in objects}
        column = stack([item.column for item in objects])
        return DeviceSeries.of(column, index, names.pop() if len(names) == 1 else None)
    return _concat_rows(objects, index, join)


def _concat_rows(frames: Sequence[DeviceFrame], index: DeviceIndex, join: str) -> DeviceFrame:
    first = frames[0]
    if all(first.columns.equals(frame.columns) for frame in frames[1:]):
        columns = [stack(columns) for columns in zip(*(f.arrays for f in frames), strict=True)]
        return DeviceFrame.of(columns, first.columns, index)
    empty = [pd.DataFrame([], columns=frame.columns) for frame in frames]
    labels = pd.concat(empty, join=join).columns
    columns = []
    for label in labels:
        model = next(frame[label].column for frame in frames if label in frame.columns)
        no_rows = model.take(slice(0, 0))
        parts = [
            frame[label].column
            if label in frame.columns
            else no_rows.take_or_null(model.xp.full(len(frame), -1), name=label)
            for frame in frames
        ]
        columns.append(stack(parts))
    return DeviceFrame.of(columns, labels, index)


def _concat_columns(objects: Sequence[Any]) -> DeviceFrame:
    index = objects[0].index
    frames = [
        item if isinstance(item, DeviceFrame) else item.to_frame(i if item.name is None else None)
        for i, item in enumerate(objects)
    ]
    if not all(index.equals(frame.index) for frame in frames[1:]):
        raise unsupported(
            "concat(axis=1) of frames with different labels of rows",
            f"merge them on the index, or {ON_HOST}",
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
    """Join two frames, as `pandas.merge`; ``how`` may be "leftsemi", as in Dask."""
    if how not in HOWS:
        raise unsupported(f"merge(how={how!r})", f"use one of {', '.join(HOWS)}, or {ON_HOST}")
    right = right.to_frame() if isinstance(right, DeviceSeries) else right
    if on is None and left_on is None and right_on is None and not (left_index or right_index):
        on = [label for label in left.columns if label in right.columns]
    left_names = _names(left, on if on is not None else left_on, from_index=left_index)
    right_names = _names(right, on if on is not None else right_on, from_index=right_index)
    keys = left.key_columns(left_names), right.key_columns(right_names)
    rows = pairs(*keys, how)
    if how == "leftsemi":
        return left.take_rows(rows[0]).numbered()
    index = _index(left, right, rows, keys, (left_index, right_index))
    shared = {a for a, b in zip(left_names, right_names, strict=True) if a is not None and a == b}
    columns, labels = _columns(left, right, rows, shared, suffixes)
    joined = DeviceFrame.of(columns, labels, index)
    if indicator:
        xp = columns[0].xp
        sides = xp.where(rows[0] < 0, 1, xp.where(rows[1] < 0, 0, 2)).astype(np.int32)
        dtype = pd.CategoricalDtype(["left_only", "right_only", "both"])
        joined["_merge" if indicator is True else indicator] = Column(sides, dtype)
    return joined


def _names(frame: DeviceFrame, names: Any, *, from_index: bool) -> list[Any]:
    """Return the labels of the keys; None is all levels of the index."""
    if from_index:
        return [None]
    labels = list(names) if isinstance(names, (list, tuple, pd.Index)) else [names]
    for name in labels:
        if name not in frame.columns and name not in frame.index.names:
            raise KeyError(name)
    return labels


def _coalesce(left: Column, right: Column, rows: tuple[Any, Any]) -> Column:
    """Take the key of the left row, or of the right row if the left one is missing."""
    missing = rows[0] < 0
    if not bool(missing.any()):
        return left.take(rows[0])
    return stack([left, right]).take(left.xp.where(missing, rows[1] + len(left), rows[0]))


def _index(
    left: DeviceFrame,
    right: DeviceFrame,
    rows: tuple[Any, Any],
    keys: tuple[Sequence[Column], Sequence[Column]],
    by_index: tuple[bool, bool],
) -> DeviceIndex:
    if not any(by_index):
        return numbered(len(rows[0]), left.module)
    if all(by_index):
        joined = [_coalesce(a, b, rows) for a, b in zip(*keys, strict=True)]
        names = left.index.names if left.index.names == right.index.names else [None] * len(joined)
        return DeviceIndex.of(joined, names)
    # labels of the side that is joined by columns
    side = 1 if by_index[0] else 0
    other = (left, right)[side].index
    if bool((rows[side] < 0).any()):
        raise unsupported(
            "a join of columns with an index in which rows have no partner", "use .reset_index()"
        )
    return other.take(rows[side])


def _columns(
    left: DeviceFrame,
    right: DeviceFrame,
    rows: tuple[Any, Any],
    shared: set[Any],
    suffixes: tuple[Any, Any],
) -> tuple[list[Column], pd.Index]:
    """Return the columns of both sides, shared keys once."""
    right_labels = [label for label in right.columns if label not in shared]
    duplicates = set(left.columns) & set(right_labels)
    if duplicates and not any(suffixes):
        raise ValueError(f"columns overlap but no suffix specified: {sorted(map(str, duplicates))}")
    columns: list[Column] = []
    labels: list[Any] = []
    for label, series in left.items():
        if label in shared:
            columns.append(_coalesce(series.column, right[label].column, rows))
        else:
            columns.append(series.column.take_or_null(rows[0], name=label))
        labels.append(f"{label}{suffixes[0]}" if label in duplicates and suffixes[0] else label)
    for label in right_labels:
        columns.append(right[label].column.take_or_null(rows[1], name=label))
        labels.append(f"{label}{suffixes[1]}" if label in duplicates and suffixes[1] else label)
    return columns, pd.Index(labels, dtype=object if not labels else None)


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
        return pairs(right, left, "left")[::-1]
    columns = [stack([a, b]) for a, b in zip(left, right, strict=True)]
    keys = _numbers(pack([sort_keys.encode(column) for column in columns]))
    xp, n = arrays.of(keys), len(left[0])
    left_keys, right_keys = keys[:n], keys[n:]
    count_of_key = xp.bincount(right_keys, minlength=int(keys.max()) + 1 if len(keys) else 0)
    counts = count_of_key[left_keys]
    if how == "leftsemi":
        rows = xp.flatnonzero(counts > 0)
        return rows, rows
    start = (xp.cumsum(count_of_key) - count_of_key)[left_keys]
    left_rows, place = arrays.spread(counts if how == "inner" else xp.maximum(counts, 1))
    by_key = xp.append(arrays.argsort(right_keys), np.int64(-1))  # the last one: no match
    right_rows = by_key[xp.where(counts[left_rows] > 0, start[left_rows] + place, len(right_keys))]
    if how != "outer":
        return left_rows, right_rows
    unmatched = xp.ones(len(right_keys) + 1, bool)
    unmatched[right_rows] = False
    unmatched = xp.flatnonzero(unmatched[:-1])
    order = arrays.argsort(xp.concatenate([left_keys[left_rows], right_keys[unmatched]]))
    left_rows = xp.concatenate([left_rows, xp.full(len(unmatched), -1, np.int64)])
    return left_rows[order], xp.concatenate([right_rows, unmatched])[order]


def _numbers(keys: Any) -> Any:
    """Map keys to integers from 0 in their order, with few gaps."""
    if not len(keys):
        return keys
    low = int(keys.min())
    if int(keys.max()) - low < _SPARSE * len(keys):
        return keys - low
    return ranks(keys)
