"""Whether a program that computes a thousand times grows.

``python -m asv_bench.benchmarks.soak`` shuffles, merges, groups and runs a pipeline again and again
in one process, on a private Ray, and prints the driver's memory, Python objects, threads and open
files, and what is in the store. All columns should stay where they are after the first lines.
"""

from __future__ import annotations

import argparse
import gc
import threading
import time

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil

import dask_exo
from dask_exo.scheduler import Scheduler

ROWS, PARTS = 20_000, 8


def frame(seed: int) -> dd.DataFrame:
    """Some rows."""
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"k": rng.integers(0, 100, ROWS), "v": rng.random(ROWS)})
    return dd.from_pandas(rows, npartitions=PARTS)


def compute(i: int) -> None:
    """One of four computations, on data of its own."""
    ddf = frame(i)
    if i % 4 == 0:
        got = ddf.shuffle("k").compute()
    elif i % 4 == 1:
        means = ddf.groupby("k").v.mean().to_frame("m").reset_index()
        got = ddf.merge(means, on="k").compute()
    elif i % 4 == 2:
        got = ddf.exo.sort_values("v").persist().compute()
    else:
        got = pd.concat(ddf.exo.pipeline().map_partitions(doubled).iter_batches())
    assert len(got) == ROWS


def doubled(part: pd.DataFrame) -> pd.DataFrame:
    """A stage."""
    return part * 2


def stored() -> int:
    """Bytes in the store."""
    return Scheduler().cluster().store().used


def main(computes: int, every: int) -> None:
    """Print a line now and then."""
    me = psutil.Process()
    print("computes  seconds  driver MB  objects  threads  files  store B")
    start = time.perf_counter()
    for i in range(computes + 1):
        if i % every == 0:
            gc.collect()
            columns = (
                f"{i:8d} {time.perf_counter() - start:8.1f}",
                f"{me.memory_full_info().uss / 1e6:10.1f} {len(gc.get_objects()):8d}",
                f"{threading.active_count():8d} {me.num_fds():6d} {stored():8d}",
            )
            print(*columns, flush=True)
        compute(i)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("computes", type=int, nargs="?", default=1000)
    parser.add_argument("--every", type=int, default=100)
    asked = parser.parse_args()
    cluster = dask_exo.enable(num_cpus=2, object_store_memory="300MB")
    with cluster, dask.config.set({"exo.engine": "ray"}):
        main(asked.computes, asked.every)
