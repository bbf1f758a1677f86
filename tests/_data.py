"""Nodes, frames, schedulers and the like that several test files share."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.cluster.local import local_futures
from dask_exo.testing import Call, Cost, InlineFutures, SimFutures

NODES = {
    1: (Node("a", 2, 10**9),),
    2: (Node("a", 2, 10**9), Node("b", 1, 10**9)),
    3: (Node("a", 2, 10**9), Node("b", 1, 10**9), Node("c", 4, 10**9)),
}
"""Nodes of `InlineFutures`, by their number."""
ONE_TASK_PER_CALL = {"exo.scheduler.bundle-target": 0}
"""Settings for simulated clusters: real seconds of tasks do not decide which share a call."""


SIMULATED = os.environ.get("DASK_EXO_TEST_DEVICE", "numpy") == "numpy"
MODULE = "numpy" if SIMULATED else "cupy"
"""Array module of GPU frames in tests, by pytest's option ``--device``."""


def inline(nodes: int) -> Scheduler:
    """Return a scheduler that runs all tasks in this process, on one to three nodes.

    With ``EXO_TEST_ENGINE=local`` in the environment it is the local engine, which is one node.
    """
    if os.environ.get("EXO_TEST_ENGINE") == "local":
        return Scheduler(local_futures(2, 10**9, None))
    return Scheduler(InlineFutures(NODES[nodes]))


def compute(collection: Any) -> Any:
    """Compute a collection in this process, on two nodes."""
    with dask.config.set(scheduler=inline(2)):
        return collection.compute()


def run_python(*args: Any, timeout: float = 200, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, with some more variables; return what it prints."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def table(rows: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Return columns of six dtypes; ``i`` and ``s`` have few values."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "i": rng.integers(0, 300, rows),
            "f": rng.random(rows),
            "n": pd.array(rng.choice([1, 2, None], rows), dtype="Int64"),
            "c": pd.Categorical(rng.choice(list("abc"), rows)),
            "z": pd.Timestamp("2026-01-01", tz="UTC")
            + pd.to_timedelta(rng.integers(0, 99, rows), "h"),
            "s": rng.choice(["x", "yy", "zzz"], rows),
        },
        index=pd.Index(range(rows), name="idx"),
    )


def frames(rows: int = 2000, npartitions: int = 9) -> dd.DataFrame:
    """Return a `table` in partitions."""
    return dd.from_pandas(table(rows), npartitions=npartitions)


class Killed(BaseException):
    """The program ends here: nothing catches it."""


class Unseen(list):
    """A list whose pickle, and so its fingerprint, leaves out what is in it."""

    def __reduce__(self):
        return Unseen, ()


class RecordsRequests(InlineFutures):
    """Records the resource request of each task."""

    def __init__(self, *nodes: Any):
        super().__init__(*nodes)
        self.requested: list[dict[str, Any]] = []

    def submit(self, fn, *args, node=None, options=None):
        self.requested.append(dict(options or {}))
        return super().submit(fn, *args, node=node)

    def split(self, count, fn, *args, node=None, options=None):
        self.requested.append(dict(options or {}))
        return super().split(count, fn, *args, node=node)


def cost(call: Call) -> Cost:
    """Return the cost of a simulated task: one second, and one for each kilobyte that it reads.

    Its results have 1 kB.
    """
    return Cost(1.0 + sum(call.sizes) / 1000, 1000)


def simulated(nodes: int = 3, slots: int = 2, store: int = 10**6, **options: Any) -> SimFutures:
    """Return a simulated cluster of nodes ``n0``, ``n1``, ..., whose tasks have a `cost`."""
    return SimFutures([Node(f"n{i}", slots, store) for i in range(nodes)], cost, **options)


def priced(call: Call) -> Cost:
    """Return the cost of a simulated task that its arguments tell: those of `make`."""
    return Cost(call.args[0], call.args[1])


def make(seconds, nbytes, *args):
    """Return the arguments; takes some seconds, and the result has some bytes."""
    return (seconds, nbytes, *args)
