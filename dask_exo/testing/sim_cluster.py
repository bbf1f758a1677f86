"""The simulated cluster: slots, queues and a virtual clock.

Everything happens in `Cluster.step`, one event after another; events of one time happen
in the order in which they were planned, so the same submissions give the same trace. A
task costs a few microseconds of real time, a value about two.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from itertools import count as count_up
from typing import Any

from dask_exo.futures import Node, at
from dask_exo.testing.inline import name, yielded
from dask_exo.testing.sim_model import Call, CostModel, TaskRun
from dask_exo.testing.sim_store import (
    FAILED,
    FREED,
    PENDING,
    Entry,
    IndexedEntry,
    Ledger,
    SimRef,
    Store,
    fetched,
)
from dask_exo.testing.sim_tasks import DONE, READY, RUNNING, WAITING, Machine, Task, nearest


class Cluster:
    """Queue tasks, give them slots, end them at their time.

    Parameters
    ----------
    nodes, cost
        As `SimFutures` takes them.
    slowness : callable
        How many times longer a task takes that starts on the node of an id.
    execute : bool
        Whether functions are called.
    lineage : bool
        Keep what is needed to make a lost value again.
    trace : list of TaskRun or None
        Filled, if there.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        cost: CostModel,
        slowness: Callable[[str], float],
        *,
        execute: bool,
        lineage: bool,
        trace: list[TaskRun] | None,
    ) -> None:
        self.cost, self.slowness = cost, slowness
        self.execute, self.lineage, self.trace = execute, lineage, trace
        self.now = 0.0
        self.ledger = Ledger()
        self.driver = Store(sys.maxsize, self.ledger, listed=False)
        self.machines = [Machine(node, i, self.new_store(node)) for i, node in enumerate(nodes)]
        self.idle = {machine: None for machine in self.machines if machine.free}
        self.anywhere: deque[Task] = deque()
        self.events: list[tuple[float, int, Task | Callable[[], None]]] = []
        self.numbers = count_up(1)
        self.watched: set[Entry] = set()  # a caller blocks until one of them is finished
        self.seen = False

    def new_store(self, node: Node) -> Store:
        """Make an empty store for one life of a node."""
        return Store(node.store, self.ledger, listed=self.lineage)

    def entry(self, task: Task | None, index: int) -> Entry:
        """Make the entry of a value that does not exist yet, with one handle to come."""
        if self.lineage:
            return IndexedEntry(self.driver, task, index)
        return Entry(self.driver, task)

    def step(self) -> bool:
        """Let the next event happen; tell whether there was one."""
        if not self.events:
            return False
        time, number, what = heapq.heappop(self.events)
        if not isinstance(what, Task):
            self.now = time
            what()
        elif what.number == number and what.state == RUNNING:  # else it was stopped
            self.now = time
            self._due(what)
        return True

    def plan(self, time: float, what: Task | Callable[[], None]) -> int:
        """Let an event happen at a time; return its number."""
        number = next(self.numbers)
        heapq.heappush(self.events, (time, number, what))
        return number

    def admit(self, task: Task) -> None:
        """Queue a task, or let it wait for the arguments that do not exist yet."""
        task.state = WAITING
        missing = 0
        for arg in task.args:
            if type(arg) is SimRef:
                entry = arg.entry
                if entry.state == PENDING:
                    assert entry.task is not None
                    entry.task.waiters.setdefault(entry, []).append(task)
                    missing += 1
                elif entry.state == FAILED:
                    self.fail(task, entry.value)
                    return
        task.missing = missing
        if not missing:
            self._queue(task)

    def fail(self, task: Task, error: Exception) -> None:
        """End a task that does not run, and all that wait for it, with an exception."""
        todo = [task]
        while todo:
            task = todo.pop()
            if task.state == DONE:
                continue
            task.state = DONE
            for entry in task.outs:
                if entry is not None and entry.state == PENDING:
                    entry.state, entry.value, entry.task = FAILED, error, None
                    self.seen = self.seen or entry in self.watched
                    todo.extend(task.waiters.pop(entry, ()))
            self._forget(task)

    def cancel(self, tasks: Iterable[Task]) -> None:
        """Stop tasks, running or not, before others get their slots."""
        vacated = []
        for task in tasks:
            if task.machine is not None:
                vacated.append(task.machine)
                self.release(task, "cancelled")
            self.fail(task, CancelledError(f"{name(task.fn)} was cancelled"))
        for machine in vacated:
            self.fill(machine)

    def release(self, task: Task, outcome: str) -> None:
        """Take a task from its slot."""
        machine = task.machine
        assert machine is not None
        del machine.running[task]
        if machine.alive:
            self.idle[machine] = None
        for store, entry in task.pinned:
            store.unpin(entry)
        task.pinned, task.given = [], []
        task.machine = task.values = None
        if self.trace is not None:
            place = machine.node.id
            self.trace.append(TaskRun(task.start, self.now, place, name(task.fn), outcome))

    def fill(self, machine: Machine) -> None:
        """Give the free slots of a node to tasks in the queues, first come, first served."""
        while machine in self.idle:
            heads = []
            for queue in (machine.queue, self.anywhere):
                while queue and queue[0].state != READY:
                    queue.popleft()  # cancelled
                if queue:
                    heads.append(queue)
            if not heads:
                return
            self._start(min(heads, key=lambda queue: queue[0].number).popleft(), machine)

    def _queue(self, task: Task) -> None:
        task.state = READY
        task.number = next(self.numbers)
        wish = task.wish if task.wish is not None and task.wish.alive else None
        machine = nearest(task, self.idle) if wish is None else wish
        if machine in self.idle:
            self._start(task, machine)
        else:
            (self.anywhere if wish is None else wish.queue).append(task)

    def _start(self, task: Task, machine: Machine) -> None:
        task.state, task.machine, task.start, task.step = RUNNING, machine, self.now, 0
        machine.running[task] = None
        if not machine.free:
            del self.idle[machine]
        sizes = []
        moved = 0
        for arg in task.args:
            if type(arg) is not SimRef:
                sizes.append(0)
                continue
            entry = arg.entry
            sizes.append(entry.size)
            entry.store.pin(entry)
            task.pinned.append((entry.store, entry))
            if entry.store is not machine.store:
                moved += fetched(entry, machine.store)
        restored = sum(store.restore(entry) for store, entry in task.pinned)
        self.ledger.moved += moved
        call = Call(task.fn, task.args, tuple(sizes), task.count, machine.node.id, moved, restored)
        seconds, made = self.cost(call)
        task.sizes = [made] * task.count if isinstance(made, int) else made
        if seconds < 0 or len(task.sizes) != task.count:
            raise ValueError(f"{seconds} seconds and {made} bytes are no cost of {call}")
        task.seconds = seconds * self.slowness(machine.node.id)
        if self.execute:
            task.given = [a.entry.value if type(a) is SimRef else a for a in task.args]
        self._plan_step(task)

    def _plan_step(self, task: Task) -> None:
        """Plan the next value of a generator, the end of another task."""
        share = 1.0
        if task.produce is yielded and task.count:
            share = (task.step + 1) / task.count
        task.number = self.plan(task.start + task.seconds * share, task)

    def _due(self, task: Task) -> None:
        """Store what a running task has made by now, and end it if that is all."""
        machine = task.machine
        assert machine is not None
        first = task.step
        last = min(first + 1, task.count) if task.produce is yielded else task.count
        try:
            values = self._values(task, last - first)
        except Exception as error:  # noqa: BLE001 - whoever asks for the value gets it
            self.release(task, "failed")
            self.fail(task, error)
            self.fill(machine)
            return
        task.step = last
        made = self._store(task, range(first, last), values, machine.store)
        if last == task.count:
            self.release(task, "done")
            again = self.lineage and any(entry is not None for entry in task.outs)
            if not again:
                self._forget(task)
            self.fill(machine)
            if again:  # values of its earlier steps were lost meanwhile
                self.admit(task)
        else:
            self._plan_step(task)
        if task.waiters:
            for entry in made:
                self._wake(task, entry)

    def _values(self, task: Task, count: int) -> list[Any]:
        if not self.execute:
            return [None] * count
        assert task.machine is not None
        with at(task.machine.node.id):
            if task.values is None:
                task.values = task.produce(task.count, task.fn, task.given)
            if task.count and task.produce is yielded:
                return [next(task.values)]
            return list(task.values)

    def _store(self, task: Task, which: range, values: list[Any], store: Store) -> list[Entry]:
        outs, sizes, lineage = task.outs, task.sizes, self.lineage
        made = []
        for i, value in zip(which, values, strict=True):
            entry = outs[i]
            if entry is None:
                continue
            if entry.refs:
                entry.size = sizes[i]
                entry.value = value
                store.add(entry)
            else:
                entry.state = FREED
            if lineage:
                outs[i] = None  # comes back if it is lost
            else:
                entry.task = None
            if entry in self.watched:
                self.seen = True
            made.append(entry)
        return made

    def _forget(self, task: Task) -> None:
        """Drop what an ended task held; with lineage, all but what runs it again."""
        task.state = DONE
        if self.lineage:
            task.outs = [None] * task.count
            task.args = tuple(
                arg.entry if type(arg) is SimRef and arg.entry.task is not None else arg
                for arg in task.args
            )
        else:
            task.outs, task.args = [], ()

    def _wake(self, task: Task, entry: Entry) -> None:
        for waiter in task.waiters.pop(entry, ()):
            if waiter.state == WAITING:
                waiter.missing -= 1
                if not waiter.missing:
                    # An argument that was there may have been lost since.
                    (self.admit if self.lineage else self._queue)(waiter)
