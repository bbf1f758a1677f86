"""A pipeline on a virtual clock: tasks that take time and give bytes, and nothing else."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_exo.stream.executor import Piece


@dataclass(eq=False)
class _Task:
    outputs: list[tuple[float, Piece]]  # seconds of work, and what it gives
    inputs: Sequence[Piece]
    made: int = 0
    ready: bool = False


Work = Callable[[int, Sequence[Piece]], list[tuple[float, int]]]
"""``work(stage, inputs)``: seconds and bytes of each output of a task."""


@dataclass
class SimRunner:
    """Runs tasks of a pipeline in virtual time; see `dask_exo.stream.executor.Runner`.

    A task works on its next output only when the one before has been taken.

    Parameters
    ----------
    resources : mapping
    work : callable
        See `Work`.

    Attributes
    ----------
    time : float
        Virtual seconds.
    live, peak : int
        Bytes of all pieces that exist: given and neither used up nor `drop`ped.
    """

    resources: Mapping[str, float]
    work: Work
    time: float = 0.0
    live: int = 0
    peak: int = 0
    _events: list[tuple[float, int, _Task]] = field(default_factory=list)
    _count: int = 0

    def now(self) -> float:
        """Virtual seconds."""
        return self.time

    def total(self) -> Mapping[str, float]:
        """Resources."""
        return self.resources

    def start(self, stage: int, inputs: Sequence[Piece]) -> _Task:
        """Start a task."""
        outputs = self.work(stage, inputs)
        pieces = [
            (seconds, Piece(None, nbytes, 1, more=n + 1 < len(outputs), seconds=seconds))
            for n, (seconds, nbytes) in enumerate(outputs)
        ]
        task = _Task(pieces, inputs)
        self._plan(task)
        return task

    def wait(self, tasks: Sequence[_Task], timeout: float | None) -> list[_Task]:
        """Let time pass until one of ``tasks`` is ready."""
        wanted = set(tasks)
        end = float("inf") if timeout is None else self.time + timeout
        while not any(task.ready for task in wanted) and self._events:
            if self._events[0][0] > end:
                break
            self._happen()
        while self._events and self._events[0][0] <= self.time:
            self._happen()
        if timeout is not None and not any(task.ready for task in wanted):
            self.time = end
        return [task for task in tasks if task.ready]

    def last(self, task: _Task) -> bool:
        """Whether its output is the last one."""
        return task.made >= len(task.outputs) - 1

    def take(self, task: _Task) -> Piece | None:
        """The next output, or None at its end."""
        task.ready = False
        if task.made == len(task.outputs):
            task.made += 1
            return None
        piece = task.outputs[task.made][1]
        task.made += 1
        if task.made < len(task.outputs):
            self._plan(task)
        else:
            task.ready = True  # that it has ended
            self.drop(*task.inputs)
        return piece

    def idle(self, stage: int) -> int:  # noqa: ARG002
        """None: workers are not simulated."""
        return 0

    def held(self) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def release(self) -> None:
        """Nothing to let go of."""

    def drop(self, *pieces: Piece) -> None:
        """Pieces that nobody needs any more."""
        self.live -= sum(piece.nbytes for piece in pieces)

    def cancel(self, tasks: Sequence[Any]) -> None:
        """Stop tasks."""
        self._events = [event for event in self._events if event[2] not in set(tasks)]

    def _plan(self, task: _Task) -> None:
        self._count += 1
        seconds = task.outputs[task.made][0] if task.outputs else 0.0
        heapq.heappush(self._events, (self.time + seconds, self._count, task))

    def _happen(self) -> None:
        self.time, _, task = heapq.heappop(self._events)
        task.ready = True
        if task.outputs:
            self.live += task.outputs[task.made][1].nbytes
            self.peak = max(self.peak, self.live)
