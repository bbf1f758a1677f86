"""Several Ray nodes as processes of this machine, each with a spill directory of its own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import ray
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

import dask_exo
from dask_exo.report import recording
from dask_exo.report.summary import Figures

LEAST = 80_000_000  # bytes of an object store that Ray allows
SOON = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}  # a node is dead


class Nodes:
    """A cluster of nodes that can be added and killed.

    Parameters
    ----------
    count, slots, gpus : int
        Nodes, and CPUs and GPUs (logical ones) of each.
    store : int
        Bytes of the object stores of all nodes.
    directory : Path
        Parent of their spill directories.
    """

    def __init__(self, count: int, slots: int, gpus: int, store: int, directory: Path) -> None:
        self.count, self.slots, self.gpus, self.store = count, slots, gpus, store
        self._directory, self._made = directory, 0
        self._cluster = Cluster()
        # Ray's default of 100 MB would be most of a small store
        batch = min(100 * 2**20, store // count // 16)
        self._add(wait=True, _system_config={**SOON, "min_spilling_size": batch})
        for _ in range(count - 1):
            self._add(wait=True)

    def _add(self, *, wait: bool, **options: Any) -> Any:
        self._made += 1
        spilled = self._directory / f"node{self._made}"
        spilled.mkdir()
        return self._cluster.add_node(
            wait=wait,
            num_cpus=self.slots,
            num_gpus=self.gpus,
            object_store_memory=max(self.store // self.count, LEAST),
            object_spilling_directory=str(spilled),
            **options,
        )

    @property
    def address(self) -> str:
        """Of the head."""
        return str(self._cluster.address)

    def ids(self) -> list[str]:
        """Return the ids of live nodes, that of the head first."""
        head = self._cluster.head_node.node_id
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        return sorted(alive, key=lambda one: one != head)

    def add(self) -> None:
        """Add a node."""
        self._add(wait=False)

    def drain(self, seconds: float) -> None:
        """Give notice that a node, but not the head, will end after some seconds."""
        lost, deadline = next(iter(self._cluster.worker_nodes)), int(1000 * (time.time() + seconds))
        why = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        GcsClient(self.address).drain_node(lost.node_id, why, "spot", deadline)

    def kill(self) -> None:
        """Kill the node that has been there longest, but not the head."""
        lost = next(iter(self._cluster.worker_nodes))
        self._cluster.remove_node(lost, allow_graceful=False)

    def replace(self) -> None:
        """Kill a node, but not the head, and add another one."""
        self.kill()
        self.add()

    def stop(self) -> None:
        """End all processes."""
        self._cluster.shutdown()


@contextlib.contextmanager
def nodes(
    count: int = 4, *, slots: int = 2, gpus: int = 0, store: int, **config: Any
) -> Iterator[Nodes]:
    """Start nodes, and let Dask compute on them; stop them in the end."""
    with tempfile.TemporaryDirectory(prefix="exo-figures-") as directory:
        started = Nodes(count, slots, gpus, store, Path(directory))
        try:
            dask_exo.enable(address=started.address, **config)
            waits = [dask.delayed(time.sleep)(1.0) for _ in range(2 * count * slots)]
            dask.compute(waits)  # processes start
            yield started
        finally:
            dask_exo.disable()
            ray.shutdown()
            started.stop()


class Spent:
    """Seconds of a block of code, and what it stored, spilled and sent between nodes.

    ``sent`` are all bytes of the loopback interface: those of objects, and a few of calls.
    """

    def __enter__(self) -> Spent:
        """Begin."""
        self._recording = recording()
        self._collector = self._recording.__enter__()
        self._before, self._begin = _sent(), time.perf_counter()
        return self

    def __exit__(self, *error: Any) -> None:
        """End."""
        self.seconds = time.perf_counter() - self._begin
        self.sent = _sent() - self._before
        self._recording.__exit__(*error)

    @property
    def figures(self) -> Figures:
        """Those of a report."""
        return self._collector.figures()

    @property
    def recovered(self) -> dict[str, int]:
        """Kinds of recovered work and their counts."""
        return dict(self.figures.recovered)


def _sent() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)
