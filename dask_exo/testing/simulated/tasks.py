"""Description of a simulated cluster (costs, faults, trace), its tasks and nodes, and placement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from dask_exo.cluster.futures import Node, Produce, name, on_node, yielded
from dask_exo.cluster.task_status import TaskStatus
from dask_exo.errors import ExoError
from dask_exo.testing.simulated.store import PENDING, NodeIO, NodeStore, SimRef, SimValue, fetched


@dataclass(frozen=True, slots=True)
class Call:
    """A task at the moment it starts, as a cost model sees it."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    sizes: tuple[int, ...]  # bytes behind each argument; 0 for one that is not a ref
    count: int  # of outputs
    node: str
    moved: int  # bytes of arguments from other nodes
    restored: int  # bytes of arguments read back from disk


class Cost(NamedTuple):
    """Duration and output sizes of one task."""

    seconds: float  # virtual, in a slot on a node of normal speed
    sizes: int | Sequence[int]  # bytes of each output, or of every one


class Channels(NamedTuple):
    """Bytes per second of every node: its disk reads and writes, its network in each direction.

    Reading a value from the disk takes ``seek`` seconds more, whatever its size.
    """

    disk: float
    net: float
    seek: float = 0.0


CostModel = Callable[[Call], Cost]
"""A pure function: the same call costs the same."""

Stragglers = Mapping[str, float] | Callable[[Random], float]
"""Factors of the duration of tasks: by node id, or drawn for each task."""


@dataclass(frozen=True)
class NodeDeath:
    """A node dies at a virtual second, with its tasks and all it stores, on disk too.

    An empty node of that id joins at ``back``, if given.
    """

    at: float
    node: str
    back: float | None = None

    def __post_init__(self) -> None:
        if self.at < 0 or (self.back is not None and self.back <= self.at):
            raise ValueError(f"a node dies at 0 or later and is back after that, not {self}")


@dataclass(frozen=True)
class ProcessDeath:
    """The process that has run generator tasks for longest dies, on a node or of actors."""

    at: float
    node: str | None = None
    actors: bool = False


Fault = NodeDeath | ProcessDeath


@dataclass(frozen=True)
class TaskRun:
    """One stay of a task in a slot.

    ``outcome`` is ``done``, ``failed``, ``cancelled`` or ``killed`` (by the death of the node).
    """

    start: float
    end: float
    node: str
    name: str
    outcome: str


class DeadlockError(ExoError, RuntimeError):
    """A caller waits for a task that can never run."""


def slowness(stragglers: Stragglers | None, seed: int, ids: set[str]) -> Callable[[str], float]:
    """Return the function that says how many times longer a task takes on a node."""
    if stragglers is None:
        return lambda _: 1.0
    if not isinstance(stragglers, Mapping):
        random, draw = Random(seed), stragglers
        return lambda _: draw(random)
    if not stragglers.keys() <= ids:
        raise ValueError(f"stragglers {sorted(stragglers)} among nodes {sorted(ids)}")
    factors = dict(stragglers)
    return lambda node: factors.get(node, 1.0)


WAITING, READY, FETCHING, RUNNING, DONE = range(5)


@dataclass(slots=True, eq=False, repr=False)
class SimTask:
    """One submitted call, from its submission to its end."""

    produce: Produce
    count: int  # of outputs
    fn: Callable[..., Any]
    args: tuple[Any, ...]  # refs among them are handles, so that their values stay
    target: SimNode | None  # the requested node
    serial: int = 0  # among all calls
    state: int = WAITING
    missing: int = 0  # arguments that do not exist yet, while WAITING
    number: int = 0  # place in the queue; the awaited event, while FETCHING or RUNNING
    outputs: list[SimValue | None] = field(default_factory=list)  # missing ones
    waiters: dict[SimValue, list[SimTask]] = field(default_factory=dict)  # for an output
    # of the last run
    starts: int = 0  # its number
    machine: SimNode | None = None
    start: float = 0.0
    seconds: float = 0.0
    sizes: Sequence[int] = ()
    inputs: list[Any] = field(default_factory=list)
    values: Iterator[Any] | None = None
    step: int = 0  # outputs so far
    pinned: list[tuple[NodeStore, SimValue]] = field(default_factory=list)
    moved: int = 0  # bytes
    restored: int = 0
    reserved: int = 0  # bytes of store for its outputs
    is_waiting: bool = False  # for that room, while other values are spilled
    delay: float = 0.0  # seconds for which it has waited

    def price(self, cost: CostModel, slowness: Callable[[str], float]) -> None:
        """Set the duration and output sizes of a starting task by the cost model."""
        assert self.machine is not None
        node = self.machine.node.id
        sizes = tuple(arg.entry.size if type(arg) is SimRef else 0 for arg in self.args)
        call = Call(self.fn, self.args, sizes, self.count, node, self.moved, self.restored)
        seconds, nbytes = cost(call)
        self.sizes = [nbytes] * self.count if isinstance(nbytes, int) else nbytes
        if seconds < 0 or len(self.sizes) != self.count:
            raise ValueError(f"{seconds} seconds and {nbytes} bytes are no cost of {call}")
        self.seconds = seconds * slowness(node)

    def forget(self, *, lineage: bool) -> None:
        """Drop what a finished task held; with lineage, keep what recomputing it needs."""
        self.state = DONE
        if lineage:
            self.outputs = [None] * self.count
            self.args = tuple(
                arg.entry if type(arg) is SimRef and arg.entry.task is not None else arg
                for arg in self.args
            )
        else:
            self.outputs, self.args = [], ()


