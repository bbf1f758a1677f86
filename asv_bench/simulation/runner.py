"""A pipeline on a virtual clock: tasks that take time and give bytes, on nodes that may die."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dask_exo.cluster.resources import fits
from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.pipeline.streaming.blocks import AGAIN, Block, StageSpec, links
from dask_exo.pipeline.streaming.snapshot import PipelineView

Work = Callable[[int, Sequence[Block]], list[tuple[float, int]]]
"""``work(stage, inputs)``: seconds and bytes of each output of a task."""

Resources = Mapping[str, float]


class Fault(NamedTuple):
    """Something dies.

    Attributes
    ----------
    at : float
        Virtual seconds.
    node : int
        The process of one of its tasks dies, or the node with all its processes and pieces.
    away : float or None
        Seconds until the node is there again; None for a process.
    """

    at: float
    node: int
    away: float | None = None


@dataclass(eq=False)
class Made:
    """What stands for a piece.

    Attributes
    ----------
    born : float
        Seconds that it takes to make it and all that it is made of, one after the other.
    node, life : int
        Where it is, and how often that node had died before.
    takers : int
        Who has not let go of it: a task each, or whoever takes it at an end.
    """

    born: float = 0.0
    node: int = -1
    life: int = 0
    takers: int = 1


@dataclass(eq=False)
class Task:
    """A task under way: seconds and bytes of its outputs, and how many have been taken."""

    stage: int
    outputs: list[tuple[float, int]]
    inputs: Sequence[Block]
    node: int | None = None
    tries: int = 0
    taken: int = 0
    lost: bool = False


@dataclass
class Node:
    """A node: what is free on it."""

    free: Counter[str]
    life: int = 0
    alive: bool = True


@dataclass
class SimRunner:
    """Runs tasks of a pipeline in virtual time; see `dask_exo.pipeline.streaming.blocks.Runner`.

    A task works on its next output only when the one before has been taken. It runs on the first
    node with resources, or waits for some, first come first served. One whose process dies starts
    anew and gives what is missing. What was on a node that has died is made again, from the source
    on, by the task that reads it.

    Parameters
    ----------
    stages : sequence of StageSpec
    resources : mapping or sequence of mapping
        Of one node, or of each.
    work : callable
        See `Work`.
    faults : sequence of Fault
    sinks : sequence of sequence of int, optional
        See `dask_exo.pipeline.streaming.blocks.links`.

    Attributes
    ----------
    time : float
        Virtual seconds.
    live, peak : int
        Bytes of all pieces that exist: given and neither used up nor `drop`ped.
    lost : int
        Tasks that had to start anew.
    """

    stages: Sequence[StageSpec]
    resources: Resources | Sequence[Resources]
    work: Work
    faults: Sequence[Fault] = ()
    sinks: Sequence[Sequence[int]] | None = None
    time: float = 0.0
    live: int = 0
    peak: int = 0
    lost: int = 0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0
    _waiting: list[Task] = field(default_factory=list)
    _running: dict[Task, None] = field(default_factory=dict)
    _ready: set[Task] = field(default_factory=set)

    def __post_init__(self) -> None:
        each = [self.resources] if isinstance(self.resources, Mapping) else self.resources
        self._whole = each
        self._nodes = [Node(Counter(one)) for one in each]
        self._total = self._sum()
        self._takers = [link.takers for link in links(self.stages, self.sinks)]
        for fault in self.faults:
            self._plan(fault.at, lambda fault=fault: self._die(fault))  # type: ignore[misc]

    def now(self) -> float:
        """Virtual seconds."""
        return self.time

    def total(self) -> Mapping[str, float]:
        """Resources of the nodes that are alive."""
        return self._total

    def needs(self, stage: int) -> Mapping[str, float]:
        """What a stage asks for: devices are not simulated."""
        return self.stages[stage].needs

    def start(self, stage: int, inputs: Sequence[Block]) -> Task:
        """Start a task."""
        task = Task(stage, self.work(stage, inputs), inputs)
        self._submit(task)
        return task

    def recompute(self, piece: Block) -> Task:
        """Start a task that makes a piece again, from the source on."""
        seconds = max(piece.seconds, (piece.value or Made()).born)
        task = Task(piece.stage, [(seconds, piece.nbytes)], ())
        self._submit(task)
        return task

    def wait(self, tasks: Sequence[Task], timeout: float | None) -> list[Task]:
        """Let time pass until one of ``tasks`` is ready."""
        wanted = set(tasks)
        end = float("inf") if timeout is None else self.time + timeout
        while wanted.isdisjoint(self._ready) and self._events and self._events[0][0] <= end:
            self._happen()
        while self._events and self._events[0][0] <= self.time:
            self._happen()
        ready = [task for task in tasks if task in self._ready]
        if timeout is not None and not ready:
            self.time = end
        return ready

    def stage(self, task: Task) -> int:
        """Its own one: lost inputs are made again by whoever reads them."""
        return task.stage

    def last(self, task: Task) -> bool:
        """Whether its output is the last one."""
        return task.taken >= len(task.outputs) - 1

    def take(self, task: Task) -> Block | None:
        """The next output, None at its end, or that it has started anew."""
        self._ready.discard(task)
        if task.lost:
            task.lost = False
            return AGAIN
        if task.taken == len(task.outputs):
            return None
        seconds, nbytes = task.outputs[task.taken]
        task.taken += 1
        more = task.taken < len(task.outputs)
        assert task.node is not None
        life = self._nodes[task.node].life
        made = Made(self._born(task), task.node, life, self._takers[task.stage])
        if more:
            self._work_on(task, task.outputs[task.taken][0])
        else:
            self._end(task)
        return Block(made, nbytes, 1, more=more, seconds=seconds)

    def idle(self, stage: int) -> int:
        """None: workers are not simulated."""
        return 0

    def at_target(self, stage: int) -> bool:
        """None, as there are no workers."""
        return False

    def resize(self, view: PipelineView) -> bool:
        """Nothing to change."""
        return False

    def idle_resources(self) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def dismiss_idle(self) -> None:
        """Nothing to let go of."""

    def activity(self, tasks: Sequence[Task]) -> Activity:
        """What tasks do at this virtual moment."""
        waiting = set(self._waiting)
        found = [
            TaskStatus("pending", self.stages[task.stage].needs)
            if task in waiting
            else TaskStatus("running" if task in self._running else "finished")
            for task in tasks
        ]
        alive = zip(self._nodes, self._whole, strict=True)
        nodes = {f"n{i}": whole for i, (node, whole) in enumerate(alive) if node.alive}
        return Activity(found, len(self._running.keys() - set(tasks)), nodes)

    def drop(self, *pieces: Block) -> None:
        """Pieces that nobody needs any more."""
        for piece in pieces:
            if piece.value is not None:
                piece.value.takers -= 1
            if piece.value is None or not piece.value.takers:
                self.live -= piece.nbytes

    def cancel(self, tasks: Sequence[Any]) -> None:
        """Stop tasks."""
        for task in tasks:
            self._forget(task)
            self.drop(*task.inputs)
        self._waiting.clear()

    def _plan(self, at: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, what))

    def _happen(self) -> None:
        self.time, _, what = heapq.heappop(self._events)
        what()

    def _sum(self) -> Mapping[str, float]:
        total = Counter[str]()
        for node, whole in zip(self._nodes, self._whole, strict=True):
            total.update(whole if node.alive else {})
        return total

    def _submit(self, task: Task) -> None:
        task.tries += 1
        self._waiting.append(task)
        self._place()

    def _place(self) -> None:
        """Let tasks begin for which there are resources."""
        for task in list(self._waiting):
            needs = self.stages[task.stage].needs
            for n, node in enumerate(self._nodes):
                if node.alive and fits(node.free, needs):
                    node.free.subtract(needs)
                    task.node = n
                    self._waiting.remove(task)
                    self._begin(task)
                    break

    def _begin(self, task: Task) -> None:
        self._running[task] = None
        again = max((self._missing(piece) for piece in task.inputs), default=0.0)
        done = sum(seconds for seconds, _ in task.outputs[: task.taken])
        first = task.outputs[task.taken][0] if task.outputs else 0.0
        self._work_on(task, again + done + first)

    def _missing(self, piece: Block) -> float:
        """Seconds to make a piece again that is on a node which has died."""
        made = piece.value or Made()
        return made.born if made.node >= 0 and self._nodes[made.node].life != made.life else 0.0

    def _born(self, task: Task) -> float:
        before = max(((piece.value or Made()).born for piece in task.inputs), default=0.0)
        return before + sum(seconds for seconds, _ in task.outputs[: task.taken])

    def _work_on(self, task: Task, seconds: float) -> None:
        tries = task.tries
        self._plan(self.time + seconds, lambda: self._made(task, tries))

    def _made(self, task: Task, tries: int) -> None:
        if task not in self._running or tries != task.tries:
            return  # its process has died meanwhile
        self._ready.add(task)
        task.lost = False
        if task.outputs:
            self.live += task.outputs[task.taken][1]
            self.peak = max(self.peak, self.live)

    def _end(self, task: Task) -> None:
        self._ready.add(task)  # that it has ended
        self._forget(task)
        self.drop(*task.inputs)
        self._place()

    def _forget(self, task: Task) -> None:
        if task in self._running:
            del self._running[task]
            assert task.node is not None
            self._nodes[task.node].free.update(self.stages[task.stage].needs)
            if task in self._ready and not task.lost and task.taken < len(task.outputs):
                self.live -= task.outputs[task.taken][1]

    def _die(self, fault: Fault) -> None:
        node = self._nodes[fault.node]
        tasks = [task for task in self._running if task.node == fault.node]
        if fault.away is not None and node.alive:
            node.alive, node.life = False, node.life + 1
            self._total = self._sum()
            self._plan(self.time + fault.away, lambda: self._return(node))
        else:
            tasks = tasks[:1]
        for task in tasks:
            self._forget(task)
            task.lost = task in self._ready
            self.lost += 1
        for task in tasks:
            self._submit(task)

    def _return(self, node: Node) -> None:
        node.alive = True
        self._total = self._sum()
        self._place()
