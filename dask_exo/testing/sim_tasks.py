"""What a simulated cluster is made of: tasks, machines, and which task goes where."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from dask_exo.futures import Node
from dask_exo.testing.inline import Produce, name
from dask_exo.testing.sim_store import PENDING, Entry, SimRef, Store

WAITING, READY, RUNNING, DONE = range(4)


class Task:
    """One submitted call, from its submission to its end.

    Attributes
    ----------
    args : tuple
        Arguments; refs are handles, so that their values stay until the task has ended.
    outs : list of (Entry or None), (count,)
        Values it is to make.
    missing : int
        Arguments that do not exist yet, while WAITING.
    waiters : dict
        Tasks that wait for a value of this one.
    number : int
        Place in the queue; the number of the event it waits for, while RUNNING.
    step : int
        Values it has made in this run.
    """

    __slots__ = (
        "args", "count", "fn", "given", "machine", "missing", "number", "outs", "pinned",
        "produce", "seconds", "sizes", "start", "state", "step", "values", "waiters", "wish",
    )  # fmt: skip

    def __init__(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        wish: Machine | None,
    ) -> None:
        self.produce = produce
        self.count = count
        self.fn = fn
        self.args = args
        self.wish = wish
        self.state = WAITING
        self.missing = self.number = self.step = 0
        self.start = self.seconds = 0.0
        self.sizes: Sequence[int] = ()
        self.outs: list[Entry | None] = []
        self.waiters: dict[Entry, list[Task]] = {}
        self.machine: Machine | None = None
        self.pinned: list[tuple[Store, Entry]] = []
        self.given: list[Any] = []
        self.values: Iterator[Any] | None = None


class Machine:
    """A simulated node: its store, its running tasks, and those that asked for it."""

    def __init__(self, node: Node, index: int, store: Store) -> None:
        self.node = node
        self.index = index
        self.store = store
        self.alive = True
        self.peak = 0  # of the stores it had before its deaths
        self.running: dict[Task, None] = {}
        self.queue: deque[Task] = deque()

    @property
    def free(self) -> int:
        """Slots in which nothing runs."""
        return self.node.slots - len(self.running)


def nearest(task: Task, idle: Collection[Machine]) -> Machine | None:
    """Choose the node that holds most bytes of the arguments, of ``idle`` ones.

    Among equals the least loaded one, and among those the first.
    """
    held: dict[Store, int] = {}
    if not idle:
        return None
    for arg in task.args:
        if type(arg) is SimRef:
            store = arg.entry.store
            held[store] = held.get(store, 0) + arg.entry.size
    return max(idle, key=lambda m: (held.get(m.store, 0), m.free / m.node.slots, -m.index))


def explain(entry: Entry, machines: Sequence[Machine]) -> str:
    """Say what a value waits for, down to a task that waits for a slot."""
    hops: list[str] = []
    task = entry.task
    while task is not None and len(hops) < 10:
        args = [arg.entry for arg in task.args if isinstance(arg, SimRef)]
        pending = [arg for arg in args if arg.state == PENDING]
        what = f"a slot on {task.wish.node.id if task.wish else 'any node'}"
        following = None
        if pending and (following := pending[0].task) is not None:
            what = f"{name(following.fn)} ({len(pending)} of {len(args)} arguments are missing)"
        hops.append(f"{name(task.fn)} waits for {what}")
        task = following
    nodes = ", ".join(
        f"{m.node.id} {'has' if m.alive else 'is dead, had'} {m.node.slots} slots" for m in machines
    )
    return f"{'; '.join(hops)}. Nodes: {nodes}"
