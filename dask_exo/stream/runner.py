"""Where the tasks of a pipeline run: on workers that a cluster lends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from dask_exo.errors import WorkerLostError
from dask_exo.stream.executor import AGAIN, Piece, Stage
from dask_exo.stream.task import About, Code, Worker, run
from dask_exo.stream.workers import Kind, early, places

IDLE = 30.0  # seconds without work after which a worker is let go
SHORT = 1.0  # seconds of a task behind which another may wait for the same worker
LOOK = 1.0  # seconds between two looks at the cluster
REPLACED = 3  # how often a worker that has died is replaced for one task


class Streams(Protocol):
    """Tasks that give pairs: a value, and what is known of it. Each pair waits until the one before
    is taken.
    """

    def resources(self) -> dict[str, float]:
        """Amount of each resource of the whole cluster."""
        ...

    def put(self, value: Any) -> Any:
        """Store a value; return its ref."""
        ...

    def task(self, fn: Any, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start a task; return its stream."""
        ...

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start a process that keeps a ``cls(*args)``, and has what it needs to itself."""
        ...

    def start(self, worker: Any, *args: Any) -> Any:
        """Call ``run`` of the instance; return its stream."""
        ...

    def stop(self, worker: Any) -> None:
        """End a process."""
        ...

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:
        """Wait until one of ``streams`` has a pair, or has ended; return those."""
        ...

    def read(self, stream: Any) -> Any:
        """What is known of the next value of a stream that has one; None at its end."""
        ...

    def take(self, stream: Any) -> Any:
        """A ref of that value; its task goes on."""
        ...

    def cancel(self, streams: Collection[Any]) -> None:
        """Stop their tasks."""
        ...


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


class StreamRunner:
    """`dask_exo.stream.executor.Runner` on `Streams`.

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
        # what has no state and asks for CPUs runs on processes that all tasks of the cluster share
        self._alone = [
            stage.needs.keys() <= {"CPU"} and not any(t.stateful for t in code.transforms)
            for stage, code in zip(stages, codes, strict=True)
        ]
        self._kinds: list[Kind] = [frozenset(stage.needs.items()) for stage in stages]
        self._idle: dict[Kind, list[tuple[float, Any]]] = {kind: [] for kind in self._kinds}
        self._count: Counter[Kind] = Counter()
        self._tasks: dict[Any, Task] = {}
        self._serving: dict[Any, list[Task]] = {}  # in the order in which a worker does them
        self._single = [0.0] * len(stages)  # longest task; endless if it gives several pieces
        self._resources, self._looked = streams.resources(), self.now()
        for i, stage in enumerate(stages):
            while self._count[self._kinds[i]] < stage.least_workers and not self._alone[i]:
                self._begin(i)
        self._early = [i for i in range(len(stages)) if early(i, self._kinds, self._alone)]
        self._begun: Counter[int] = Counter()

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def total(self) -> Mapping[str, float]:
        """Resources of the cluster, which may have lost nodes, or got others."""
        if self.now() - self._looked > LOOK:
            self._resources, self._looked = self._streams.resources(), self.now()
        return self._resources

    def start(self, stage: int, inputs: Sequence[Piece]) -> Task:
        """Start a task on a worker that has what the stage needs.

        With a task of the source workers start that later stages are going to need, where that
        takes nothing from others.
        """
        task = Task(stage, inputs)
        self._submit(task)
        for i in self._early if stage == 0 else ():
            room = places(self._stages[i], self._resources)
            if self._begun[i] < room > self._count[self._kinds[i]]:
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
            self._dismiss(kind, since=self.now() - IDLE)
        if not tasks:
            time.sleep(timeout or 0)
            return []
        ready = [task for task in tasks if task.ended]
        running = [task.stream for task in tasks if not task.ended]
        for stream in self._streams.wait(running, 0 if ready else timeout) if running else ():
            task = self._tasks[stream]
            try:
                task.about = self._streams.read(stream)
            except WorkerLostError:
                self._lose(task)
                continue
            if task.about is not None and task.about.failure is not None:
                task.about.failure.reraise()
            ready.append(task)
        return ready

    def last(self, task: Task) -> bool:
        """Whether it has ended, or will after its output."""
        return task.about is None or not task.about.more

    def take(self, task: Task) -> Piece | None:
        """The next output, or None at its end."""
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
        return Piece(ref, about.nbytes, about.rows, more=about.more, seconds=about.seconds)

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
        for task in self._tasks.values():
            if task.worker is not None:
                self._streams.stop(task.worker)

    def _submit(self, task: Task) -> None:
        values = [piece.value for piece in task.inputs]
        args = (self._codes[task.stage], task.inputs[0].place, task.given, *values)
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

    def _dismiss(self, kind: Kind, since: float) -> None:
        """Let go of workers that have had nothing to do since some moment, or for longer."""
        gone = [one for one in self._idle[kind] if one[0] <= since]
        self._idle[kind] = [one for one in self._idle[kind] if one[0] > since]
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
        if task.lost > REPLACED:
            name = self._stages[task.stage].name
            place = task.inputs[0].place
            raise WorkerLostError(
                f"the workers of stage {name!r} died {task.lost} times on the same input, "
                f"partition {place}: it may need more memory than there is"
            )
        task.worker = None
        self._submit(task)


def _short(tasks: Sequence[Task], stage: int) -> bool:
    return len(tasks) == 1 and tasks[0].stage == stage
