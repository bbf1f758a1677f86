"""A 100 by 100 shuffle of a small frame: what a shuffle costs beside its data.

``python -m asv_bench.benchmarks.hundred`` runs dask_exo, distributed's p2p on a LocalCluster and
stock ``ray.util.dask`` (tasks), in turns, and prints medians and ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from asv_bench.benchmarks.common import unit
from dask_exo.report import recording

ROWS, PARTS, ROUNDS = 100_000, 100, 5


def frame() -> dd.DataFrame:
    """A hundred partitions of a thousand rows, in this process."""
    rng = np.random.default_rng(1)
    pdf = pd.DataFrame({"k": rng.integers(0, 10**6, ROWS), "v": rng.random(ROWS)})
    return dd.from_pandas(pdf, npartitions=PARTS)


def shuffle(ddf: dd.DataFrame) -> dd.Series:
    """Shuffle, and count the rows of each output."""
    return ddf.shuffle("k", npartitions=PARTS).map_partitions(len)


class Hundred:
    """Counts and time of one 100 by 100 shuffle."""

    timeout = 120

    def setup(self) -> None:
        """Start Ray, and its workers."""
        self.enabled = dask_exo.enable(num_cpus=2, object_store_memory="1GB")
        self.ddf = frame()
        shuffle(self.ddf).compute()

    def teardown(self) -> None:
        """Stop Ray."""
        dask_exo.disable()

    def time_shuffle(self) -> None:
        """Seconds, from expression to result."""
        shuffle(self.ddf).compute()

    @unit("calls")
    def track_calls(self) -> int:
        """Ray calls."""
        with recording() as stats:
            shuffle(self.ddf).compute()
        return stats.calls

    @unit("refs")
    def track_objects(self) -> int:
        """Refs made."""
        with recording() as stats:
            shuffle(self.ddf).compute()
        return stats.objects


@contextlib.contextmanager
def peers() -> Iterator[dict[str, Callable[[dd.DataFrame], int]]]:
    """Ways to run the same shuffle, on two cores each."""
    from distributed import Client, LocalCluster
    from ray.util.dask import ray_dask_get

    def run(ddf: dd.DataFrame, method: str, **how: object) -> int:
        with dask.config.set({"dataframe.shuffle.method": method}):
            return int(shuffle(ddf).compute(**how).sum())

    with (
        dask_exo.enable(num_cpus=2, object_store_memory="1GB"),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):

        def p2p(ddf: dd.DataFrame) -> int:
            with client.as_current():
                return run(ddf, "p2p", scheduler=client)

        yield {
            "dask_exo": lambda ddf: run(ddf, "tasks", scheduler=dask_exo.get),
            "LocalCluster p2p": p2p,
            "ray.util.dask tasks": lambda ddf: run(ddf, "tasks", scheduler=ray_dask_get),
            "threads tasks": lambda ddf: run(ddf, "tasks", scheduler="threads"),
        }


def main() -> None:
    """Compare."""
    ddf = frame()
    seconds: dict[str, list[float]] = {}
    with peers() as ways:
        for turn in range(ROUNDS + 1):
            for name, way in ways.items():
                started = time.perf_counter()
                assert way(ddf) == ROWS, name
                if turn:
                    seconds.setdefault(name, []).append(time.perf_counter() - started)
        with recording() as stats:
            ways["dask_exo"](ddf)
    ours = statistics.median(seconds["dask_exo"])
    for name, times in seconds.items():
        median = statistics.median(times)
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"{name:20} {median:6.2f} s  ({spread})  {median / ours:5.1f} x")
    print(f"dask_exo: {stats.calls} Ray calls, {stats.objects} refs")


if __name__ == "__main__":
    main()
