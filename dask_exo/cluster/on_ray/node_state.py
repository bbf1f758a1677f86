"""State of each node: the used share of its memory, and the disk of its spill directory.

While a node runs calls, and for a second after the last one, one of its workers puts the state into
Ray's key-value store each second. The driver reads the states of all nodes from there. So no
process has to be started to look at a node, and all drivers of a cluster see the same. A node that
has not run a call yet gets a task without a slot, which does it once.

A node that is about to end, as before a spot instance is taken, gets no tasks, but Ray leaves its
values there. A value that another node has a copy of survives: Ray makes that copy the main one.
All others are computed again when they are needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private.state import state
from ray.experimental import get_local_object_locations, internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dask_exo.cluster.futures import DiskUsage, Ref
from dask_exo.cluster.spilling import room, used_share
from dask_exo.events import wall_time

INTERVAL = 1.0  # seconds between two reports of a node, and between two looks of the driver
OLD = 5.0  # seconds after which the memory of a node is unknown: it may be idle, or lost
FIRST = 5.0  # seconds that the driver waits for the first reports
SPILL_BATCH = 100 * 2**20  # bytes that Ray spills at a time by default

NODE_VARIABLES = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "PYTHONHASHSEED": "0",  # the order of a set is the same in all workers, and in a second attempt
}
"""Variables of all workers. Large arrays reuse memory instead of fresh pages (3 → 12 GB/s
measured); the two thresholds bound that, so that memory of a large partition is still returned."""

_PLACE = "dask_exo-nodes"  # namespace in the key-value store that every Ray cluster has


@dataclass(frozen=True)
class NodeState:
    """State of a node at a time, in seconds since 1970 by its own clock.

    Sizes are in bytes. ``spill`` is empty if the spill directory is unknown. ``lacks`` are the
    variables, as ``NAME=value``, that the node should have been started with.
    """

    time: float
    memory: float  # used share
    spill: str = ""
    used: int = 0  # by spilled values
    room: int = 0  # that may be written before the disk counts as full
    lacks: tuple[str, ...] = ()


def look(spill: Path, node: str) -> DiskUsage:
    """Return the bytes that a node has in its spill directory, and the room of that disk.

    Ray writes one file per batch, and removes it with the last object in it. It uses only the first
    of several directories (2.60): combine disks into one file system, or run several nodes.
    """
    used = 0
    with (
        contextlib.suppress(FileNotFoundError),
        os.scandir(spill / f"ray_spilled_objects_{node}") as files,
    ):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                used += file.stat().st_size
    return DiskUsage(str(spill), used, room(spill))


def spill_batch(store: int) -> int:
    """Return the bytes that Ray should spill at a time: a quarter of a store, at least 100 MB.

    When the store is full, Ray spills whatever no task is reading, even blocks that wait for their
    merge. So with fewer batches, less is spilled twice (measured: 1.24 → 1.07 times the data).
    """
    return max(SPILL_BATCH, store // 4)


@lru_cache(1)
def spill_directory() -> str:
    """Return the directory to which the node of this worker spills; empty if it is unknown."""
    option = "--fallback_directory="
    words = [word for word in _raylet().cmdline() if word.startswith(option)]
    return words[0].removeprefix(option) if words else ""


@lru_cache(1)
def lacking() -> tuple[str, ...]:
    """Return the variables that the node of this worker should have been started with."""
    lacks = [f"{name}={value}" for name, value in NODE_VARIABLES.items() if name not in os.environ]
    (here,) = [node["Resources"] for node in ray.nodes() if node["NodeID"] == own_node()]
    wanted = spill_batch(int(here.get("object_store_memory", 0)))
    given = state.get_system_config().get("min_spilling_size")
    with contextlib.suppress(psutil.Error):  # the node belongs to another user
        given = given or _raylet().environ().get("RAY_min_spilling_size")
    if wanted > 1.5 * int(given or SPILL_BATCH):
        lacks.append(f"RAY_min_spilling_size={wanted}")
    return tuple(lacks)


def _raylet() -> psutil.Process:
    """Return the process that manages the node of this worker, which it has started."""
    here = psutil.Process()
    return next((p for p in here.parents() if p.name().startswith("raylet")), here)


@lru_cache(1)
def own_node() -> str:
    """Return the id of the node of this worker process."""
    return str(ray.get_runtime_context().get_node_id())


def report() -> None:
    """Put the state of this worker's node into the key-value store."""
    spill = spill_directory()
    disk = look(Path(spill), own_node()) if spill else DiskUsage("", 0, 0)
    found = NodeState(wall_time(), used_share(), spill, disk.used, disk.room, lacking())
    internal_kv._internal_kv_put(own_node(), json.dumps(asdict(found)), namespace=_PLACE)


