"""Tasks and actors of a pipeline on a virtual clock, with limited resources."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from dask_exo.cluster.resources import Resources, fits
from dask_exo.errors import WorkerLostError
from dask_exo.testing.inline import InlineStreams, Stream

Seconds = Callable[[str, int], float]
"""``seconds(stage, number)``: of each value of a task, by the number of the source's input."""


@dataclass(eq=False)
class Process:
    """An actor: its instance, and its calls in order."""

    instance: Any
    needs: Resources
    loaded: bool = False
    dead: bool = False
    calls: list[Timed] = field(default_factory=list)


@dataclass(eq=False)
class Timed(Stream):
    """A task whose values take time."""

    seconds: float = 0.0
    at: float = inf  # when its next value is there
    needs: Resources = field(default_factory=dict)  # of a task without a worker
    process: Process | None = None
    last: bool = False


class SimStreams(InlineStreams):
    """`waist.Streams` in virtual time: real tasks with given durations.

    Tasks and actors wait for resources, first come, first served. A task computes its next value
    only when the previous one has been taken.

    Parameters
    ----------
    resources : mapping
        Of the cluster.
    seconds : callable
        See `Seconds`.
    loading : float
        Seconds that a worker takes to start.
    deaths : sequence of float
        When the worker that has had a call for longest dies.

    Attributes
    ----------
    time : float
        Virtual seconds.
    history : list of (float, int)
        How many workers there are since when.
    """

    def __init__(
        self,
        resources: Resources,
        seconds: Seconds,
        *,
        loading: float = 0.0,
        deaths: Sequence[float] = (),
    ) -> None:
        super().__init__(resources)
        self.time = 0.0
        self.history: list[tuple[float, int]] = []
        self._seconds, self._loading = seconds, loading
        self._free = Counter(resources)
        self._waiting: dict[Process | Timed, Callable[[], None]] = {}  # for what they need
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._busy: dict[Process, None] = {}
        for at in deaths:
            self._plan(at, self._kill)

    def task(
        self,
        fn: Any,
        *args: Any,
        needs: Mapping[str, float],
        seed: str,  # noqa: ARG002  this process is not ours
    ) -> Timed:
        """Start a task."""
        timed = self._timed(fn(*args), args)
        timed.needs = needs
        self._acquire(timed, lambda: self._work_on(timed))
        return timed

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Process:
        """Start a process."""
        process = Process(super().worker(cls, *args, needs=needs), needs)
        self.history.append((self.time, self.workers))
        self._acquire(
            process, lambda: self._plan(self.time + self._loading, partial(self._load, process))
        )
        return process

    def start(self, worker: Process, *args: Any, seed: str) -> Timed:  # noqa: ARG002
        """Call its ``run``, after what it does already."""
        timed = self._timed(worker.instance.run(*args), args)
        timed.process = worker
        worker.calls.append(timed)
        self._busy[worker] = None
        if worker.loaded and worker.calls[0] is timed:
            self._work_on(timed)
        return timed

    def stop(self, worker: Process) -> None:
        """End a process."""
        super().stop(worker)
        self.history.append((self.time, self.workers))
        if self._waiting.pop(worker, None) is None:
            self._release(worker.needs)

    def wait(self, streams: Collection[Timed], timeout: float | None) -> list[Timed]:
        """Let time pass until one of them has a value."""
        end = inf if timeout is None else self.time + timeout
        while self._events and self._events[0][0] <= end and not self._there(streams):
            self.time, _, happen = heapq.heappop(self._events)
            happen()
        there = self._there(streams)
        if not there and end < inf:
            self.time = end
        return there

    def read(self, stream: Stream) -> Any:
        """Return the metadata of the next value; None at the end."""
        assert isinstance(stream, Timed)
        if stream.process is not None and stream.process.dead:
            raise WorkerLostError("a worker has died")
        about = super().read(stream)
        stream.last = about is None or not about.more
        if about is None:
            self._end(stream)
            return None
        return about._replace(seconds=stream.seconds)

    def take(self, stream: Stream) -> Any:
        """Take that value; its task continues with the next one."""
        assert isinstance(stream, Timed)
        value = super().take(stream)
        if stream.last:
            self._end(stream)
        else:
            self._work_on(stream)
        return value

    def cancel(self, streams: Collection[Stream]) -> None:
        """Stop their tasks."""
        self._events.clear()
        self._waiting.clear()
        super().cancel(streams)

    def _timed(self, steps: Any, args: Sequence[Any]) -> Timed:
        code, start = args[:2]
        return Timed(steps, seconds=self._seconds(code.name, start.place[0]))

    def _there(self, streams: Collection[Timed]) -> list[Timed]:
        return [s for s in streams if s.at <= self.time or (s.process and s.process.dead)]

    def _plan(self, at: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what))

    def _acquire(self, to: Process | Timed, begin: Callable[[], None]) -> None:
        self._waiting[to] = begin
        self._release({})

    def _release(self, needs: Resources) -> None:
        self._free.update(needs)
        for one in list(self._waiting):
            if fits(self._free, one.needs):
                self._free.subtract(one.needs)
                self._waiting.pop(one)()

    def _load(self, process: Process) -> None:
        process.loaded = True
        if process.calls:
            self._work_on(process.calls[0])

    def _work_on(self, timed: Timed) -> None:
        timed.at = self.time + timed.seconds
        self._plan(timed.at, lambda: None)

    def _end(self, timed: Timed) -> None:
        process = timed.process
        if process is None:
            self._release(timed.needs)
            timed.needs = {}
        elif timed in process.calls:
            process.calls.remove(timed)
            if process.calls:
                self._work_on(process.calls[0])
            else:
                del self._busy[process]

    def _kill(self) -> None:
        process = next(iter(self._busy), None)
        if process is not None:
            process.dead = True
            del self._busy[process]
