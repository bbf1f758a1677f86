"""Totals of what happened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dask_exo.report.events import (
    Event,
    GaveWay,
    RunFinished,
    ShuffleFinished,
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
    shuffles : list of ShuffleFinished
        In the order in which they ended.
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
    shuffles: list[ShuffleFinished] = field(default_factory=list)
    stages: dict[str, StageSeen] = field(default_factory=dict)
    gave_way: list[GaveWay] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if isinstance(event, RunFinished):
            self.calls += event.calls
            self.objects += event.objects
            self.spilled += event.spilled
            self.restored += event.restored
            self.seconds += event.seconds
            for path, nbytes in event.directories.items():
                self.directories[path] = self.directories.get(path, 0) + nbytes
        elif isinstance(event, ShuffleFinished):
            self.shuffles.append(event)
        elif isinstance(event, GaveWay):
            self.gave_way.append(event)
        elif isinstance(event, StageSeen):
            self.stages[event.name] = event
        elif isinstance(event, TasksFinished):
            self.tasks[event.group] = self.tasks.get(event.group, 0) + event.count


@contextlib.contextmanager
def recording(observe: Callable[[Event], None] | None = None) -> Iterator[Stats]:
    """Count what all runs inside the block do; ``observe`` hears the events too."""
    stats = Stats()
    with contextlib.ExitStack() as stack:
        stack.enter_context(observing(stats))
        if observe is not None:
            stack.enter_context(observing(observe))
        yield stats
