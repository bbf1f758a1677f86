"""Batches of rows: cut from frames that come one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd

Part = TypeVar("Part")


class Span(NamedTuple, Generic[Part]):
    """Rows of one partition.

    Attributes
    ----------
    part : object
        The partition: its number, or how to get it.
    start, stop : int
        The first row, and the one after the last.
    """

    part: Part
    start: int
    stop: int


def as_numpy(frame: pd.DataFrame) -> dict[Any, np.ndarray]:
    """A dict of its columns."""
    return {name: frame[name].to_numpy() for name in frame.columns}


def cut(parts: Iterable[pd.DataFrame], size: int) -> Iterator[pd.DataFrame]:
    """Cut the rows of partitions into batches; the last one may be smaller.

    Batches are copies: whoever has a view keeps all of its partition.
    """
    rest: list[pd.DataFrame] = []
    have = 0
    for part in parts:
        start = 0
        if have:
            start = min(size - have, len(part))
            rest.append(part.iloc[:start])
            have += start
        if have == size:
            yield pd.concat(rest)
            rest, have = [], 0
        full = start + (len(part) - start) // size * size
        for i in range(start, full, size):
            yield part.iloc[i : i + size].copy()
        if full < len(part):
            rest.append(part.iloc[full:].copy())
            have += len(part) - full
        del part
    if rest:
        yield pd.concat(rest) if len(rest) > 1 else rest[0]
