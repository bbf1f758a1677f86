"""From partitions to batches: what a batch is, and how rows are cut into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np
import pandas as pd

Item = TypeVar("Item")
Fetch = Callable[[], pd.DataFrame]


def _numpy(frame: pd.DataFrame) -> dict[Any, np.ndarray]:
    return {name: frame[name].to_numpy() for name in frame.columns}


def _torch(frame: pd.DataFrame) -> dict[Any, Any]:
    import torch

    # a tensor must be able to write to its memory
    return {name: torch.from_numpy(np.array(frame[name])) for name in frame.columns}


FORMATS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "numpy": _numpy,
    "torch": _torch,
}


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


def fetched(fetches: list[Fetch]) -> Iterator[pd.DataFrame]:
    """Fetch partitions; how to get one is forgotten with it, since that keeps it in the store."""
    fetches.reverse()
    while fetches:
        yield fetches.pop()()


def ahead(items: Iterator[Item], pool: Executor) -> Iterator[Item]:
    """Make each item while the one before it is in use."""
    coming = pool.submit(next, items, None)
    while (item := coming.result()) is not None:
        coming = pool.submit(next, items, None)
        yield item
        del item
