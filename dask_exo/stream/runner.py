"""Where the tasks of a pipeline run: on workers that a cluster lends."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dask_exo.errors import WorkerLostError
from dask_exo.stream.executor import AGAIN, Piece, Stage
from dask_exo.stream.task import About, Code, Instances, run

REPLACED = 3  # how often a worker that has died is replaced for one task


class Streams(Protocol):
    """Tasks that give their values one at a time; each waits until the one before is taken."""

    def resources(self) -> dict[str, float]:
        """Amount of each resource of the whole cluster."""
        ...

    def put(self, value: Any) -> Any:
        """Store a value; return its ref."""
        ...

    def start(self, fn: Any, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start a task; return its stream."""
        ...

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start a process that keeps an instance of ``cls``."""
        ...

    def start_on(self, worker: Any, *args: Any) -> Any:
        """Call ``run`` of the instance; return its stream."""
        ...

    def stop(self, worker: Any) -> None:
        """End a process."""
        ...

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:
        """Wait until one of ``streams`` has a value, or has ended; return those."""
        ...

    def read(self, stream: Any) -> Any:
        """The next value of a stream that has one; None at its end."""
        ...

    def take(self, stream: Any) -> Any:
        """A ref of the next value; its task goes on."""
        ...

    def cancel(self, streams: Collection[Any]) -> None:
        """Stop their tasks."""
        ...


@dataclass(eq=False)
class Task:
    """A task under way."""

    stage: int
    inputs: Sequence[Piece]
    stream: Any
    worker: Any = None
    about: About | None = None
    given: int = 0
    lost: int = 0


@dataclass
class Pool:
    """The workers of a stage with a state."""

    idle: list[Any] = field(default_factory=list)
    count: int = 0


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
        self._stateful = [any(t.stateful for t in code.transforms) for code in codes]
        self._pools = [Pool() for _ in stages]
        self._tasks: dict[Any, Task] = {}
        self._resources = streams.resources()
        self.replaced = 0
        for i, stage in enumerate(stages):
            for _ in range(stage.least_workers if self._stateful[i] else 0):
                self._pools[i].idle.append(self._worker(i))

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def total(self) -> Mapping[str, float]:
        """Resources of the cluster."""
        return self._resources

    def workers(self, stage: int) -> tuple[int, int]:
        """Workers that a stage keeps, and how many of them have nothing to do."""
        pool = self._pools[stage]
        return pool.count, len(pool.idle)

    def start(self, stage: int, inputs: Sequence[Piece]) -> Task:
        """Start a task, on a worker of the stage if it has a state."""
        task = Task(stage, inputs, None)
        self._submit(task)
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
        if not tasks:
            time.sleep(timeout or 0)
            return []
        ready = []
        for stream in self._streams.wait([task.stream for task in tasks], timeout):
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
            del self._tasks[task.stream]
            if task.worker is not None:
                self._pools[task.stage].idle.append(task.worker)
            return None
        try:
            ref = self._streams.take(task.stream)
        except WorkerLostError:
            self._lose(task)
            return AGAIN
        task.given += 1
        return Piece(ref, about.nbytes, about.rows, more=about.more)

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Stop tasks, and all workers."""
        self._streams.cancel([task.stream for task in tasks])
        self.close()

    def close(self) -> None:
        """Let go of all workers."""
        for pool in self._pools:
            for worker in pool.idle:
                self._streams.stop(worker)
            pool.idle.clear()
        for task in self._tasks.values():
            if task.worker is not None:
                self._streams.stop(task.worker)

    def release(self, stage: int) -> None:
        """Let go of the workers of a stage that have nothing to do."""
        pool = self._pools[stage]
        for worker in pool.idle:
            self._streams.stop(worker)
        pool.count -= len(pool.idle)
        pool.idle.clear()

    def _submit(self, task: Task) -> None:
        place, values = task.inputs[0].place, [piece.value for piece in task.inputs]
        args = (self._codes[task.stage], place, task.given, *values)
        needs = self._stages[task.stage].needs
        if self._stateful[task.stage]:
            pool = self._pools[task.stage]
            task.worker = pool.idle.pop() if pool.idle else self._worker(task.stage)
            task.stream = self._streams.start_on(task.worker, *args)
        else:
            task.stream = self._streams.start(run, *args, needs=needs)
        self._tasks[task.stream] = task

    def _worker(self, stage: int) -> Any:
        self._pools[stage].count += 1
        needs = self._stages[stage].needs
        return self._streams.worker(Instances, self._codes[stage], needs=needs)

    def _lose(self, task: Task) -> None:
        """Start a task anew whose worker has died."""
        del self._tasks[task.stream]
        task.lost += 1
        self.replaced += 1
        if task.lost > REPLACED:
            name = self._stages[task.stage].name
            place = task.inputs[0].place
            raise WorkerLostError(
                f"the workers of stage {name!r} died {task.lost} times on the same input, "
                f"partition {place}: it may need more memory than there is"
            )
        if task.worker is not None:
            self._pools[task.stage].count -= 1
            self._streams.stop(task.worker)
        self._submit(task)
