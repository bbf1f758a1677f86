"""Where and when a call ran, as the process that ran it tells."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import NamedTuple

import psutil

from dask_exo.cluster.futures import here


class Ran(NamedTuple):
    """One call.

    Attributes
    ----------
    node : str
        Where; empty if that is not known.
    process : int
        Which of its processes.
    start : float
        Seconds since 1970, by the clock of its node.
    seconds : float
        Time it took.
    rss : int
        Bytes of memory that the process had at the end, those of the object store that it has
        touched among them.
    """

    node: str
    process: int
    start: float
    seconds: float
    rss: int


def ran(seconds: float) -> Ran:
    """Say it of a call of this process that ends now."""
    return Ran(here() or "", os.getpid(), wall() - seconds, seconds, _process().memory_info().rss)


def wall() -> float:
    """Seconds since 1970: the one clock that processes on several machines have in common."""
    return time.time()  # noqa: TID251  no duration, but where to draw it


@lru_cache(1)
def _process() -> psutil.Process:
    return psutil.Process()
