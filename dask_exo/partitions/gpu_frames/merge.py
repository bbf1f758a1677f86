"""Joins and concatenation of GPU frames, as in pandas: rows meet in sorted keys."""

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
from dask_exo.partitions.kernels.sort_keys import pack


def concat(
    objects: Sequence[Any],
    axis: Any = 0,
    *,
    ignore_index: bool = False,
    **_: Any,
) -> Any:
    """Concatenate along rows (axis 0) or columns (axis 1)."""
    if axis in (1, "columns"):
        return _concat_columns(objects)
    if all(isinstance(item, DeviceIndex) for item in objects):
        return concat_indexes(objects)
    frames = [item for item in objects if isinstance(item, DeviceFrame)]
    index = concat_indexes([item.index for item in objects])
    if ignore_index:
        index = numbered(len(index), index.module)
    if not frames:
        names = {item.name for item in objects}
        column = stack([item.column for item in objects])
        return DeviceSeries.of(column, index, names.pop() if len(names) == 1 else None)
    return _concat_rows(objects, index)


def _concat_rows(frames: Sequence[DeviceFrame], index: DeviceIndex) -> DeviceFrame:
    first = frames[0]
    if all(first.columns.equals(frame.columns) for frame in frames[1:]):
        columns = [stack(columns) for columns in zip(*(f.arrays for f in frames), strict=True)]
        return DeviceFrame.of(columns, first.columns, index)
    other = next(frame.columns for frame in frames if not first.columns.equals(frame.columns))
    raise unsupported(
        f"concat of frames with columns {list(first.columns)} and {list(other)}",
        "select the same columns in the same order",
    )


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
    suffixes: tuple[Any, Any] = ("_x", "_y"),
    **others: Any,
) -> DeviceFrame:
    """Join two frames by columns, as `pandas.merge`: "inner" or "left"."""
    if how not in ("inner", "left"):
        raise unsupported(f"merge(how={how!r})", f"use 'inner' or 'left', or {ON_HOST}")
    if wanted := [name for name in ("left_index", "right_index", "indicator") if others.get(name)]:
        raise unsupported(f"merge({wanted[0]}=...)", f"merge by columns (on=), or {ON_HOST}")
    right = right.to_frame() if isinstance(right, DeviceSeries) else right
    if on is None and left_on is None and right_on is None:
        on = [label for label in left.columns if label in right.columns]
    left_names = _names(left, on if on is not None else left_on)
    right_names = _names(right, on if on is not None else right_on)
    rows = pairs(left.key_columns(left_names), right.key_columns(right_names), how)
    index = numbered(len(rows[0]), left.module)
    shared = {a for a, b in zip(left_names, right_names, strict=True) if a is not None and a == b}
    columns, labels = _columns(left, right, rows, shared, suffixes)
    return DeviceFrame.of(columns, labels, index)


def _names(frame: DeviceFrame, names: Any) -> list[Any]:
    """Return the labels of the keys."""
    labels = list(names) if isinstance(names, (list, tuple, pd.Index)) else [names]
    for name in labels:
        if name not in frame.columns and name not in frame.index.names:
            raise KeyError(name)
    return labels


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
        columns.append(series.column.take(rows[0]))
        labels.append(f"{label}{suffixes[0]}" if label in duplicates and suffixes[0] else label)
    for label in right_labels:
        columns.append(right[label].column.take_or_null(rows[1], name=label))
        labels.append(f"{label}{suffixes[1]}" if label in duplicates and suffixes[1] else label)
    return columns, pd.Index(labels, dtype=object if not labels else None)


def pairs(left: Sequence[Column], right: Sequence[Column], how: str) -> tuple[Any, Any]:
    """Find the pairs of rows with equal keys.

    Parameters
    ----------
    left, right : sequence of Column
        (n,) and (m,) rows of the keys; nulls equal each other, as in pandas.
    how : {"inner", "left"}

    Returns
    -------
    left, right : (p,)
        Rows of each side in the order of the left ones, -1 where there is no right one.

    Examples
    --------
    >>> a, b = (Column(np.array(v), np.dtype("i8")) for v in ([1, 2, 2], [2, 3, 2]))
    >>> [rows.tolist() for rows in pairs([a], [b], "left")]
    [[0, 1, 1, 2, 2], [-1, 0, 2, 0, 2]]
    """
    columns = [stack([a, b]) for a, b in zip(left, right, strict=True)]
    keys = arrays.narrow(pack([sort_keys.encode(column) for column in columns]))
    xp, n = arrays.of(keys), len(left[0])
    left_keys, right_keys = keys[:n], keys[n:]
    by_key = arrays.argsort(right_keys, is_narrow=True)
    ordered = right_keys[by_key]
    start = xp.searchsorted(ordered, left_keys)
    counts = xp.searchsorted(ordered, left_keys, side="right") - start
    left_rows, place = arrays.spread(counts if how == "inner" else xp.maximum(counts, 1))
    by_key = xp.append(by_key, np.int64(-1))  # the last one: no match
    at = start[left_rows] + place
    if how == "left":
        at = xp.where(counts[left_rows] > 0, at, len(right_keys))
    return left_rows, by_key[at]


DeviceFrame.merge = merge
