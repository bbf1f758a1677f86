"""From partitions to batches: what a batch is, and that one is made ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from dask_exo.partitions.batching import as_numpy

Item = TypeVar("Item")
Fetch = Callable[[], pd.DataFrame]


def _torch(frame: pd.DataFrame) -> dict[Any, Any]:
    import torch

    # a tensor must be able to write to its memory
    return {name: torch.from_numpy(np.array(frame[name])) for name in frame.columns}


FORMATS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "numpy": as_numpy,
    "torch": _torch,
}


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
