"""The simulated cluster: slots, queues and a virtual clock.

Everything happens in `SimCluster.step`, one event after another; events of one time happen
in the order in which they were planned, so the same submissions give the same trace. A
task costs a few microseconds of real time, a value about two.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import count as count_up
from typing import TYPE_CHECKING, Any

from dask_exo.cluster.futures import Node, name, yielded
from dask_exo.cluster.task_status import OutputDigest, collect_outputs
from dask_exo.testing.simulated.store import (
    FAILED,
    FREED,
    PENDING,
    IndexedSimValue,
    NodeIO,
    NodeStore,
    SimRef,
    SimValue,
    StoreTotals,
    arguments,
    handle,
)
from dask_exo.testing.simulated.tasks import (
    DONE,
    FETCHING,
    READY,
    RUNNING,
    WAITING,
    Channels,
    CostModel,
    Fault,
    NodeDeath,
    SimNode,
    SimTask,
    TaskRun,
    compute,
    nearest,
    next_queue,
    take,
)

if TYPE_CHECKING:
    from dask_exo.testing.simulated.generators import SimGenerators


class SimCluster:
    """Queues tasks, gives them slots, and finishes them at their time; see `SimFutures`.

    ``lineage`` keeps what recomputing a lost value needs.
    """

    execute: bool
    lineage: bool
    trace: list[TaskRun] | None
    channels: Channels | None
    all_io: dict[NodeStore, NodeIO]

    def __init__(  # noqa: PLR0913 - what `SimFutures` takes
        self,
        nodes: Sequence[Node],
        cost: CostModel,
        slowness: Callable[[str], float],
        *,
        execute: bool,
        lineage: bool,
        channels: Channels | None,
        trace: list[TaskRun] | None,
    ) -> None:
        self.cost, self.slowness = cost, slowness
        self.execute, self.lineage, self.trace = execute, lineage, trace
        self.now: float = 0.0
        self.ledger: StoreTotals = StoreTotals()
        self.driver: NodeStore = NodeStore(sys.maxsize, self.ledger, listed=False)
        self.channels, self.all_io = channels, dict[NodeStore, NodeIO]()
        self.machines: list[SimNode] = [
            SimNode(node, i, self.driver) for i, node in enumerate(nodes)
        ]
        for machine in self.machines:
            self.equip(machine)
        self.idle: dict[SimNode, None] = {
            machine: None for machine in self.machines if machine.free
        }
        self.anywhere: deque[SimTask] = deque()
        self.events: list[tuple[float, int, SimTask | Callable[[], None]]] = []
        self.repeats: list[OutputDigest] = []
        self.numbers: Iterator[int] = count_up(1)
        self.watched: set[SimValue] = set()  # a caller blocks until one of them is finished
        self.has_finished: bool = False
        self.generators: SimGenerators | None = None

    def equip(self, machine: SimNode) -> None:
        """Give a node an empty store, and channels."""
        self.all_io.pop(machine.store, None)
        machine.store = NodeStore(machine.node.store, self.ledger, listed=self.lineage)
        if self.channels is not None:
            machine.io = NodeIO(self.channels, machine.store, self.all_io)
            self.all_io[machine.store] = machine.io

    def entry(self, task: SimTask | None, index: int) -> SimValue:
        """Return the entry of a value that does not exist yet, with one handle to come."""
        if self.lineage:
            return IndexedSimValue(self.driver, task, index)
        return SimValue(self.driver, task)

    def step(self) -> None:
        """Let the next event happen."""
        time, number, event = heapq.heappop(self.events)
        if not isinstance(event, SimTask):
            self.now = time
            event()
        elif event.number == number and event.state in (RUNNING, FETCHING):  # else it was stopped
            self.now = time
            if event.state == RUNNING:
                self._due(event)
            elif (machine := event.machine) is not None and machine.io is not None:
                machine.io.arrived(event)
                self.fill(machine)

    def plan(self, time: float, event: SimTask | Callable[[], None]) -> int:
        """Schedule an event; return its number."""
        number = next(self.numbers)
        heapq.heappush(self.events, (time, number, event))
        return number

    def admit(self, task: SimTask) -> None:
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

    def fail(self, task: SimTask, error: Exception) -> None:
        """End a task that does not run, and all that wait for it, with an exception."""
        todo = [task]
        while todo:
            task = todo.pop()
            if task.state == DONE:
                continue
            task.state = DONE
            for entry in task.outputs:
                if entry is not None and entry.state == PENDING:
                    entry.state, entry.value, entry.task = FAILED, error, None
                    self.has_finished = self.has_finished or entry in self.watched
                    todo.extend(task.waiters.pop(entry, ()))
            task.forget(lineage=self.lineage)

    def cancel(self, tasks: Iterable[SimTask]) -> None:
        """Stop tasks, running or not, before others get their slots."""
        machines = []
        for task in tasks:
            if task.machine is not None:
                machines.append(task.machine)
                self.release(task, "cancelled")
            self.fail(task, CancelledError(f"{name(task.fn)} was cancelled"))
        for machine in machines:
            self.fill(machine)

    def release(self, task: SimTask, outcome: str) -> None:
        """Take a task from its slot."""
        machine = task.machine
        assert machine is not None
        was_running = task in machine.running
        machine.running.pop(task, None)
        if machine.alive and machine.free:
            self.idle[machine] = None
        if machine.io is not None:
            machine.io.leave(task)
        for store, entry in task.pinned:
            store.unpin(entry)
        task.pinned, task.inputs = [], []
        task.machine = task.values = None
        task.moved = task.restored = 0
        task.delay, task.is_waiting = 0.0, False
        if self.trace is not None and was_running:
            place = machine.node.id
            self.trace.append(TaskRun(task.start, self.now, place, name(task.fn), outcome))

    def fill(self, machine: SimNode) -> None:
        """Give free slots of a node to queued tasks, first come, first served."""
        io = machine.io
        while True:
            while io is not None and io.ready and machine in self.idle:
                self._start(io.ready.popleft(), machine)
            queue = next_queue(machine, self.anywhere)
            if queue is None:
                return
            task = queue.popleft()
            if io is None:
                self._start(task, machine)
            else:
                self._fetch(task, machine, io)

    def _queue(self, task: SimTask) -> None:
        task.state = READY
        task.number = next(self.numbers)
        target = task.target if task.target is not None and task.target.alive else None
        machine = nearest(task, [m for m in self.idle if m.spare > 0]) if target is None else target
        (self.anywhere if target is None else target.queue).append(task)
        if machine is not None:
            self.fill(machine)

    def _fetch(self, task: SimTask, machine: SimNode, io: NodeIO) -> None:
        task.state, task.machine = FETCHING, machine
        end = io.fetch(task, self.now)
        if end > self.now:
            task.number = self.plan(end, task)
        else:
            io.arrived(task)

    def _start(self, task: SimTask, machine: SimNode) -> None:
        if machine.io is None:
            self.ledger.moved += take(task, machine.store)
        else:
            del machine.io.ahead[task]
            if self.lineage and any(e.state == PENDING for e in arguments(task)):
                self.release(task, "lost")  # an argument, since it came
                self.admit(task)
                return
        task.state, task.machine, task.start, task.step = RUNNING, machine, self.now, 0
        machine.running[task] = None
        task.starts += 1
        if not machine.free:
            del self.idle[machine]
        task.price(self.cost, self.slowness)
        if self.execute:
            task.inputs = [a.entry.value if type(a) is SimRef else a for a in task.args]
        self._plan_step(task)

    def _waits_for_room(self, task: SimTask, indices: range, io: NodeIO) -> bool:
        """Reserve room for new outputs; return whether the task must wait for it."""
        end = self.now if task.is_waiting else io.make_room(task, indices, self.now)
        task.is_waiting = end > self.now
        if task.is_waiting:
            task.delay += end - self.now
            task.number = self.plan(end, task)
        else:
            io.release_room(task)
        return task.is_waiting

    def _plan_step(self, task: SimTask) -> None:
        """Schedule the next value of a generator, or the end of another task."""
        share = 1.0
        if task.produce is yielded and task.count:
            share = (task.step + 1) / task.count
        task.number = self.plan(task.start + task.delay + task.seconds * share, task)

    def _due(self, task: SimTask) -> None:
        """Store the outputs that are due, and end the task after the last one."""
        machine = task.machine
        assert machine is not None
        first = task.step
        last = min(first + 1, task.count) if task.produce is yielded else task.count
        if machine.io is not None and self._waits_for_room(task, range(first, last), machine.io):
            return
        try:
            values = self._values(task, range(first, last))
        except Exception as error:  # noqa: BLE001 - whoever asks for the value gets it
            self.release(task, "failed")
            self.fail(task, error)
            self.fill(machine)
            return
        task.step = last
        entries = self._store(task, range(first, last), values, machine.store)
        if last == task.count:
            self.release(task, "done")
            repeats = self.lineage and any(entry is not None for entry in task.outputs)
            if not repeats:
                task.forget(lineage=self.lineage)
            self.fill(machine)
            if repeats:  # recompute values of earlier steps that were lost meanwhile
                self.admit(task)
        else:
            self._plan_step(task)
        if task.waiters:
            for entry in entries:
                self._wake(task, entry)

    def _values(self, task: SimTask, indices: range) -> list[Any]:
        if not self.execute:
            return [None] * len(indices)
        if not self.lineage:
            return compute(task)
        call = str(task.serial)
        with collect_outputs(call) as outputs:
            values = compute(task)
        if task.starts > 1 and not indices.start:
            self.repeats.append(outputs[-1] if outputs else OutputDigest(call, name(task.fn)))
        return values

    def _store(
        self, task: SimTask, indices: range, values: list[Any], store: NodeStore
    ) -> list[SimValue]:
        outputs, sizes, lineage = task.outputs, task.sizes, self.lineage
        entries = []
        for i, value in zip(indices, values, strict=True):
            entry = outputs[i]
            if entry is None:
                continue
            if entry.refs:
                entry.size = sizes[i]
                entry.value = value
                store.add(entry)
            else:
                entry.state = FREED
            if lineage:
                outputs[i] = None  # comes back if it is lost
            else:
                entry.task = None
            if entry in self.watched:
                self.has_finished = True
            entries.append(entry)
        return entries

    def _wake(self, task: SimTask, entry: SimValue) -> None:
        for waiter in task.waiters.pop(entry, ()):
            if waiter.state == WAITING:
                waiter.missing -= 1
                if not waiter.missing:
                    # An argument that was there may have been lost since.
                    (self.admit if self.lineage else self._queue)(waiter)


def plan_faults(cluster: SimCluster, faults: Sequence[Fault]) -> None:
    """Schedule the deaths of processes and nodes, and the return of nodes."""
    machines = {machine.node.id: machine for machine in cluster.machines}
    for fault in faults:
        if fault.node is not None and fault.node not in machines:
            raise ValueError(f"{fault}: there are only {sorted(machines)}")
        if not isinstance(fault, NodeDeath):
            assert cluster.generators is not None
            node = None if fault.node is None else machines[fault.node]
            kill = partial(cluster.generators.kill_process, node, actors=fault.actors)
            cluster.plan(fault.at, kill)
            continue
        machine = machines[fault.node]
        cluster.plan(fault.at, partial(_die, cluster, machine))
        if fault.back is not None:
            cluster.plan(fault.back, partial(_come_back, cluster, machine))


def _die(cluster: SimCluster, machine: SimNode) -> None:
    """Remove a node; queue its tasks again, and those whose arguments are lost."""
    machine.alive = False
    cluster.idle.pop(machine, None)
    stopped = list(machine.running)
    if machine.io is not None:
        stopped += machine.io.ahead
    for task in stopped:
        cluster.release(task, "killed")
    queues = [cluster.anywhere, *(other.queue for other in cluster.machines)]
    queued = [task for queue in queues for task in queue if task.state == READY]
    for queue in queues:
        queue.clear()
    stopped += sorted(queued, key=lambda task: task.number)
    for task in stopped:
        task.state = WAITING
    lost = machine.store.drop_all()
    if cluster.generators is not None:
        cluster.generators.kill_node(machine, lost)
        lost = [entry for entry in lost if entry.task is not None]
    machine.peak = max(machine.peak, machine.store.peak)
    cluster.equip(machine)
    for task in stopped + _to_repeat(cluster, lost):
        cluster.admit(task)


def _come_back(cluster: SimCluster, machine: SimNode) -> None:
    machine.alive = True
    if machine.free:
        cluster.idle[machine] = None
    cluster.fill(machine)
    if cluster.generators is not None:
        cluster.generators.restore_node(machine)


def _to_repeat(cluster: SimCluster, lost: Sequence[SimValue]) -> list[SimTask]:
    """Return the ended tasks that recompute lost values, with their inputs' tasks, recursively."""
    repeat = []
    todo = list(reversed(lost))
    while todo:
        entry = todo.pop()
        task = entry.task
        assert task is not None
        entry.state, entry.store, entry.size, entry.value = PENDING, cluster.driver, 0, None
        task.outputs[entry.index] = entry  # type: ignore[attr-defined]  # IndexedSimValue, with lineage
        if task.state != DONE:
            continue
        task.state = WAITING
        repeat.append(task)
        freed = [arg for arg in task.args if isinstance(arg, SimValue) and arg.state == FREED]
        todo += reversed(dict.fromkeys(freed))
        task.args = tuple(handle(arg) if isinstance(arg, SimValue) else arg for arg in task.args)
    return repeat