class Reporter:
    """Reports the state of this worker's node, by a thread, while the worker runs calls.

    The last report is a second after the last call, whose result may still be spilled. One worker
    of a node reports: the others see when it did by a file in the directory of the session.
    """

    def __init__(self) -> None:
        self._reported = -inf  # when the node did so, as far as this worker has seen
        self._until = -inf  # no event: an interrupt that cancels a call may leave its lock taken
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Report as long as the block runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="dask_exo-node", daemon=True)
            self._thread.start()
        self._until = inf
        try:
            yield
        finally:
            self._until = wall_time() + INTERVAL

    def _work(self) -> None:
        node: Any = ray._private.worker._global_node
        turn = Path(node.get_session_dir_path()) / f"dask_exo-{own_node()}"
        while True:
            with contextlib.suppress(Exception):  # Ray ends, or does not answer: the next may work
                self.take_turn(turn)
            time.sleep(INTERVAL)

    def take_turn(self, turn: Path) -> None:
        """Report if the node has not just done so, as the time of a file says."""
        if self._reported < self._until:
            self._reported = turn.stat().st_mtime if turn.exists() else -inf
            if self._reported < min(self._until, wall_time() - 0.9 * INTERVAL):
                turn.touch()
                report()


class NodeStates:
    """States of the nodes of the connected cluster, as far as they have reported."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._states: dict[str, NodeState] = {}
        self._offset: dict[str, float] = {}  # node → clock here less the clock of its reports
        self._due = 0.0

    def ask(self, nodes: Collection[str]) -> None:
        """Let nodes that have never reported do so; wait for the first ones, a few seconds."""
        if ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
            return  # a task that computes: its node reports, and its program has asked the others
        first, new = not self._asked, set(nodes) - self.read(nodes).keys() - self._asked
        self._asked.update(nodes)
        refs = [
            _remote_report.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote()
            for node in sorted(new)
        ]
        if first and refs:
            ray.wait(refs, num_returns=len(refs), timeout=FIRST)
            self._due = 0.0

    def read(self, nodes: Collection[str]) -> Mapping[str, NodeState]:
        """Return the last state of each of some nodes; those that never reported are missing."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + INTERVAL
            with contextlib.suppress(Exception):  # it does not answer: what is known stays
                self._update(nodes, now)
        return {node: self._states[node] for node in nodes if node in self._states}

    def memory(self, nodes: Collection[str]) -> dict[str, float]:
        """Return the used share of memory of the nodes that have reported just now."""
        found, since = self.read(nodes).items(), time.monotonic() - OLD
        return {n: s.memory for n, s in found if s.time + self._offset.get(n, -inf) > since}

    def _update(self, nodes: Collection[str], now: float) -> None:
        client = internal_kv.internal_kv_get_gcs_client()
        keys = [node.encode() for node in nodes]
        for node, text in client.internal_kv_multi_get(keys, _PLACE.encode()).items():
            fields = json.loads(text)
            one = NodeState(**{**fields, "lacks": tuple(fields["lacks"])})
            name = node.decode()
            if self._states.get(name, one) != one:  # only a change says how old reports are
                self._offset[name] = min(self._offset.get(name, inf), now - one.time)
            self._states[name] = one


_remote_report = ray.remote(report)


def leaving() -> frozenset[str]:
    """Return the ids of the nodes that are about to end."""
    return frozenset(state.get_draining_nodes())


def copy_away(refs: Collection[Ref], ending: frozenset[str], others: Sequence[str]) -> list[Ref]:
    """Copy the values that only ``ending`` nodes have to ``others``; return their refs."""
    places = get_local_object_locations(list(refs))
    only_there = [ref for ref in refs if _ends(places.get(ref, {}), ending)]
    for ref, node in zip(only_there, cycle(others), strict=False):
        place = NodeAffinitySchedulingStrategy(node, soft=True)
        _remote_have.options(num_cpus=0, name="copy", scheduling_strategy=place).remote(ref)
    return only_there


def _ends(place: dict[str, Any], ending: frozenset[str]) -> bool:
    nodes = set(place.get("node_ids") or ())
    return bool(nodes) and nodes <= ending


def _have(_: Any) -> None:
    """Do nothing: the node has a copy of the argument now."""


_remote_have: Any = ray.remote(_have)
