"""Frequent keys: how even the outputs of a join, a groupby and a sort are, and what they take.

``python -m asv_bench.benchmarks.skew`` prints the tables of ``docs/performance-shuffles.md``: keys
drawn evenly, by Zipf's law, and one key in nine of ten rows; the largest output relative to the
mean and seconds, beside those of Dask's own operations and of Ray Data's sort. Of ``nunique`` and
``median`` the largest partition is that of the rows that are aggregated, since outputs are groups.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from dask_exo import events
from dask_exo.dask_adapter import new_collection
from dask_exo.report import Collector

PARTS, RANKS = 20, 100_000
KEYS = {"even": 0.0, "Zipf 1.1": 1.1, "Zipf 1.3": 1.3, "Zipf 1.5": 1.5, "one key, 90 %": None}


def views(part: int, rows: int, exponent: float | None) -> pd.DataFrame:
    """Rows with keys from 0 to ``RANKS``, the first ones the most frequent."""
    rng = np.random.default_rng(part)
    if exponent is None:
        keys = np.where(rng.random(rows) < 0.9, 7, rng.integers(0, RANKS, rows))
    else:
        chance = np.cumsum(np.arange(1, RANKS + 1) ** -exponent)
        keys = np.searchsorted(chance, rng.random(rows) * chance[-1])
    return pd.DataFrame({"key": keys, "value": rng.random(rows)})


def pages(part: int) -> pd.DataFrame:
    """Each key once, over all parts."""
    keys = np.arange(part, RANKS, PARTS)
    return pd.DataFrame({"key": keys, "size": keys % 1000})


def lengths(frame: dd.DataFrame) -> np.ndarray:
    """Rows of each partition."""
    return frame.map_partitions(len, meta=(None, "i8")).compute().to_numpy()


def aggregated(result: dd.DataFrame, ddf: dd.DataFrame) -> np.ndarray:
    """Rows of each partition that the last shuffle of values brings together."""
    steps = {type(node).__name__: node for node in result.expr.walk()}
    if "GroupRanks" in steps:
        return lengths(new_collection(steps["GroupRanks"].frame))
    if "DropDuplicates" in steps:
        return lengths(new_collection(steps["DropDuplicates"]))
    # Dask's own brings the rows of a key together, for nunique without repeated values
    distinct = ddf.drop_duplicates(split_out=PARTS) if "NUnique" in steps else ddf
    return lengths(distinct.shuffle("key", npartitions=PARTS))


def read_bytes(joined: dd.DataFrame) -> float:
    """Largest over mean bytes that a task reads of the larger side of a join, if rows are summed.

    Nothing depends on the partitions of the join then, so that its large outputs may be divided.
    """
    collector = Collector(detailed=True)
    with events.observing(collector):
        joined["value"].sum().compute()
    return max(collector.figures().shuffles, key=lambda shuffle: shuffle.nbytes).skew


def ray_sort(rows: int, exponent: float | None) -> np.ndarray:
    """Rows of each block that Ray Data sorts."""
    import ray

    parts = [views(i, rows // PARTS, exponent) for i in range(PARTS)]
    done = ray.data.from_pandas(parts).sort("key").materialize()
    return np.array([
        meta.num_rows for bundle in done.iter_internal_ref_bundles() for meta in bundle.metadata
    ])  # fmt: skip


def measure(rows: int, rounds: int, only: str) -> None:
    """Run everything whose name contains ``only`` in turns, and print."""
    ours = dd.from_map(pages, range(PARTS)).persist()
    inputs = {
        name: dd.from_map(views, range(PARTS), rows=rows // PARTS, exponent=exponent).persist()
        for name, exponent in KEYS.items()
    }
    jobs: dict[str, Callable[[dd.DataFrame], dd.DataFrame]] = {
        "exo.merge": lambda ddf: ddf.exo.merge(ours, on="key"),
        "merge": lambda ddf: ddf.merge(ours, on="key", broadcast=False),
        "merge, summed": lambda ddf: ddf.merge(ours, on="key", broadcast=False),
        "exo.merge, left, frequent on the right": lambda ddf: ours.exo.merge(ddf, "left", "key"),
        "merge, left": lambda ddf: ours.merge(ddf, "left", "key", broadcast=False),
        "exo.merge, outer": lambda ddf: ours.exo.merge(ddf, "outer", "key"),
        "merge, outer": lambda ddf: ours.merge(ddf, "outer", "key", broadcast=False),
        "groupby": lambda ddf: ddf.groupby("key").agg({"value": "sum"}, split_out=PARTS),
        "exo.sort_values": lambda ddf: ddf.exo.sort_values("key"),
        "sort_values": lambda ddf: ddf.sort_values("key"),
    }
    groups: dict[str, Callable[[dd.DataFrame], dd.DataFrame]] = {
        "exo.groupby, nunique": lambda ddf: ddf.exo.groupby("key").agg({"value": "nunique"}),
        "groupby, nunique": lambda ddf: ddf.groupby("key").value.nunique(split_out=PARTS),
        "exo.groupby, median": lambda ddf: ddf.exo.groupby("key").agg({"value": "median"}),
        "groupby, median": lambda ddf: ddf.groupby("key").value.median(split_out=PARTS),
    }
    jobs = {name: run for name, run in {**jobs, **groups}.items() if only in name}
    seconds: dict[Any, list[float]] = {}
    uneven: dict[Any, float] = {}
    for turn in range(rounds + 1):
        for name, ddf in inputs.items():
            for job, run in jobs.items():
                start = time.perf_counter()
                result = run(ddf)
                if job.endswith("summed"):
                    uneven[job, name] = read_bytes(result)
                    sizes = None
                else:
                    sizes = lengths(result)
                if turn:
                    seconds.setdefault((job, name), []).append(time.perf_counter() - start)
                elif job in groups:
                    sizes = aggregated(result, ddf)
                if sizes is not None and (not turn or job not in groups):
                    uneven[job, name] = sizes.max() / sizes.mean()
    for name, exponent in KEYS.items() if not only else ():
        sizes = ray_sort(rows, exponent)
        uneven["Ray Data's sort", name] = sizes.max() / sizes.mean()
    took = {key: statistics.median(each) for key, each in seconds.items()}
    print(f"| largest over mean output (seconds) | {' | '.join(KEYS)} |")
    print("|---|" + "---|" * len(KEYS))
    for job in [*jobs, *([] if only else ["Ray Data's sort"])]:
        cells = [
            f"{uneven[job, name]:.2f}"
            + (f" ({took[job, name]:.2f})" if (job, name) in took else "")
            for name in KEYS
        ]
        print(f"| {job} | {' | '.join(cells)} |")


def main() -> None:
    """Parse, and measure on a Ray of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m asv_bench.benchmarks.skew", description=__doc__
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the names of what to run")
    options = parser.parse_args()
    with dask_exo.enable():
        measure(options.rows, options.rounds, options.only)


if __name__ == "__main__":
    main()
