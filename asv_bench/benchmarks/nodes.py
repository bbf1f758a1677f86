"""A pipeline that loses its CPU node and gets another one: blocks in a second, and what is lost.

``python -m asv_bench.benchmarks.nodes`` prints the figures of
``docs/development/measurements-pipelines.md``. A node with two CPUs and two GPUs (logical ones)
stays; one with four CPUs dies after 10 s, and another comes at 20 s. Beside it a run that starts
again from its last checkpoint, as a stage-by-stage system with checkpoints does: all outputs since
then are computed again.

References: thesis figure 2.8.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import ray
from ray.cluster_utils import Cluster

import dask_exo

KILL, REJOIN = 10.0, 20.0  # seconds
CHECKPOINT = 5.0
SOON = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}  # a node is dead
READ, INFER = 0.3, 0.1  # seconds a piece


def read(i: int) -> pd.DataFrame:
    """A piece of 800 KB, and its number."""
    time.sleep(READ)
    return pd.DataFrame({"number": np.full(1000, i)} | {f"x{j}": np.zeros(1000) for j in range(99)})


def infer(frame: pd.DataFrame) -> pd.DataFrame:
    time.sleep(INFER)
    return frame


def pieces(numbers: list[int]) -> Iterator[int]:
    """Numbers of the pieces as they come out."""
    stages = dd.from_map(read, numbers).exo.pipeline(memory="50MB")
    for frame in stages.map_partitions(infer, num_cpus=0, num_gpus=1).iter_batches():
        yield int(frame.number.iloc[0])


class Nodes:
    """The cluster, in which one node comes and goes as the clock says."""

    def __init__(self) -> None:
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2,
                "num_gpus": 2,
                "object_store_memory": 500_000_000,
                "_system_config": SOON,
            },
        )
        self._node: Any = self._add()
        self._start = 0.0
        self._due = [(KILL, self._kill), (REJOIN, self._add)]  # by this thread, as Ray wants it

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=4, object_store_memory=500_000_000, wait=False)

    def _kill(self) -> None:
        self._cluster.remove_node(self._node, allow_graceful=False)

    def start(self) -> None:
        """From now on."""
        self._start = time.perf_counter()

    def look(self) -> float:
        """Do what is due; return the seconds since `start`."""
        passed = time.perf_counter() - self._start
        while self._due and self._due[0][0] <= passed:
            self._due.pop(0)[1]()
        return passed

    def stop(self) -> None:
        """Stop all."""
        dask_exo.disable()
        ray.shutdown()
        self._cluster.shutdown()

    @property
    def address(self) -> str:
        """Of the head."""
        return str(self._cluster.address)


@contextlib.contextmanager
def nodes() -> Iterator[Nodes]:
    """A cluster of two nodes."""
    made = Nodes()
    try:
        dask_exo.enable(address=made.address)
        list(pieces(list(range(8))))  # processes start
        made.start()
        yield made
    finally:
        made.stop()


def through(cluster: Nodes, count: int) -> list[tuple[float, int]]:
    """The pipeline as it is: when each piece came, and its number."""
    return [(cluster.look(), number) for number in pieces(list(range(count)))]


def checkpointed(cluster: Nodes, count: int) -> list[tuple[float, int]]:
    """The same, started again from the last checkpoint when a node is lost.

    Only what a checkpoint holds counts as come: every `CHECKPOINT` seconds.
    """
    safe: list[tuple[float, int]] = []
    since: list[int] = []
    saved, lost = 0.0, False
    while len(safe) + len(since) < count:
        done = {number for _, number in safe}
        for number in pieces([i for i in range(count) if i not in done]):
            since.append(number)
            passed = cluster.look()
            if passed >= KILL and not lost:
                lost = True  # all of it stops; what no checkpoint has is made again
                since.clear()
                break
            if passed - saved >= CHECKPOINT:
                safe += [(passed, one) for one in since]
                since.clear()
                saved = passed
        else:
            safe += [(cluster.look(), one) for one in since]
            since.clear()
    return safe


WAYS = {"pipeline": through, "checkpoint": checkpointed}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.nodes")
    parser.add_argument("--pieces", type=int, default=480)
    options = parser.parse_args()
    for name, way in WAYS.items():
        with nodes() as cluster:
            came = way(cluster, options.pieces)
        counted = Counter(number for _, number in came)
        lost = options.pieces - len(counted)
        twice = sum(count - 1 for count in counted.values())
        print(f"{name}: {came[-1][0]:.1f} s, {lost} lost, {twice} doubled; pieces in each 5 s:")
        slots = Counter(int(t // 5) for t, _ in came)
        print(" ".join(str(slots[i]) for i in range(max(slots) + 1)), flush=True)


if __name__ == "__main__":
    main()
