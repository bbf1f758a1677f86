"""Streaming repartition: pieces of a target size, as soon as there are enough rows for one.

Where pieces are cut depends on the rows and the target alone, so that a task that runs again gives
the same pieces.

References: thesis section 2.4.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_exo.stream.transforms import Frames


class Cut(NamedTuple):
    """A piece: a frame, its bytes, and whether another may follow."""

    frame: Any
    nbytes: int
    more: bool


def size(frame: Any) -> int:
    """Bytes of a frame; the same for the same rows.

    Examples
    --------
    >>> image = np.zeros((2, 100, 100))
    >>> size(pd.DataFrame({"image": list(image)})) > image.nbytes  # views of one array
    True
    """
    total = int(frame.memory_usage(deep=True).sum())
    for i, kind in enumerate(frame.dtypes):
        if kind == np.dtype(object):
            total += sum(_beside(value) for value in frame.iloc[:, i])
    return total


def _beside(value: Any) -> int:
    """Bytes of an array that does not own them; pandas counts the others."""
    return value.nbytes if isinstance(value, np.ndarray) and not value.flags.owndata else 0


def repartition(frames: Frames, target: int) -> Iterator[Cut]:
    """Cut and put together.

    Parameters
    ----------
    frames : iterator
        Of frames, and whether each is known to be the last.
    target : int
        Bytes: a piece has that many or more only by one frame, or one row.

    Examples
    --------
    >>> frame = pd.DataFrame({"a": range(100)}, index=range(100))
    >>> pieces = list(repartition(iter([(frame, False), (frame, True)]), target=1000))
    >>> [(len(p.frame), p.more) for p in pieces]
    [(100, True), (100, False)]
    >>> [len(p.frame) for p in repartition(iter([(frame, True)]), target=500)]
    [50, 50]
    """
    waiting: list[Any] = []
    nbytes = 0
    for frame, last in frames:
        waiting.append(frame)
        nbytes += size(frame)
        if nbytes >= target or last:
            yield from _cut(waiting, nbytes, target, more=not last)
            waiting, nbytes = [], 0
    if waiting:
        yield from _cut(waiting, nbytes, target, more=False)


def _cut(frames: Sequence[Any], nbytes: int, target: int, *, more: bool) -> Iterator[Cut]:
    """Pieces of neighbouring frames."""
    full = [one for one in frames if len(one)] or frames[:1]
    whole = full[0] if len(full) == 1 else pd.concat(full)
    count = min(max(1, round(nbytes / target)), max(1, len(whole)))
    if count == 1 and len(frames) == 1:
        yield Cut(whole, nbytes, more)
        return
    edges = [len(whole) * i // count for i in range(count + 1)]
    for i in range(count):
        part = whole.iloc[edges[i] : edges[i + 1]]
        yield Cut(part, size(part), more or i + 1 < count)
