"""Sorts on more and more nodes: on Ray nodes of one slot each, and simulated up to a hundred.

``python -m asv_bench.benchmarks.scale`` prints the tables of
``docs/development/measurements-clusters.md``. The simulated sorts have as much data for each node,
whatever their number. Efficiency is that beside two nodes, the fewest that send anything, and
beside the time that slots, network and disk of a node need for its part, one after the other: on
more nodes, a larger part of the data is sent.
"""

from __future__ import annotations

import statistics

import dask.dataframe as dd
import numpy as np
import pandas as pd

from asv_bench.benchmarks.variants import CHANNELS, CPU, SLOTS, run
from asv_bench.figures.cluster import Spent, nodes
from asv_bench.figures.shuffles import sort, summary
from dask_exo.testing import gensort

NODES = (2, 4, 10, 30, 100)
EACH = 4 * 10**9  # bytes for each node
PART = 64 * 10**6
STORES = {"in memory": 2.5, "out of core": 0.3}
REAL, SIZE, PARTS = (1, 2, 4), 800_000_000, 32


def simulated() -> None:
    """Print virtual seconds and efficiency."""
    print("| store | nodes | algorithm | seconds | beside two nodes | beside the need |")
    print("|---" * 6 + "|")
    for store, factor in STORES.items():
        base = None
        for count in NODES:
            nbytes = count * EACH
            one = run("auto", nbytes // PART, factor, nodes=count, nbytes=nbytes)
            base = base or one.seconds
            share, need = base / one.seconds, needed(count, factor) / one.seconds
            print(
                f"| {store} | {count} | {one.algorithm} | {one.seconds:.1f} "
                f"| {100 * share:.0f} % | {100 * need:.0f} % |",
                flush=True,
            )


def needed(count: int, store: float) -> float:
    """Return the seconds of a node's slots, network and disk, one after the other."""
    computed = 2 * EACH / (SLOTS * CPU)  # by a map and a reducer
    sent = EACH * (count - 1) / count / CHANNELS.net
    return computed + sent + 2 * EACH * max(0.0, 1 - store) / CHANNELS.disk


def real() -> None:
    """Print throughput on nodes of one slot that are processes of this machine."""
    print("| nodes of one slot | sort | shuffle |")
    print("|---" * 3 + "|")
    for count in REAL:
        with nodes(count, slots=1, store=4 * SIZE):
            meta = summary(gensort.records(0, 0, seed=0).set_index("key_hi"))
            ordered = sort(SIZE, PARTS).map_partitions(summary, meta=meta)
            rows = pd.DataFrame({"k": np.arange(SIZE // 16) % 1_000_003, "v": 1.0})
            frame = dd.from_pandas(rows, npartitions=PARTS).persist()
            shuffled = frame.shuffle("k", npartitions=PARTS).map_partitions(len)
            rates = []
            for job in (ordered, shuffled):
                seconds = []
                for _ in range(3):
                    with Spent() as spent:
                        job.compute()
                    seconds.append(spent.seconds)
                rates.append(SIZE / statistics.median(seconds) / 1e6)
            print(f"| {count} | {rates[0]:.0f} MB/s | {rates[1]:.0f} MB/s |", flush=True)


if __name__ == "__main__":
    real()
    simulated()
