"""Node deaths: the values lost with a node, and the tasks that recompute them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dask_exo.testing.simulated.cluster import SimCluster
from dask_exo.testing.simulated.model import NodeDeath
from dask_exo.testing.simulated.store import FREED, PENDING, SimValue, handle
from dask_exo.testing.simulated.tasks import DONE, READY, WAITING, SimNode, SimTask


def plan_faults(cluster: SimCluster, faults: Sequence[NodeDeath]) -> None:
    """Let nodes die, and come back, at their times.

    Raises
    ------
    ValueError
        No node has the id of a fault.
    """
    machines = {machine.node.id: machine for machine in cluster.machines}
    for fault in faults:
        if fault.node not in machines:
            raise ValueError(f"{fault}: there are only {sorted(machines)}")
        machine = machines[fault.node]
        cluster.plan(fault.at, partial(_die, cluster, machine))
        if fault.back is not None:
            cluster.plan(fault.back, partial(_come_back, cluster, machine))


def _die(cluster: SimCluster, machine: SimNode) -> None:
    """Take a node away; its tasks, and those whose arguments are lost, are queued again."""
    machine.alive = False
    cluster.idle.pop(machine, None)
    stopped = list(machine.running)
    if machine.lane is not None:
        stopped += machine.lane.ahead
    for task in stopped:
        cluster.release(task, "killed")
    queues = [cluster.anywhere, *(each.queue for each in cluster.machines)]
    queued = [task for queue in queues for task in queue if task.state == READY]
    for queue in queues:
        queue.clear()
    stopped += sorted(queued, key=lambda task: task.number)
    for task in stopped:
        task.state = WAITING
    lost = machine.store.lose()
    machine.peak = max(machine.peak, machine.store.peak)
    cluster.equip(machine)
    for task in stopped + _to_repeat(cluster, lost):
        cluster.admit(task)


def _come_back(cluster: SimCluster, machine: SimNode) -> None:
    machine.alive = True
    if machine.free:
        cluster.idle[machine] = None
    cluster.fill(machine)


def _to_repeat(cluster: SimCluster, lost: Sequence[SimValue]) -> list[SimTask]:
    """Find the ended tasks that make lost values, and what those take, and so on."""
    repeat = []
    todo = list(reversed(lost))
    while todo:
        entry = todo.pop()
        task = entry.task
        assert task is not None
        _unmake(cluster, entry, task)
        if task.state != DONE:
            continue
        task.state = WAITING
        repeat.append(task)
        freed = [arg for arg in task.args if isinstance(arg, SimValue) and arg.state == FREED]
        todo += reversed(dict.fromkeys(freed))
        task.args = tuple(handle(arg) if isinstance(arg, SimValue) else arg for arg in task.args)
    return repeat


def _unmake(cluster: SimCluster, entry: SimValue, task: SimTask) -> None:
    entry.state, entry.store, entry.size, entry.value = PENDING, cluster.driver, 0, None
    task.outs[entry.index] = entry  # type: ignore[attr-defined]  # IndexedSimValue, with lineage