@dataclass(slots=True, eq=False, repr=False)
class SimNode:
    """A simulated node: its store, its running tasks, and those queued for it."""

    node: Node
    index: int
    store: NodeStore
    io: NodeIO | None = None
    alive: bool = True
    peak: int = 0  # of the stores it had before its deaths
    running: dict[SimTask, None] = field(default_factory=dict)
    queue: deque[SimTask] = field(default_factory=deque)

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return self.node.slots - len(self.running)

    @property
    def spare(self) -> int:
        """Free slots that no task whose arguments this node fetches will take; see `NodeIO`."""
        if self.io is None:
            return self.free
        return self.free - len(self.io.ready) - self.io.unplaced


def nearest(task: SimTask, idle: Collection[SimNode]) -> SimNode | None:
    """Return the idle node with most bytes of the arguments, else the least loaded."""
    local_bytes: dict[NodeStore, int] = {}
    if not idle:
        return None
    for arg in task.args:
        if type(arg) is SimRef:
            store = arg.entry.store
            local_bytes[store] = local_bytes.get(store, 0) + arg.entry.size
    return max(idle, key=lambda m: (local_bytes.get(m.store, 0), m.free / m.node.slots, -m.index))


def next_queue(machine: SimNode, anywhere: deque[SimTask]) -> deque[SimTask] | None:
    """Return the queue whose head is the next task for a node, if the node can take one."""
    io, queues = machine.io, [machine.queue, anywhere]
    if machine.spare <= 0:
        queues = [] if io is None else [machine.queue]
    for queue in queues:
        while queue and queue[0].state != READY:
            queue.popleft()  # cancelled
    heads = [queue for queue in queues if queue and (io is None or io.has_room(queue[0]))]
    return min(heads, key=lambda queue: queue[0].number, default=None)


def take(task: SimTask, store: NodeStore) -> int:
    """Fetch the arguments of a task in no time; return the bytes from other nodes."""
    for arg in task.args:
        if type(arg) is SimRef:
            entry = arg.entry
            entry.store.pin(entry)
            task.pinned.append((entry.store, entry))
            if entry.store is not store:
                task.moved += fetched(entry, store)
    task.restored = sum(store.restore(entry) for store, entry in task.pinned)
    return task.moved


def compute(task: SimTask) -> list[Any]:
    """Compute the next values of a running task."""
    assert task.machine is not None
    with on_node(task.machine.node.id):
        if task.values is None:
            task.values = task.produce(task.count, task.fn, task.inputs)
        if task.count and task.produce is yielded:
            return [next(task.values)]
        return list(task.values)


def status_of(task: SimTask | None) -> TaskStatus:
    """Return the status of a task; None is a finished one."""
    if task is None or task.state == DONE:
        return TaskStatus("finished")
    if task.state in {FETCHING, RUNNING} and task.machine is not None:
        return TaskStatus("running", {"CPU": 1.0}, task.machine.node.id)
    return TaskStatus("pending", {"CPU": 1.0})


def explain(entry: SimValue, machines: Sequence[SimNode]) -> str:
    """Say what a value waits for, down to a task that waits for a slot."""
    hops: list[str] = []
    task = entry.task
    while task is not None and len(hops) < 10:
        args = [arg.entry for arg in task.args if isinstance(arg, SimRef)]
        pending = [arg for arg in args if arg.state == PENDING]
        reason = f"a slot on {task.target.node.id if task.target else 'any node'}"
        next_task = None
        if pending and (next_task := pending[0].task) is not None:
            reason = f"{name(next_task.fn)} ({len(pending)} of {len(args)} arguments are missing)"
        hops.append(f"{name(task.fn)} waits for {reason}")
        task = next_task
    nodes = ", ".join(
        f"{m.node.id} {'has' if m.alive else 'is dead, had'} {m.node.slots} slots" for m in machines
    )
    return f"{'; '.join(hops)}. Nodes: {nodes}"
