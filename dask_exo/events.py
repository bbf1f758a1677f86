"""Events of a run, and their observers."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import psutil

from dask_exo.cluster.futures import current_node, shares_process
from dask_exo.cluster.object_storage import take_counts
from dask_exo.cluster.sampling import Stack, TaskSamples

_numbers = count(1)
_run: ContextVar[int] = ContextVar("run", default=0)


class CallSpan(NamedTuple):
    """Place and time of one call, as its process measured them.

    ``process`` is the number of a process, or of a thread of the driver. ``node`` is empty if
    unknown; ``start`` is in seconds since 1970 by the clock of the node; ``rss`` is the memory of
    the process at the end in bytes, including pages of the object store. ``requests`` are those to
    object storage, by operation. ``samples`` is None unless an observer needs details.
    """

    node: str
    process: int
    start: float
    seconds: float
    rss: int
    requests: Mapping[str, int] = {}
    samples: TaskSamples | None = None


def call_span(seconds: float, samples: TaskSamples | None = None) -> CallSpan:
    """Return the span of a call of this process that ends now."""
    start, rss = wall_time() - seconds, _process().memory_info().rss
    process = threading.get_native_id() if shares_process() else os.getpid()
    return CallSpan(current_node() or "", process, start, seconds, rss, take_counts(), samples)


def wall_time() -> float:
    """Return seconds since 1970, by the clock that all machines share."""
    return time.time()  # noqa: TID251  a time of day, not a duration


@lru_cache(1)
def _process() -> psutil.Process:
    return psutil.Process()


@dataclass(frozen=True)
class Event:
    """Base of all events.

    ``run`` is the number of the run in this process, 0 outside of one; ``time`` is in seconds since
    1970 by the clock of the driver.
    """

    run: int = field(default_factory=_run.get, kw_only=True, compare=False)
    time: float = field(default_factory=wall_time, kw_only=True, compare=False)


@dataclass(frozen=True)
class RunStarted(Event):
    """A run starts; ``groups`` has the number of tasks by group."""

    groups: dict[str, int]


@dataclass(frozen=True)
class EngineChosen(Event):
    """The engine of a run, "local" or "ray", and the reason; empty if a cluster was given."""

    engine: str
    reason: str


@dataclass(frozen=True)
class ResourcesSeen(Event):
    """Resources of a run: nodes, slots, bytes of object store, GPUs."""

    nodes: int
    slots: int
    store: int
    gpus: float


@dataclass(frozen=True)
class ClusterSeen(Event):
    """State of the cluster, about once a second of a run.

    Bytes in the object stores, bytes spilled and restored since the cluster started, tasks in
    flight, and the bottleneck: ``"slots"``, ``"memory"``, ``"disk"`` (memory that is being
    spilled), pending ``"input"``, ``"an actor"``, ``"the first measurement"``, a resource, or none.
    """

    used: int
    spilled: int
    restored: int
    in_flight: int
    waits: str


@dataclass(frozen=True)
class RunFinished(Event):
    """A run has finished: seconds, calls, refs created, and bytes spilled and restored by then."""

    seconds: float
    calls: int
    objects: int
    spilled: int
    restored: int
    failed: bool
    requests: Mapping[str, int] = field(default_factory=dict)  # of the driver to object storage


@dataclass(frozen=True)
class CallsRepeated(Event):
    """Partitions were recomputed after a loss of workers or nodes: number by group.

    Merges of a shuffle count as ``"merge"``, tasks of pipelines by their stage.
    """

    groups: dict[str, int]


@dataclass(frozen=True)
class TasksFinished(Event):
    """Tasks of one group finished: how many, their seconds of work and bytes of results.

    ``ran`` is the span of their common call, if known; ``each`` has key, seconds and bytes of every
    task in order; ``gpus`` is their request. ``moved`` are the bytes that they read or returned,
    whichever are more; 0 if that is unknown, as of tasks that read and write files.
    """

    group: str
    count: int
    seconds: float
    nbytes: int
    ran: CallSpan | None = None
    each: tuple[tuple[Any, float, int], ...] = ()
    gpus: float = 0.0
    moved: int = 0


@dataclass(frozen=True)
class TaskFailed(Event):
    """A task has failed: its key, its traceback, and the last lines that its worker printed."""

    key: Any
    traceback: str
    printed: str


@dataclass(frozen=True)
class PartsCut(Event):
    """Maps of a shuffle divided their partitions: ``count`` of ``parts``, from ``start`` on.

    ``sent`` is (R,) the bytes for each reducer.
    """

    name: str
    start: int
    count: int
    parts: int
    sent: np.ndarray


@dataclass(frozen=True)
class ReducersDivided(Event):
    """Large reducers of a join were divided: their number, and the largest output after that.

    ``name`` is that of the shuffle of one side, and ``largest`` the bytes of that side.
    """

    name: str
    reducers: int
    largest: int


@dataclass(frozen=True)
class ShuffleSeen(Event):
    """State of a shuffle, about once a second.

    Finished and all maps; finished and started merges; bytes of the map outputs.
    """

    name: str
    mapped: int
    parts: int
    merged: int
    merges: int
    nbytes: int


@dataclass(frozen=True)
class Recovered(Event):
    """Work was repeated or abandoned to recover a run: its kind and amount."""

    what: str
    count: int = 1


@dataclass(frozen=True)
class ShuffleChosen(Event):
    """A shuffle has measured its first maps and chosen an algorithm."""

    name: str
    algorithm: str
    reason: str
    maps: int
    reducers: int
    per_round: int


@dataclass(frozen=True)
class ShuffleFinished(Event):
    """The maps of a shuffle, and its merges, have finished.

    They sent ``rows``, and left out ``left_out`` others that no reader needs: in a join these would
    find no partner.
    """

    name: str
    algorithm: str
    reason: str
    maps: int
    reducers: int
    rounds: int
    calls: int
    rows: int
    left_out: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class QueriesCompiled(Event):
    """Parts of an expression that run as queries of Polars.

    They have ``operations`` of the ``blockwise`` ones of the expression. ``reasons`` says why
    operations above them are not compiled: reason → how many.
    """

    queries: int
    operations: int
    blockwise: int
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class CheckpointSeen(Event):
    """A collection with a checkpoint: its values, and how many are stored already.

    If it cannot be stored, ``refused`` says why.
    """

    group: str
    values: int
    found: int
    refused: str = ""


@dataclass(frozen=True)
class CheckpointDecided(Event):
    """Decision to checkpoint a shuffle or not: its bytes, and seconds of work before it."""

    name: str
    stored: bool
    nbytes: int
    work: float


@dataclass(frozen=True)
class StageSeen(Event):
    """State of a stage of a pipeline, about once a second and at its end.

    Queued inputs, running and finished tasks, outputs and their bytes so far, seconds of work, and
    the bottleneck, as of `ClusterSeen`. ``gpus`` is the request of one task, and ``moved`` is that
    of `TasksFinished`. ``stacks`` are samples of its tasks since the last such event.
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
    moved: int = 0
    stacks: Mapping[Stack, int] = field(default_factory=dict)


