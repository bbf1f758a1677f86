"""Status of tasks as a cluster reports it, diagnosis of stalls, and digests of outputs.

A cluster recomputes a task when its process has died, or the node that stored its output. The
program does not submit the second attempt and does not wait for it, so digests of its output
travel beside the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from dask.utils import format_bytes

from dask_exo.cluster.resources import Resources, fits


@dataclass(frozen=True)
class TaskStatus:
    """Status of one task.

    A ``pending`` task waits for its arguments or for a slot. A ``spilled`` one has finished, and
    its output was written to disk. The cluster does not report on an ``unknown`` one.
    """

    state: Literal["running", "pending", "finished", "spilled", "unknown"]
    needs: Mapping[str, float] = field(default_factory=dict)  # requested resources, if known
    node: str | None = None  # on which it runs


@dataclass(frozen=True)
class Activity:
    """Status of some tasks, and of the cluster around them.

    ``nodes`` are the resources of each live node by its id, and ``free`` the unused ones as far as
    known.
    """

    tasks: Sequence[TaskStatus]
    others: int = 0  # running tasks, of any program
    nodes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    free: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputDigest:
    """Summary of the output of a call, with a digest that is equal for equal outputs.

    ``call`` is equal for all attempts, and unique among calls.
    """

    call: str
    name: str
    parts: int = 1
    digest: int | None = None


_running: ContextVar[tuple[str, list[OutputDigest]] | None] = ContextVar("running", default=None)


def report_output(name: str, parts: int = 1, digest: int | None = None) -> OutputDigest | None:
    """Report, in a task, what it has computed; return None where calls have no ids."""
    running = _running.get()
    if running is None:
        return None
    call, outputs = running
    output = OutputDigest(call, name, parts, digest)
    outputs.append(output)
    return output


@contextmanager
def collect_outputs(call: str) -> Iterator[list[OutputDigest]]:
    """Collect what a call reports about its output; for implementations of `Futures`."""
    outputs: list[OutputDigest] = []
    token = _running.set((call, outputs))
    try:
        yield outputs
    finally:
        _running.reset(token)


FULL = 0.95  # of a store: the rest is too small for most values
MOST_NAMES = 4  # of tasks in a message
_GONE = (
    "their files have been removed or cannot be read. Compute again; persist again the values that "
    "were stored there"
)


@dataclass(frozen=True)
class Snapshot:
    """State of a cluster on which nothing has happened for so many ``seconds``."""

    activity: Activity  # of the awaited tasks
    names: Sequence[str]  # of the awaited tasks
    gone: Collection[str]  # ids of nodes that have died or left
    used: int  # bytes in the object stores
    store: int  # capacity of the object stores
    full: str | None  # place of a full directory for spilled values
    seconds: float
    spilled: int = 0  # bytes since the beginning
    place: str | None = None  # of a directory for spilled values


def diagnose(snapshot: Snapshot) -> str | None:
    """Return the likely cause of a stall; None where progress is still possible.

    A running task is never a stall, however long it takes. A pending task is one, unless other
    tasks run in the slots that it waits for.

    Examples
    --------
    >>> waits = TaskStatus("pending", {"GPU": 1.0})
    >>> activity = Activity([waits], nodes={"a": {"CPU": 2.0}})
    >>> snapshot = Snapshot(activity, ["infer"], [], 0, 10**9, None, 600.0)
    >>> print(diagnose(snapshot))  # doctest: +NORMALIZE_WHITESPACE
    nothing has happened for 600 s. Waiting for 1 task: infer (waits for 1 GPU).
    Likely cause: no node has 1 GPU; a (2 CPU).
    Add a node that has it, or request less.
    Nodes: a (2 CPU). Object stores: 0 B of 0.93 GiB.
    To wait longer, set exo.fault.stall-timeout (0: forever)
    """
    tasks, others = snapshot.activity.tasks, snapshot.activity.others
    gone = snapshot.gone
    if any(task.state in {"running", "unknown"} and task.node not in gone for task in tasks):
        return None
    waiting = [task for task in tasks if task.state == "pending"]
    if others and any(_possible(task, snapshot.activity.nodes) for task in waiting):
        return None
    count = f"{len(snapshot.names)} task{'s' * (len(snapshot.names) != 1)}"
    states = ", ".join(
        f"{name} ({_state(task)})"
        for name, task in list(zip(snapshot.names, tasks, strict=True))[:MOST_NAMES]
    )
    more = ", …" if len(snapshot.names) > MOST_NAMES else ""
    return (
        f"nothing has happened for {snapshot.seconds:.0f} s. Waiting for {count}: {states}{more}. "
        f"Likely cause: {next(_causes(snapshot))}. Nodes: {_nodes(snapshot.activity.nodes)}. "
        f"Object stores: {format_bytes(snapshot.used)} of {format_bytes(snapshot.store)}. "
        f"To wait longer, set exo.fault.stall-timeout (0: forever)"
    )


def _causes(snapshot: Snapshot) -> Iterator[str]:
    """Iterate over the possible causes, the likeliest first."""
    pending = [task for task in snapshot.activity.tasks if task.state == "pending"]
    impossible = [task for task in pending if not _possible(task, snapshot.activity.nodes)]
    lost = f" (lost: {', '.join(sorted(snapshot.gone))})" if snapshot.gone else ""
    if impossible:
        yield (
            f"no node has {_amounts(impossible[0].needs)}{lost}; "
            f"{_nodes(snapshot.activity.nodes)}. Add a node that has it, or request less"
        )
    if any(task.state == "spilled" for task in snapshot.activity.tasks):
        yield f"these values were written to disk{_place(snapshot)}, and {_GONE}"
    if snapshot.full is not None:
        yield f"the disk of {snapshot.full} is full. Free space there, or set exo.spill-directory"
    if snapshot.used >= FULL * snapshot.store:
        yield ("the object store is full. Drop persisted values, or raise exo.object-store-memory")
    if snapshot.gone:
        yield (
            f"nodes have died{lost} with the values on them. Compute again, and persist again the "
            f"values that were on them"
        )
    if snapshot.spilled and any(_possible(task, snapshot.activity.free) for task in pending):
        yield (
            f"there are free slots, so inputs are missing. {format_bytes(snapshot.spilled)} "
            f"of values were written to disk{_place(snapshot)}; if inputs are among them, {_GONE}"
        )
    if pending:
        yield (
            "other programs, or idle actors, hold the resources that these tasks request. "
            "Stop those, or add nodes"
        )
    yield (
        "the cluster reports that they have ended, but does not return their values. "
        "Compute again; see Ray's logs"
    )


def _possible(task: TaskStatus, nodes: Mapping[str, Resources]) -> bool:
    """Return whether a node has the resources that a task requests."""
    return any(fits(node, task.needs) for node in nodes.values())


def _state(task: TaskStatus) -> str:
    if task.state == "pending":
        return f"waits for {_amounts(task.needs)}"
    texts = {"running": "on a node that has died", "spilled": "written to disk"}
    return texts.get(task.state, task.state)


def _place(snapshot: Snapshot) -> str:
    return "" if snapshot.place is None else f" (in {snapshot.place})"


def _nodes(nodes: Mapping[str, Resources]) -> str:
    texts = (
        f"{id_[:8]} ({_amounts({k: v for k, v in node.items() if _counted(k)})})"
        for id_, node in nodes.items()
    )
    return ", ".join(texts) or "none"


def _counted(name: str) -> bool:
    """Return whether tasks request a resource by number."""
    return name not in {"memory", "object_store_memory"} and not name.startswith("node:")


def _amounts(amounts: Resources) -> str:
    return ", ".join(f"{v:g} {k}" for k, v in amounts.items() if v) or "a slot"
