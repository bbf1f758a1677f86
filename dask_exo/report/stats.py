"""Totals of what happened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dask_exo.events import (
    CallsRepeated,
    CheckpointSeen,
    Event,
    GaveWay,
    RunFinished,
    ShuffleFinished,
    ShuffleKept,
    StageSeen,
    TasksFinished,
    observing,
)


@dataclass
class Stats:
    """Totals over all runs that were observed.

    Attributes
    ----------
    calls, objects : int
        Tasks submitted to Ray, and refs they returned (small ones never enter the store).
    spilled, restored : int
        Bytes that the object stores wrote to disk and read back.
    directories : dict
        Directory → bytes of the files that were spilled there, as far as they have been seen; of a
        private Ray. Ray adds a header to each object.
    seconds : float
        Sum of the runs' durations.
    tasks : dict
        Group → number of graph tasks finished.
    repeated : dict
        Group → partitions that were made again, since workers or nodes were lost.
    shuffles : list of ShuffleFinished
        In the order in which they ended.
    checkpoints : list of CheckpointSeen
        What was found of each collection that may be kept.
    kept : list of ShuffleKept
    stages : dict
        Name of a pipeline's stage → the last that was heard of it.
    gave_way : list of GaveWay
        Tasks that died for lack of memory, each time they were run again with fewer neighbours.
    """

    calls: int = 0
    objects: int = 0
    spilled: int = 0
    restored: int = 0
    directories: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    tasks: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    shuffles: list[ShuffleFinished] = field(default_factory=list)
    checkpoints: list[CheckpointSeen] = field(default_factory=list)
    kept: list[ShuffleKept] = field(default_factory=list)
    stages: dict[str, StageSeen] = field(default_factory=dict)
    gave_way: list[GaveWay] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, RunFinished):
            self._finished(event)
        elif isinstance(event, ShuffleFinished):
            self.shuffles.append(event)
        elif isinstance(event, CheckpointSeen):
            self.checkpoints.append(event)
        elif isinstance(event, ShuffleKept):
            self.kept.append(event)
        elif isinstance(event, GaveWay):
            self.gave_way.append(event)
        elif isinstance(event, StageSeen):
            self.stages[event.name] = event
        elif isinstance(event, CallsRepeated):
            for group, count in event.groups.items():
                self.repeated[group] = self.repeated.get(group, 0) + count
        elif isinstance(event, TasksFinished):
            self.tasks[event.group] = self.tasks.get(event.group, 0) + event.count

    def _finished(self, event: RunFinished) -> None:
        self.calls += event.calls
        self.objects += event.objects
        self.spilled += event.spilled
        self.restored += event.restored
        self.seconds += event.seconds
        for path, nbytes in event.directories.items():
            self.directories[path] = self.directories.get(path, 0) + nbytes


def recovered(repeated: Mapping[str, int], total: int) -> str:
    """Say what was made again.

    Parameters
    ----------
    repeated : mapping
        Group → partitions that were made again.
    total : int
        All partitions of all groups; 0 where that is not known.

    Examples
    --------
    >>> recovered({"read": 2, "merge": 1}, 100)
    'recovered 3 of 100 partitions after a loss of workers or nodes: read 2, merge 1'
    """
    count, of = sum(repeated.values()), f" of {total}" if total else ""
    names = ", ".join(f"{name} {n}" for name, n in repeated.items())
    return f"recovered {count}{of} partitions after a loss of workers or nodes: {names}"


@contextlib.contextmanager
def recording(observe: Callable[[Event], None] | None = None) -> Iterator[Stats]:
    """Count what all runs inside the block do; ``observe`` hears the events too."""
    stats = Stats()
    with contextlib.ExitStack() as stack:
        stack.enter_context(observing(stats))
        if observe is not None:
            stack.enter_context(observing(observe))
        yield stats
