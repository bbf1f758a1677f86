"""Streaming repartition: blocks of a target size, as soon as there are enough rows for one.

Where blocks are cut depends on the rows and the target alone, so that a task that runs again gives
the same blocks.

References: thesis section 2.4.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_exo.pipeline.streaming.provenance import Frame, Origin, joined
from dask_exo.pipeline.streaming.transforms import Frames


class Cut(NamedTuple):
    """A block: its frame, bytes and origin, and whether another one may follow."""

    frame: Any
    nbytes: int
    more: bool
    origin: Origin = Origin(())


def size(frame: Any) -> int:
    """Return the bytes of a frame; equal rows have equal bytes.

    Examples
    --------
    >>> image = np.zeros((2, 100, 100))
    >>> size(pd.DataFrame({"image": list(image)})) > image.nbytes  # views of one array
    True
    """
    total = int(frame.index.memory_usage(deep=True))
    for i, kind in enumerate(frame.dtypes):
        if isinstance(kind, np.dtype) and not kind.hasobject:  # pandas would look at each column
            total += kind.itemsize * len(frame)
            continue
        column = frame.iloc[:, i]
        total += int(column.memory_usage(index=False, deep=True))
        if kind == np.dtype(object):
            total += sum(map(_array_bytes, column))
    return total


def _array_bytes(value: Any) -> int:
    """Return the bytes of an array that does not own them; pandas counts the others."""
    return value.nbytes if isinstance(value, np.ndarray) and not value.flags.owndata else 0


def repartition(frames: Frames, target: int) -> Iterator[Cut]:
    """Split and concatenate frames into blocks of a target size.

    Parameters
    ----------
    frames : iterator of Frame
    target : int
        Bytes: a block has that many or more only by one frame, or one row.

    Examples
    --------
    >>> frame = pd.DataFrame({"a": range(100)}, index=range(100))
    >>> blocks = list(
    ...     repartition(iter([Frame(frame, last=False), Frame(frame, last=True)]), target=1000)
    ... )
    >>> [(len(p.frame), p.more) for p in blocks]
    [(100, True), (100, False)]
    >>> [len(p.frame) for p in repartition(iter([Frame(frame, last=True)]), target=500)]
    [50, 50]
    """
    waiting: list[Frame] = []
    nbytes = 0
    for frame in frames:
        if frame.data is not None:
            waiting.append(frame)
            nbytes += size(frame.data)
        if nbytes >= target or frame.last:
            yield from _cut(waiting, nbytes, target, more=not frame.last)
            waiting, nbytes = [], 0
    if waiting:
        yield from _cut(waiting, nbytes, target, more=False)


def _cut(frames: list[Frame], nbytes: int, target: int, *, more: bool) -> Iterator[Cut]:
    """Split the concatenation of frames into blocks."""
    full = [one for one in frames if len(one.data)] or frames[:1]
    if not full:
        return
    whole = full[0].data if len(full) == 1 else pd.concat([one.data for one in full])
    origin = full[0].origin if len(full) == 1 else joined([one.origin for one in full])
    count = min(max(1, round(nbytes / target)), max(1, len(whole)))
    if count == 1:
        yield Cut(whole, nbytes if len(frames) == 1 else size(whole), more, origin)
        return
    edges = [len(whole) * i // count for i in range(count + 1)]
    for i in range(count):
        low, high = edges[i], edges[i + 1]
        part = whole.iloc[low:high]
        yield Cut(part, size(part), more or i + 1 < count, origin.part(low, high))
