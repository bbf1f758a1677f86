"""Where the tasks of a pipeline run: on workers that a cluster lends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from dask_exo.activity import Activity
from dask_exo.errors import WorkerLostError
from dask_exo.failure import Failure
from dask_exo.stream.calls import Rejected, named
from dask_exo.stream.origin import Origin, Rows, joined
from dask_exo.stream.pieces import AGAIN, Piece, Stage
from dask_exo.stream.streams import Streams
from dask_exo.stream.task import About, Code, Start, Worker, run
from dask_exo.stream.workers import Kind, early, places

IDLE = 30.0  # seconds without work after which a worker is let go
SHORT = 1.0  # seconds of a task behind which another may wait for the same worker
FRESH = 1.0  # seconds for which resources of the cluster are taken to be the same
REPLACED = 3  # how often a worker that has died is replaced for one task


@dataclass(eq=False)
class Task:
    """A task under way."""

    stage: int
    inputs: Sequence[Piece]
    stream: Any = None
    worker: Any = None
    about: About | None = None
    ended: bool = False
    given: int = 0
    lost: int = 0
    dropped: list[Piece] | None = None  # inputs that are set aside, as its worker died too often


class StreamRunner:
    """`dask_exo.stream.pieces.Runner` on `Streams`.

    Parameters
    ----------
    streams : Streams
    stages : sequence of Stage
        (S,)
    codes : sequence of Code
        (S,)
    """

    def __init__(self, streams: Streams, stages: Sequence[Stage], codes: Sequence[Code]) -> None:
        self._streams, self._stages = streams, stages
        self._codes = [streams.put(code) for code in codes]
        self._skips = [code.skips for code in codes]
        # what has no state and asks for CPUs runs on processes that all tasks of the cluster share
        self._alone = [
            stage.needs.keys() <= {"CPU"} and not any(t.stateful for t in code.transforms)
            for stage, code in zip(stages, codes, strict=True)
        ]
        self._kinds: list[Kind] = [frozenset(stage.needs.items()) for stage in stages]
        self._idle: dict[Kind, list[tuple[float, Any]]] = {kind: [] for kind in self._kinds}
        self._count: Counter[Kind] = Counter()
        self._least: Counter[Kind] = Counter()
        self._tasks: dict[Any, Task] = {}
        self._serving: dict[Any, list[Task]] = {}  # in the order in which a worker does them
        self._single = [0.0] * len(stages)  # longest task; endless if it gives several pieces
        self._resources, self._looked = streams.resources(), self.now()
        for i, stage in enumerate(stages):
            self._least[self._kinds[i]] = max(self._least[self._kinds[i]], stage.least_workers)
            while self._count[self._kinds[i]] < stage.least_workers and not self._alone[i]:
                self._begin(i)
        self._early = [i for i in range(len(stages)) if early(i, self._kinds, self._alone)]
        self._begun: Counter[int] = Counter()
        self._started: Counter[int] = Counter()

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def total(self) -> Mapping[str, float]:
        """Resources of the cluster, of a second ago at most: nodes come and go."""
        if self.now() - self._looked > FRESH:
            self._resources, self._looked = self._streams.resources(), self.now()
        return self._resources

    def start(self, stage: int, inputs: Sequence[Piece]) -> Task:
        """Start a task on a worker that has what the stage needs.

        With the first tasks of the source workers start that later stages are going to need, where
        that takes nothing from others. Once a stage has tasks, these say how many it needs.
        """
        task = Task(stage, inputs)
        self._submit(task)
        self._started[stage] += 1
        for i in self._early if stage == 0 else ():
            room = min(places(self._stages[i], self._resources), self._started[0])
            if not self._started[i] and self._begun[i] < room > self._count[self._kinds[i]]:
                self._begun[i] += 1
                self._begin(i)
        return task

    def wait(self, tasks: Sequence[Task], timeout: float | None) -> list[Task]:
        """Wait until one has an output or has ended.

        A task whose worker has died starts anew, and gives what is missing.

        Raises
        ------
        Exception
            What the function of the user has raised.
        WorkerLostError
            Workers died again and again.
        """
        for kind in self._idle:
            spare = max(0, self._count[kind] - self._least[kind])
            self._dismiss(kind, since=self.now() - IDLE, most=spare)
        if not tasks:
            time.sleep(timeout or 0)
            return []
        ready = [task for task in tasks if task.ended or task.dropped is not None]
        streams = [task.stream for task in tasks if not task.ended and task.dropped is None]
        for stream in self._streams.wait(streams, 0 if ready else timeout) if streams else ():
            task = self._tasks[stream]
            try:
                task.about = self._streams.read(stream)
            except WorkerLostError:
                self._lose(task)
                continue
            if task.about is not None and task.about.failure is not None:
                task.about.failure.reraise()  # it names stage, partition and rows
            ready.append(task)
        return ready

    def last(self, task: Task) -> bool:
        """Whether it has ended, or will after its output."""
        return task.about is None or not task.about.more

    def take(self, task: Task) -> Piece | None:
        """The next output, or None at its end."""
        if task.dropped is not None:
            return task.dropped.pop() if task.dropped else None
        about, task.about = task.about, None
        if about is None:
            self._end(task)
            return None
        try:
            ref = self._streams.take(task.stream)
        except WorkerLostError:
            self._lose(task)
            return AGAIN
        task.given += 1
        seen = self._single[task.stage]
        self._single[task.stage] = inf if about.more else max(seen, about.seconds)
        task.ended = not about.more  # the next one of its worker may come: it waits there
        return Piece(
            ref,
            about.nbytes,
            about.rows,
            more=about.more,
            seconds=about.seconds,
            origin=about.origin,
            rejected=about.rejected,
        )

    def idle(self, stage: int) -> int:
        """Workers that could run a task of a stage at once, or as soon as they end another one."""
        if self._alone[stage]:
            return 0
        return len(self._idle[self._kinds[stage]]) + len(self._soon(stage))

    def held(self) -> Mapping[str, float]:
        """Resources of all workers that have nothing to do."""
        held = Counter[str]()
        for kind, idle in self._idle.items():
            held.update({name: len(idle) * need for name, need in kind if idle})
        return held

    def release(self) -> None:
        """Let go of all workers that have nothing to do."""
        for kind in self._idle:
            self._dismiss(kind, since=float("inf"))

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Stop tasks, and all workers."""
        self._streams.cancel([task.stream for task in tasks])
        self.release()
        for worker in self._serving:
            self._streams.stop(worker)

    def activity(self, tasks: Sequence[Task]) -> Activity:
        """What tasks do at the moment."""
        return self._streams.activity([task.stream for task in tasks])

    def _submit(self, task: Task) -> None:
        values = [piece.value for piece in task.inputs]
        origins = [_origin(piece) for piece in task.inputs]
        start = Start(task.inputs[0].place, task.given, origins)
        args = (self._codes[task.stage], start, *values)
        kind = self._kinds[task.stage]
        if self._alone[task.stage]:
            task.stream = self._streams.task(run, *args, needs=dict(kind))
        else:
            soon = [] if self._idle[kind] else self._soon(task.stage)
            if not self._idle[kind] and not soon:
                self._begin(task.stage)
            task.worker = soon[0] if soon else self._idle[kind].pop()[1]
            self._serving.setdefault(task.worker, []).append(task)
            task.stream = self._streams.start(task.worker, *args)
        self._tasks[task.stream] = task

    def _soon(self, stage: int) -> list[Any]:
        """Workers with a short task, behind which another may wait, so that they need not."""
        if stage not in self._early or not 0 < self._single[stage] < SHORT:
            return []
        if self._count[self._kinds[stage]] < places(self._stages[stage], self._resources):
            return []  # there is room for one more
        return [worker for worker, tasks in self._serving.items() if _short(tasks, stage)]

    def _end(self, task: Task) -> None:
        del self._tasks[task.stream]
        serving = self._serving.get(task.worker)
        if serving is None:  # it had no worker, or that has died since
            return
        serving.remove(task)
        if not serving:
            del self._serving[task.worker]
            # the one that worked last is taken first: the others may go
            self._idle[self._kinds[task.stage]].append((self.now(), task.worker))

    def _begin(self, stage: int) -> None:
        """Start a worker; others that have nothing to do make room for it."""
        kind = self._kinds[stage]
        for other in self._idle:
            held = Counter[str]()
            for one, count in self._count.items():
                held.update({name: count * need for name, need in one})
            fits = all(held[name] + need <= self._resources.get(name, 0) for name, need in kind)
            if not fits and {name for name, _ in other} & {name for name, _ in kind}:
                self._dismiss(other, since=float("inf"))
        self._count[kind] += 1
        worker = self._streams.worker(Worker, self._codes[stage], needs=dict(kind))
        self._idle[kind].append((self.now(), worker))

    def _dismiss(self, kind: Kind, since: float, most: int | None = None) -> None:
        """Let go of workers that have had nothing to do since some moment, or for longer."""
        gone = [one for one in self._idle[kind] if one[0] <= since][:most]
        self._idle[kind] = self._idle[kind][len(gone) :]  # the first ones have waited longest
        self._count[kind] -= len(gone)
        for _, worker in gone:
            self._streams.stop(worker)

    def _lose(self, task: Task) -> None:
        """Start a task anew whose worker has died."""
        del self._tasks[task.stream]
        if task.worker is None:
            task.lost += 1
        elif task.worker in self._serving:
            self._serving.pop(task.worker)[0].lost += 1  # those behind it had not begun
            self._count[self._kinds[task.stage]] -= 1
            self._streams.stop(task.worker)
        task.worker = None
        if task.lost <= REPLACED:
            self._submit(task)
            return
        name = self._stages[task.stage].name
        error = WorkerLostError(
            f"the workers of stage {name!r} died {task.lost} times on the same input, "
            f"{joined([_origin(piece) for piece in task.inputs])}: it may need more memory than "
            f"there is"
        )
        if not self._skips[task.stage]:
            raise error
        task.dropped = [_set_aside(name, piece, error) for piece in reversed(task.inputs)]


def _origin(piece: Piece) -> Origin:
    """Rows of an input; those of the source are counted where they are made."""
    return piece.origin if piece.origin.rows else Origin((Rows(piece.place[0]),))


def _set_aside(name: str, piece: Piece, error: Exception) -> Piece:
    origin = _origin(piece)
    failure = Failure.of(named(name, name, origin), error)
    return piece._replace(more=True, rejected=Rejected(name, name, origin, failure))


def _short(tasks: Sequence[Task], stage: int) -> bool:
    return len(tasks) == 1 and tasks[0].stage == stage
