"""Events of a run, and who hears of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import psutil

from dask_exo.cluster.futures import current_node

_numbers = count(1)
_run: ContextVar[int] = ContextVar("run", default=0)


class CallSpan(NamedTuple):
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


def call_span(seconds: float) -> CallSpan:
    """Say it of a call of this process that ends now."""
    return CallSpan(
        current_node() or "",
        os.getpid(),
        wall_time() - seconds,
        seconds,
        _process().memory_info().rss,
    )


def wall_time() -> float:
    """Seconds since 1970: the one clock that processes on several machines have in common."""
    return time.time()  # noqa: TID251  no duration, but where to draw it


@lru_cache(1)
def _process() -> psutil.Process:
    return psutil.Process()


@dataclass(frozen=True)
class Event:
    """Something happened.

    Attributes
    ----------
    run : int
        In which run of this process; 0 outside of one.
    time : float
        When, in seconds since 1970 by the clock of the driver.
    """

    run: int = field(default_factory=_run.get, kw_only=True, compare=False)
    time: float = field(default_factory=wall_time, kw_only=True, compare=False)


@dataclass(frozen=True)
class RunStarted(Event):
    """A run begins with so many tasks of each group (name → count)."""

    groups: dict[str, int]


@dataclass(frozen=True)
class RanHere(Event):
    """A computation was so small that Dask's threads did it, without a run on the cluster."""


@dataclass(frozen=True)
class PlacesSeen(Event):
    """What a run has to itself: machines, tasks side by side, bytes of object store, GPUs."""

    nodes: int
    slots: int
    store: int
    gpus: float


@dataclass(frozen=True)
class ClusterSeen(Event):
    """How the cluster is, about once a second of a run.

    Bytes in the object stores, bytes spilled and restored since the cluster began, tasks of the
    run that were started and have not finished; and what keeps more from starting: ``"slots"``,
    ``"memory"``, or ``"input"`` that is still being made.
    """

    used: int
    spilled: int
    restored: int
    in_flight: int
    waits: str


@dataclass(frozen=True)
class RunFinished(Event):
    """A run is over: seconds, calls and refs made, bytes spilled and restored meanwhile.

    Where the directories are known, also the bytes of the files that have come to each meanwhile.
    """

    seconds: float
    calls: int
    objects: int
    spilled: int
    restored: int
    failed: bool
    directories: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CallsRepeated(Event):
    """What was made again, since workers or nodes were lost: partitions of each group.

    Merges of a shuffle count as ``"merge"``, tasks of pipelines by their stage.
    """

    groups: dict[str, int]


@dataclass(frozen=True)
class TasksFinished(Event):
    """Tasks of one group finished: how many, their seconds of work and bytes of results.

    Where and when is that of the call that they shared, if it is known; ``each`` has the key,
    seconds and bytes of every one in their order; ``gpus`` is what they asked for.
    """

    group: str
    count: int
    seconds: float
    nbytes: int
    ran: CallSpan | None = None
    each: tuple[tuple[Any, float, int], ...] = ()
    gpus: float = 0.0


@dataclass(frozen=True)
class PartsCut(Event):
    """Parts of a shuffle were cut: those from ``start`` on, of so many, and for whom.

    ``sent`` is (R,) the bytes for each reducer.
    """

    name: str
    start: int
    count: int
    parts: int
    sent: np.ndarray


@dataclass(frozen=True)
class ShuffleSeen(Event):
    """How a shuffle is, about once a second.

    Parts mapped, of how many; merges done, of how many that were started; bytes of the maps.
    """

    name: str
    mapped: int
    parts: int
    merged: int
    merges: int
    nbytes: int


@dataclass(frozen=True)
class Recovered(Event):
    """Work was done again, or given up, so that the run could go on: what, and how much of it."""

    what: str
    count: int = 1


@dataclass(frozen=True)
class ShuffleChosen(Event):
    """A shuffle has seen its first maps and picked an algorithm."""

    name: str
    algorithm: str
    reason: str
    maps: int
    reducers: int
    per_round: int


@dataclass(frozen=True)
class ShuffleFinished(Event):
    """The map side (and the merges) of a shuffle are done."""

    name: str
    algorithm: str
    reason: str
    maps: int
    reducers: int
    rounds: int
    calls: int
    rows: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class CheckpointSeen(Event):
    """A collection of a run that may be kept: so many values, of which so many are there already.

    If it cannot be kept, ``refused`` says why.
    """

    group: str
    values: int
    found: int
    refused: str = ""


@dataclass(frozen=True)
class ShuffleKept(Event):
    """Whether the outputs of a shuffle are kept: its bytes, and seconds of work before it."""

    name: str
    kept: bool
    nbytes: int
    work: float


@dataclass(frozen=True)
class StageSeen(Event):
    """How a stage of a pipeline is, about once a second and at its end.

    Inputs that wait, tasks that run and that have finished, outputs and their bytes so far, seconds
    of work; and what keeps more tasks from running: ``"input"``, ``"slots"``, ``"memory"`` or
    nothing. ``gpus`` is what one of its tasks asks for.
    """

    name: str
    queued: int
    running: int
    finished: int
    outputs: int
    nbytes: int
    seconds: float
    waits: str
    gpus: float = 0.0


@dataclass(frozen=True)
class GaveWay(Event):
    """A task of a group died for lack of memory, and runs again with so many slots for itself."""

    group: str
    slots: int


@dataclass(frozen=True)
class ShareRaised(Event):
    """Workers of a pipeline take more of a GPU, since they were seen to hold more of its memory.

    Stages, the share of a GPU before and now, and bytes: the most that a task has held there, and
    those that the GPU has for all.
    """

    name: str
    before: float
    share: float
    held: int
    device: int


Observer = Callable[[Event], None]
_casual: list[Observer] = []
_close: list[Observer] = []


def listening() -> bool:
    """Whether anybody wants what costs something to find out."""
    return bool(_close)


def emit(event: Event) -> None:
    """Tell everybody who listens."""
    for observer in (*_casual, *_close):
        observer(event)


def subscribe(observer: Observer) -> None:
    """Let ``observer`` hear all events from now on, without any being made for it."""
    _casual.append(observer)


@contextlib.contextmanager
def observing(observer: Observer, *, closely: bool = True) -> Iterator[None]:
    """Let ``observer`` hear the events of all runs of this process, in any thread.

    Parameters
    ----------
    observer : callable
    closely : bool
        Whether also what costs something to find out: who sends how much to whom in a shuffle, and
        what short runs spill.
    """
    observers = _close if closely else _casual
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@contextlib.contextmanager
def new_run() -> Iterator[None]:
    """Let the events of this thread belong to a run of their own."""
    token = _run.set(next(_numbers))
    try:
        yield
    finally:
        _run.reset(token)
