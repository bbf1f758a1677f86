"""Where the tasks of a pipeline run: on workers that a cluster lends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dask_exo import events
from dask_exo.cluster.resources import has
from dask_exo.cluster.task_status import Activity, Doing
from dask_exo.errors import ValueLostError, WorkerLostError
from dask_exo.pipeline.streaming.actor_pools import ActorPools
from dask_exo.pipeline.streaming.recovery import (
    can_recompute,
    compare,
    given_up,
    lineage_of,
    not_given,
    origin,
    origin_of,
    set_aside,
    without_value,
)
from dask_exo.pipeline.streaming.snapshot import PipelineView
from dask_exo.pipeline.streaming.task import BlockMetadata, StageCode, TaskInputs, run
from dask_exo.pipeline.streaming.types import AGAIN, Block, Lineage, Stage, links
from dask_exo.pipeline.streaming.waist import Streams

SHORT = 1.0  # seconds of a task behind which another may wait for the same worker
SOON = 0.05  # seconds until a worker, or a lost input, is looked for again
PATIENCE = 2.0  # seconds without an output after which it is looked whether inputs were lost
FRESH = 1.0  # seconds for which resources of the cluster are taken to be the same
REPLACED = 3  # how often a worker that has died is replaced for one task


@dataclass(eq=False)
class Task:
    """A task under way, or one that waits for an input which another one makes again."""

    stage: int
    inputs: list[Block]
    stream: Any = None
    worker: Any = None
    about: BlockMetadata | None = None
    ended: bool = False
    given: int = 0
    lost: int = 0
    seen: int = 0  # digest of all blocks that were given
    dropped: list[Block] | None = None  # inputs that are set aside, as its worker died too often
    only: Lineage | None = None  # the output that it makes can_recompute, and no other
    maker: Task | None = None  # makes an input of it again
    reader: tuple[Task, int] | None = None  # which input of which other one it makes again


class StreamRunner:
    """`dask_exo.pipeline.streaming.types.Runner` on `Streams`.

    Parameters
    ----------
    streams : Streams
    stages : sequence of Stage
        (S,)
    codes : sequence of StageCode
        (S,)
    clock : callable
        Seconds, from some moment on.
    """

    def __init__(
        self,
        streams: Streams,
        stages: Sequence[Stage],
        codes: Sequence[StageCode],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._streams, self._stages, self._clock = streams, stages, clock
        self._codes = [streams.put(code) for code in codes]
        self._skips = [code.skips for code in codes]
        self._modes, self._names = zip(*((c.nondeterminism, c.key) for c in codes), strict=True)
        # what has no state and asks for CPUs runs on processes that all tasks of the cluster share
        self._alone = [
            stage.needs.keys() <= {"CPU"} and not any(t.stateful for t in code.transforms)
            for stage, code in zip(stages, codes, strict=True)
        ]
        self._tasks: dict[Any, Task] = {}
        self._serving: dict[Any, list[Task]] = {}  # in the order in which a worker does them
        self._waiting: list[Task] = []  # make something can_recompute, and wait for a worker
        self._recalled: list[Task] = []  # wait for inputs that were lost, without a worker
        self._moved = clock()  # when something came
        self._single = [0.0] * len(stages)  # longest task; endless if it gives several blocks
        self._resources, self._looked = streams.resources(), self.now()
        self._sources = [i for i, link in enumerate(links(stages)) if not link.before]
        self._pools = ActorPools(streams, stages, self._codes, self._alone, self.now)
        self._pools.open(self._resources)
        self._started: Counter[int] = Counter()

    def now(self) -> float:
        """Seconds."""
        return self._clock()

    def total(self) -> Mapping[str, float]:
        """Resources of the cluster, of a second ago at most: nodes come and go."""
        if self.now() - self._looked > FRESH:
            self._resources, self._looked = self._streams.resources(), self.now()
        return self._resources

    def needs(self, stage: int) -> Mapping[str, float]:
        """Resources that a task takes at the moment; see `ActorPools.needs`."""
        return self._pools.needs(stage)

    def start(self, stage: int, inputs: Sequence[Block]) -> Task:
        """Start a task on a worker that has what the stage needs.

        With the first tasks of sources workers start that later stages are going to need, where
        that takes nothing from others. Once a stage has tasks, these say how many it needs.
        """
        task = Task(stage, list(inputs))
        self._submit(task)
        self._started[stage] += 1
        if stage in self._sources:
            self._pools.begin_early(self._resources, self._started, self._sources)
        return task

    def again(self, block: Block) -> Task:
        """Start a task that makes a block can_recompute, and nothing else."""
        assert block.made is not None
        made = block.made
        task = Task(block.stage, list(made.inputs), given=made.number, only=made)
        events.emit(events.CallsRepeated({self._stages[block.stage].name: 1}))
        self._submit(task)
        return task

    def wait(self, tasks: Sequence[Task], timeout: float | None) -> list[Task]:
        """Wait until one has an output or has ended.

        A task whose worker has died starts anew, and gives what is missing. Inputs of which the
        node has died are made again before that.

        Raises
        ------
        Exception
            What the function of the user has raised.
        WorkerLostError
            Workers died again and again.
        """
        self._pools.release_tired()
        self._send_again()
        if not tasks:
            time.sleep(timeout or 0)
            return []
        ready = [task for task in tasks if task.ended or task.dropped is not None]
        open_ = [task for task in tasks if not task.ended and task.dropped is None]
        streams = self._open(open_)
        if self._recalled or not streams:
            timeout = SOON if timeout is None else min(timeout, SOON)
        if not streams and not ready:
            time.sleep(timeout or 0)
        for stream in self._streams.wait(streams, 0 if ready else timeout) if streams else ():
            task, self._moved = self._tasks[stream], self.now()
            try:
                task.about = self._streams.read(stream)
            except WorkerLostError as error:
                self._lose(task, error)
                continue
            if task.about is not None and task.about.failure is not None:
                task.about.failure.reraise()  # it names stage, partition and rows
            if task.reader is None:
                ready.append(task)
            else:
                self._made_again(task)
        if self.now() - self._moved > PATIENCE:
            self._recall()
            self._moved = self.now()
        return ready

    def stage(self, task: Task) -> int:
        """The stage of what it waits for."""
        return _leaf(task).stage

    def last(self, task: Task) -> bool:
        """Whether it has ended, or will after its output."""
        return task.about is None or not task.about.more

    def take(self, task: Task) -> Block | None:
        """The next output, or None at its end."""
        if task.dropped is not None:
            return task.dropped.pop() if task.dropped else None
        about, task.about = task.about, None
        if about is None:
            self._end(task)
            return None
        try:
            ref = self._streams.take(task.stream)
        except WorkerLostError as error:
            self._lose(task, error)
            return AGAIN
        made = lineage_of(task.inputs, task.given, about.digest)
        task.given += 1
        self._compare(task, about)
        task.seen = about.digest
        if task.only is None:
            seen = self._single[task.stage]
            self._single[task.stage] = inf if about.more else max(seen, about.seconds)
        task.ended = not about.more  # the next one of its worker may come: it waits there
        return Block(
            ref,
            about.nbytes,
            about.rows,
            more=about.more,
            seconds=about.seconds,
            origin=about.origin,
            rejected=about.rejected,
            held=about.held,
            made=made,
        )

    def idle(self, stage: int) -> int:
        """Workers that could run a task of a stage at once, or as soon as they end another one."""
        return self._pools.idle(stage) + len(self._soon(stage))

    def full(self, stage: int) -> bool:
        """Whether a stage has as many workers as its measured rate asks for."""
        return self._pools.full(stage, self._resources)

    def resize(self, view: PipelineView) -> bool:
        """Have as many workers as measured rates ask for; return whether something has changed."""
        return self._pools.resize(view)

    def held(self) -> Mapping[str, float]:
        """Resources of all workers that have nothing to do."""
        return self._pools.held()

    def release(self) -> None:
        """Let go of all workers that have nothing to do."""
        self._pools.release()

    def cancel(self, tasks: Sequence[Task]) -> None:
        """Stop tasks, and all workers."""
        self._waiting.clear()
        self._recalled.clear()
        self._streams.cancel(self._open(tasks))
        self.release()
        for worker in self._serving:
            self._streams.stop(worker)

    def activity(self, tasks: Sequence[Task]) -> Activity:
        """What tasks do at the moment."""
        leaves = list(map(_leaf, tasks))
        seen = self._streams.activity(self._open(tasks))
        begun = iter(seen.tasks)
        return replace(
            seen,
            tasks=[
                Doing("waits", self.needs(leaf.stage)) if leaf.stream is None else next(begun)
                for leaf in leaves
            ],
        )

    def _open(self, tasks: Sequence[Task]) -> list[Any]:
        """What these wait for, as far as it has begun."""
        return [leaf.stream for leaf in map(_leaf, tasks) if leaf.stream is not None]

    def _submit(self, task: Task) -> None:
        lost = next((k for k, block in enumerate(task.inputs) if block.value is None), None)
        if lost is not None:
            self._make_again(task, lost)
            return
        values = [block.value for block in task.inputs]
        origins = list(map(origin, task.inputs))
        start = TaskInputs(task.inputs[0].place, task.given, origins, task.only is not None)
        args = (self._codes[task.stage], start, *values)
        stage = task.stage
        seed = f"{self._names[stage]} {start.place}"
        if self._alone[stage]:
            needs = self._stages[stage].needs
            task.stream = self._streams.task(run, *args, needs=needs, seed=seed)
        else:
            soon = [] if self._pools.idle(stage) else self._soon(stage)
            if not self._pools.idle(stage) and not soon:
                if task.only is not None and self._pools.busy(stage, self._resources):
                    self._waiting.append(task)
                    return
                self._pools.begin(stage, self._resources)
            task.worker = soon[0] if soon else self._pools.take(stage)
            self._serving.setdefault(task.worker, []).append(task)
            task.stream = self._streams.start(task.worker, *args, seed=seed)
        self._tasks[task.stream] = task

    def _soon(self, stage: int) -> list[Any]:
        """Workers with a short task, behind which another may wait, so that they need not."""
        if not self._pools.early(stage) or not 0 < self._single[stage] < SHORT:
            return []
        if not self._pools.full(stage, self._resources):
            return []  # there is room for one more
        return [worker for worker, tasks in self._serving.items() if _short(tasks, stage)]

    def _make_again(self, task: Task, which: int) -> None:
        """Make an input of a task can_recompute, from whatever is still there."""
        task.stream, task.worker = None, None
        task.maker = self.again(task.inputs[which])
        task.maker.reader = (task, which)

    def _compare(self, task: Task, about: BlockMetadata) -> None:
        """See that a task gives what it gave before, if it ran before."""
        seen = task.seen
        if task.only is not None:
            about, seen = about._replace(before=about.digest), task.only.digest
        name, mode = self._stages[task.stage].name, self._modes[task.stage]
        compare(about, seen, mode, name, origin_of(task.inputs))

    def _made_again(self, maker: Task) -> None:
        """Start the task that needs what another one has made again."""
        assert maker.reader is not None
        task, which = maker.reader
        made = self.take(maker)
        if made is AGAIN:
            return
        stage, lost = maker.stage, task.inputs[which]
        if made is None or made.rejected is not None:
            raise not_given(self._stages[stage].name, lost)
        self._end(maker)
        task.maker, task.inputs[which] = None, lost._replace(value=made.value)
        self._submit(task)

    def _end(self, task: Task) -> None:
        del self._tasks[task.stream]
        serving = self._serving.get(task.worker)
        if serving is None:  # it had no worker, or that has died since
            return
        serving.remove(task)
        if not serving:
            del self._serving[task.worker]
            self._pools.back(task.stage, task.worker)
        self._hand_on()

    def _recall(self) -> None:
        """Take tasks from workers that hold what it takes to make their lost inputs again.

        A worker has its slot also while it waits for the input of a call. If the node of that input
        is gone, and workers have all slots that are left, nothing could ever go on.
        """
        free = self._streams.free()
        for worker, tasks in list(self._serving.items()):
            first = tasks[0]
            makers = [self._stages[max(block.stage, 0)].needs for block in first.inputs]
            begun = first.given or first.about is not None
            if begun or all(has(free, needs) for needs in makers):
                continue
            if not self._streams.there([block.value for block in first.inputs]):
                del self._serving[worker]
                self._pools.lost(first.stage, worker)
                for task in tasks:
                    del self._tasks[task.stream]
                    task.stream = task.worker = None
                self._recalled += tasks

    def _send_again(self) -> None:
        """Start tasks that were recalled, and whose inputs are there again."""
        recalled, self._recalled = self._recalled, []
        for task in recalled:
            if self._streams.there([block.value for block in task.inputs]):
                self._submit(task)
            else:
                self._recalled.append(task)

    def _hand_on(self) -> None:
        """Give workers to tasks that make something can_recompute, before others get them."""
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._submit(task)

    def _lose(self, task: Task, last: WorkerLostError) -> None:
        """Start a task anew whose worker has died, or whose input was lost."""
        if isinstance(last, ValueLostError):
            self._end(task)
            task.lost += 1
            can = [can_recompute(block) for block in task.inputs]
            task.inputs = [
                without_value(p) if ok else p for p, ok in zip(task.inputs, can, strict=True)
            ]
            task.worker = None
        else:
            self._bury(task)
        if task.lost <= REPLACED:
            events.emit(events.CallsRepeated({self._stages[task.stage].name: 1}))
            self._submit(task)
            return
        name = self._stages[task.stage].name
        error = given_up(name, task.inputs, task.lost, last)
        if not self._skips[task.stage] or task.only is not None:
            raise error
        task.dropped = [set_aside(name, block, error) for block in reversed(task.inputs)]

    def _bury(self, task: Task) -> None:
        """Take note that the worker of a task has died."""
        del self._tasks[task.stream]
        if task.worker is None:
            task.lost += 1
        elif task.worker in self._serving:
            self._serving.pop(task.worker)[0].lost += 1  # those behind it had not begun
            self._pools.lost(task.stage, task.worker)
        task.worker = None
        self._hand_on()


def _leaf(task: Task) -> Task:
    """Itself, or the task that makes its input again."""
    while task.maker is not None:
        task = task.maker
    return task


def _short(tasks: Sequence[Task], stage: int) -> bool:
    return len(tasks) == 1 and tasks[0].stage == stage
