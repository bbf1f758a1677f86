"""Shuffle algorithms on Ray nodes: figure 4 of Exoshuffle, and slow nodes.

A job sorts records of the sort benchmark by ordinary Dask code, and checks each output where it is
made: order within it and between neighbours, number of rows, and a checksum of all.
"""

from __future__ import annotations

import itertools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import ray
from matplotlib.figure import Figure

from asv_bench.figures.bars import grouped_bars
from asv_bench.figures.cluster import Nodes, Spent, nodes
from dask_exo.cli.sort import input_checksum
from dask_exo.cli.validate import Checksum, checksum
from dask_exo.testing import gensort

ALGORITHMS = ("simple", "riffle", "magnet", "push")
STORES = {"in memory": 4.0, "out of core": 0.25}  # of all nodes over the data
SLEEP, SLOWER = 0.5, 10.0  # seconds of a map and of a reducer; on the slow node so many times it


def sort(nbytes: int, partitions: int) -> dd.DataFrame:
    """Return records sorted by their first eight bytes; the bounds are known."""
    frame = gensort.frame(nbytes, partition_bytes=-(-nbytes // partitions))
    bounds = [i * 2**64 // partitions for i in range(partitions)] + [2**64 - 1]
    return frame.set_index("key_hi", divisions=[np.uint64(bound) for bound in bounds])


def summary(part: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, checksum, and first and last key of an output; raise if it is not sorted."""
    assert part.index.is_monotonic_increasing, "not sorted"
    found = checksum([part.reset_index()])
    first, last = (int(part.index[i]) for i in (0, -1)) if len(part) else (-1, -1)
    row = [found.rows, str(found.total), str(first), str(last)]
    return pd.DataFrame([row], columns=["rows", "total", "first", "last"])


def check(outputs: pd.DataFrame, expected: Checksum) -> None:
    """Raise if the outputs are not the input, sorted."""
    found = sum(map(Checksum, outputs.rows, outputs.total.map(int)), Checksum())
    assert found == expected, f"{found} and not {expected}"
    ends = [(int(a), int(b)) for a, b in zip(outputs["first"], outputs["last"], strict=True)]
    full = [one for one in ends if one[0] >= 0]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(full)), "outputs overlap"


def run(
    cluster: Nodes, algorithm: str, nbytes: int, partitions: int, lose: float | None = None
) -> dict[str, Any]:
    """Sort, check, and return figures; kill a node after ``lose`` seconds."""
    expected = expected_sum(nbytes)
    time.sleep(2)  # Ray frees what the last run has dropped
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(measured, algorithm, nbytes, partitions, expected)
        if lose is not None:
            time.sleep(lose)
            cluster.replace()  # by the main thread, as Ray wants it
        return running.result()


def measured(algorithm: str, nbytes: int, partitions: int, expected: Checksum) -> dict[str, Any]:
    """Sort, check, and return figures."""
    meta = summary(gensort.records(0, 0, seed=0).set_index("key_hi"))
    outputs = sort(nbytes, partitions).map_partitions(summary, meta=meta)
    with Spent() as spent, dask.config.set({"exo.shuffle.algorithm": algorithm}):
        check(outputs.compute(), expected)
    (shuffle,) = spent.figures.shuffles
    return {
        "algorithm": algorithm,
        "chosen": shuffle.algorithm,
        "partitions": partitions,
        "seconds": spent.seconds,
        "spilled": spent.figures.spilled / nbytes,
        "restored": spent.figures.restored / nbytes,
        "sent": spent.sent / nbytes,
        "objects": spent.figures.objects,
        "recovered": spent.recovered,
    }


_sums: dict[int, Checksum] = {}


def expected_sum(nbytes: int) -> Checksum:
    """Return the checksum of so many bytes of records."""
    if nbytes not in _sums:
        _sums[nbytes] = input_checksum(gensort.frame(nbytes, partition_bytes=50_000_000))
    return _sums[nbytes]


def measure_variants(gigabytes: float, rounds: int, partitions: list[int]) -> list[dict[str, Any]]:
    """Each algorithm by turns, in memory and out of core; then each with the loss of a node."""
    nbytes, found = int(gigabytes * 1e9), []
    for store, factor in STORES.items():
        with nodes(store=int(factor * nbytes)) as cluster:
            run(cluster, "push", nbytes // 10, 16)  # first steps of all processes
            for _, many, name in itertools.product(
                range(rounds), partitions, (*ALGORITHMS, "auto")
            ):
                found.append({"store": store, "lost": False, **run(cluster, name, nbytes, many)})
                print(found[-1], flush=True)
            many = partitions[len(partitions) // 2]
            for name in ALGORITHMS:
                whole = [
                    one["seconds"]
                    for one in found
                    if (one["store"], one["algorithm"], one["partitions"]) == (store, name, many)
                ]
                got = run(cluster, name, nbytes, many, 0.4 * statistics.median(whole))
                found.append({"store": store, "lost": True, **got})
                print(found[-1], flush=True)
                _wait_for(cluster)
    return found


def _wait_for(cluster: Nodes) -> None:
    while len(cluster.ids()) < cluster.count:
        time.sleep(0.5)
    waits = [dask.delayed(time.sleep)(1.0) for _ in range(2 * cluster.count * cluster.slots)]
    dask.compute(waits)  # processes of the new node start


def draw_variants(found: list[dict[str, Any]]) -> Figure:
    """Bars of seconds, bytes spilled and bytes sent, as in the paper's figure 4."""
    figure = Figure(figsize=(15, 8), layout="constrained")
    axes = figure.subplots(2, 3)
    for row, store in zip(axes, STORES, strict=True):
        mine = [one for one in found if one["store"] == store]
        for axis, what in zip(row, ("seconds", "spilled", "sent"), strict=True):
            _bars(axis, mine, what)
            unit = "seconds" if what == "seconds" else "copies of the data"
            axis.set(title=f"{store}: {what}", xlabel="partitions (M = R)", ylabel=unit)
    axes[0][0].legend()
    figure.suptitle("Exoshuffle, figure 4, on four Ray nodes; pale: one node is killed")
    return figure


def _bars(axis: Any, found: list[dict[str, Any]], what: str) -> None:
    names = list(dict.fromkeys(one["algorithm"] for one in found))
    counts = list(dict.fromkeys(one["partitions"] for one in found))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        color = f"C{i}"
        for lost in (True, False):
            heights = {
                many: statistics.median(values)
                for many in counts
                if (values := [
                    one[what] for one in found
                    if (one["algorithm"], one["partitions"], one["lost"]) == (name, many, lost)
                ])
            }  # fmt: skip
            places = [counts.index(many) + i * width for many in heights]
            look: dict[str, Any] = {"alpha": 0.35} if lost else {"label": name}
            axis.bar(places, list(heights.values()), width, color=color, **look)
    axis.set_xticks([i + 0.4 for i in range(len(counts))], [str(many) for many in counts])


def measure_large(gigabytes: float, store: float, partitions: int) -> list[dict[str, Any]]:
    """More data than four nodes can store, by ``auto`` and by ``simple``."""
    with nodes(store=int(store * 1e9)) as cluster:
        found = []
        for name in ("auto", "simple"):
            found.append(run(cluster, name, int(gigabytes * 1e9), partitions))
            print(found[-1], flush=True)
    return found


def slowly(part: pd.DataFrame, slow: str) -> pd.DataFrame:
    """Take half a second, and ten times as long on one node."""
    here = ray.get_runtime_context().get_node_id()
    time.sleep(SLEEP * (SLOWER if here == slow else 1.0))
    return part


def measure_stragglers(rounds: int, partitions: int) -> list[dict[str, Any]]:
    """Each algorithm with no slow node, and with one, with and without speculation."""
    nbytes, found = 64_000_000, []
    expected = expected_sum(nbytes)
    with nodes(store=4 * 10**9) as cluster:
        slow = cluster.ids()[-1]
        meta = gensort.records(0, 0, seed=0)
        frame = gensort.frame(nbytes, partition_bytes=-(-nbytes // partitions))
        bounds = [i * 2**64 // partitions for i in range(partitions)] + [2**64 - 1]
        divisions = [np.uint64(bound) for bound in bounds]
        made = summary(meta.set_index("key_hi"))
        cases = {"none slow": ("", True), "without speculation": (slow, False),
                 "with speculation": (slow, True)}  # fmt: skip
        for _, name, (case, (node, on)) in itertools.product(
            range(rounds), ALGORITHMS, cases.items()
        ):
            rows = frame.map_partitions(slowly, node, meta=meta)
            outputs = rows.set_index("key_hi", divisions=divisions)
            outputs = outputs.map_partitions(slowly, node, meta=meta.set_index("key_hi"))
            settings = {"exo.shuffle.algorithm": name, "exo.shuffle.speculation": on}
            with Spent() as spent, dask.config.set(settings):
                check(outputs.map_partitions(summary, meta=made).compute(), expected)
            recovered = spent.recovered
            found.append({"algorithm": name, "case": case, "seconds": spent.seconds,
                          "recovered": recovered})  # fmt: skip
            print(found[-1], flush=True)
    return found


def draw_stragglers(found: list[dict[str, Any]]) -> Figure:
    """Bars of seconds."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    cases = list(dict.fromkeys(one["case"] for one in found))
    names = list(dict.fromkeys(one["algorithm"] for one in found))
    heights = {
        case: [
            statistics.median(
                one["seconds"] for one in found if (one["algorithm"], one["case"]) == (name, case)
            )
            for name in names
        ]
        for case in cases
    }
    grouped_bars(axis, heights, names)
    axis.set(ylabel="seconds", title="One of four Ray nodes is ten times slower")
    return figure
