"""Events of a run, and who hears of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """Something happened."""


@dataclass(frozen=True)
class RunStarted(Event):
    """A run begins with so many tasks of each group (name → count)."""

    groups: dict[str, int]


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
class TasksFinished(Event):
    """Tasks of one group finished: how many, their seconds of work and bytes of results."""

    group: str
    count: int
    seconds: float
    nbytes: int


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
class StageSeen(Event):
    """How a stage of a pipeline is, about once a second and at its end.

    Inputs that wait, tasks that run and that have finished, outputs and their bytes so far, seconds
    of work; and what keeps more tasks from running: ``"input"``, ``"slots"``, ``"memory"`` or
    nothing.
    """

    name: str
    queued: int
    running: int
    finished: int
    outputs: int
    nbytes: int
    seconds: float
    waits: str


@dataclass(frozen=True)
class GaveWay(Event):
    """A task of a group died for lack of memory, and runs again with so many slots for itself."""

    group: str
    slots: int


Observer = Callable[[Event], None]
_observers: list[Observer] = []


def listening() -> bool:
    """Whether anybody does."""
    return bool(_observers)


def emit(event: Event) -> None:
    """Tell everybody who listens."""
    for observer in tuple(_observers):
        observer(event)


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Let ``observer`` hear the events of all runs of this process, in any thread."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