@dataclass(frozen=True)
class GaveWay(Event):
    """A task of a group ran out of memory and is retried with ``slots`` slots."""

    group: str
    slots: int


@dataclass(frozen=True)
class ShareRaised(Event):
    """Actors of a pipeline get a larger share of a GPU, since they use more of its memory.

    Stages, the share before and now, and bytes: the peak of a task, and the memory of the GPU.
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
    """Return whether an observer needs events that cost time to collect."""
    return bool(_close)


def emit(event: Event) -> None:
    """Call all observers with an event."""
    for observer in (*_casual, *_close):
        observer(event)


def subscribe(observer: Observer) -> None:
    """Call ``observer`` with all events from now on, except those that cost time to collect."""
    _casual.append(observer)


@contextlib.contextmanager
def observing(observer: Observer, *, closely: bool = True) -> Iterator[None]:
    """Call ``observer`` with the events of all runs of this process, in any thread.

    Unless ``closely`` is false, costly events are collected for it: the matrix of a shuffle,
    spilling of short runs, samples of stacks.
    """
    observers = _close if closely else _casual
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@contextlib.contextmanager
def new_run() -> Iterator[None]:
    """Assign the events of this thread inside the block to a new run."""
    token = _run.set(next(_numbers))
    try:
        yield
    finally:
        _run.reset(token)
