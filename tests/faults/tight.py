"""A node with memory for one large task: ``python -m tests.faults.tight GIGABYTES``.

Prints a line of JSON: what became of six tasks of so many gigabytes each on four slots. With
``joined`` as another argument, the node belongs to a cluster whose own settings retry such tasks
endlessly; with ``shuffled``, the tasks are maps of a shuffle.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import ray
from ray.cluster_utils import Cluster

import dask_exo
from dask_exo.errors import OutOfMemoryError
from dask_exo.report import recording

TASKS, SLOTS = 6, 4
OF_RAY = 1.5e9  # bytes that Ray itself and four idle workers take
FREE = 2.5e9  # bytes for tasks


def hungry(i: int, gigabytes: float) -> pd.DataFrame:
    """A small result of much memory."""
    large = np.full(int(gigabytes * 125e6), float(i))
    time.sleep(2)
    return pd.DataFrame({"i": [i], "x": [large[-1]]})


@contextlib.contextmanager
def tight_ray(*, joined: bool) -> Iterator[None]:
    """Start a Ray that stops workers above a share of the machine's memory, and connect to it."""
    memory = psutil.virtual_memory()
    most = (memory.total - memory.available + OF_RAY + FREE) / memory.total
    limits = {
        "memory_usage_threshold": most,
        "memory_monitor_refresh_ms": 50,
        "task_oom_retry_delay_base_ms": 100,
    }
    node = {"num_cpus": SLOTS, "object_store_memory": 100_000_000}
    if joined:
        cluster = Cluster(initialize_head=True, head_node_args={**node, "_system_config": limits})
        os.environ["RAY_task_oom_retries"] = "0"  # noqa: SIM112  instead of 3, to be quick
        dask_exo.enable(address=cluster.address)
        yield
        dask_exo.disable()
        cluster.shutdown()
        return
    directory = tempfile.mkdtemp(prefix="exo-")
    ray.init(
        address="local",
        **node,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=directory,
        _system_config={**limits, "task_oom_retries": 0},
    )
    yield
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


def run(gigabytes: float, *, shuffled: bool) -> dict[str, Any]:
    """Compute; return what it was that came out."""
    meta = pd.DataFrame({"i": [0], "x": [0.0]})
    ddf = dd.from_map(hungry, range(TASKS), gigabytes=gigabytes, meta=meta)
    if shuffled:
        ddf = ddf.shuffle("i", npartitions=3)
    answer: dict[str, Any] = {"text": ""}
    with dask.config.set(scheduler=dask_exo.get), recording() as stats:
        try:
            answer["result"] = sorted(ddf.compute().x.tolist())
        except OutOfMemoryError as error:
            answer["text"] = str(error)
    answer["gave way"] = [event.slots for event in stats.gave_way]
    return answer


if __name__ == "__main__":
    with tight_ray(joined="joined" in sys.argv):
        print(json.dumps(run(float(sys.argv[1]), shuffled="shuffled" in sys.argv)))
