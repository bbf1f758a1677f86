"""What a task costs that does nothing."""

from __future__ import annotations

from typing import Any

import dask_exo
from asv_bench.benchmarks.common import BRIEF, OnRay, unit
from dask_exo.report import recording


def nothing(*args: Any) -> int:
    """Do nothing."""
    return 0


def independent(count: int) -> tuple[dict, list]:
    """Tasks without inputs."""
    return {("n", i): (nothing, i) for i in range(count)}, [("n", i) for i in range(count)]


def chain(count: int) -> tuple[dict, list]:
    """Each task reads the one before."""
    graph: dict = {("c", 0): (nothing, 0)}
    graph.update({("c", i): (nothing, ("c", i - 1)) for i in range(1, count)})
    return graph, [("c", count - 1)]


def tree(count: int) -> tuple[dict, list]:
    """Half of the tasks are leaves; each other one reads two."""
    graph: dict = {}
    level = [(f"t{0}", i) for i in range(max(count // 2, 1))]
    graph.update({key: (nothing, key[1]) for key in level})
    depth = 0
    while len(level) > 1:
        depth += 1
        above = [(f"t{depth}", i) for i in range(-(-len(level) // 2))]
        graph.update({key: (nothing, level[2 * key[1] : 2 * key[1] + 2]) for key in above})
        level = above
    return graph, level


def wide(count: int) -> tuple[dict, list]:
    """All tasks but one have no inputs; that one reads them all."""
    graph, leaves = independent(count - 1)
    return {**graph, "all": (nothing, leaves)}, ["all"]


GRAPHS = {"independent": independent, "chain": chain, "tree": tree, "wide": wide}


class Overhead(OnRay):
    """Time, calls and refs of a graph of tasks that do nothing."""

    params = (["chain", "wide"], [1_000]) if BRIEF else (list(GRAPHS), [1_000, 10_000, 100_000])
    param_names = ("graph", "tasks")

    def setup(self, graph: str, tasks: int) -> None:
        """Start Ray; make the graph."""
        self.start()
        self.dsk, self.keys = GRAPHS[graph](tasks)

    def time_get(self, graph: str, tasks: int) -> None:
        """Seconds of all tasks."""
        dask_exo.get(self.dsk, self.keys)

    @unit("calls")
    def track_calls(self, graph: str, tasks: int) -> int:
        """Ray calls."""
        with recording() as stats:
            dask_exo.get(self.dsk, self.keys)
        return stats.calls


def main() -> None:
    """Microseconds for each of 5,000 tasks, on dask_exo, threads and a LocalCluster, in turns."""
    import statistics
    import time

    import dask
    from distributed import Client, LocalCluster

    count, rounds = 5_000, 5
    with (
        dask_exo.enable(num_cpus=2, object_store_memory="500MB"),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        ways = {"dask_exo": dask_exo.get, "threads": dask.threaded.get, "LocalCluster": client.get}
        for name, make in GRAPHS.items():
            spent: dict[str, list[float]] = {way: [] for way in ways}
            for turn in range(rounds + 1):
                for way, get in ways.items():
                    dsk, keys = make(count)
                    started = time.perf_counter()
                    get(dsk, keys)
                    if turn:
                        spent[way].append((time.perf_counter() - started) / count * 1e6)
            line = ", ".join(
                f"{way} {statistics.median(times):.0f} ({min(times):.0f} to {max(times):.0f})"
                for way, times in spent.items()
            )
            print(f"{name:12} µs a task: {line}")


if __name__ == "__main__":
    main()
