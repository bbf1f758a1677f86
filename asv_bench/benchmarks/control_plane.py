"""The driver's side of a 100 TB sort by `push`, on a simulated cluster.

CloudSort's own parameters: M = 50,000 parts of 2 GB, R = 25,000, W = 40 nodes with 128 GiB of
memory (Exoshuffle section 4.2). No data exists, but every task is submitted and every ref is
made, held and dropped by the same code that runs on Ray. Run it by itself with
``python -m asv_bench.benchmarks.control_plane``.
"""

from __future__ import annotations

import resource
import time

from asv_bench.benchmarks.common import unit
from asv_bench.benchmarks.simulated import Simulated, reduce, run_map, run_merge, shuffle
from dask_exo.cluster.futures import Futures, Node
from dask_exo.shuffle.choose import Limits
from dask_exo.shuffle.run_shuffle import Shuffled
from dask_exo.testing import Call, Cost

PART = 2 * 10**9  # bytes
MAP, MERGE, REDUCE = 24.0, 8.5, 22.0  # seconds per 2 GB, 1 GB and 4 GB, as section 4.2 measured


def simulated(nodes: int, slots: int, store: int) -> Simulated:
    """A cluster of equal nodes with the durations of CloudSort's."""

    def cost(call: Call) -> Cost:
        if call.fn is run_map:
            return Cost(MAP, [*[PART // nodes] * nodes, 100])
        taken = sum(call.sizes)
        if call.fn is run_merge:
            return Cost(MERGE * taken / 1e9, taken // max(call.count, 1))
        return Cost(REDUCE * taken / 4e9, 100)

    machines = [Node(f"n{i}", slots, store) for i in range(nodes)]
    return Simulated(machines, cost, part=PART, seconds=MAP)


def sort(futures: Futures, parts: int, reducers: int) -> tuple[Shuffled, float, int]:
    """Shuffle and reduce; returns what was chosen, seconds and merged refs at the peak."""
    started = time.perf_counter()
    shuffled = shuffle(futures, parts, reducers, Limits())
    refs = sum(len(column.refs) for column in shuffled.inputs)
    reduce(futures, shuffled.inputs)
    return shuffled, time.perf_counter() - started, refs


class Cloudsort:
    """One hundredth of the 100 TB: 500 parts, 2,500 reducers, 40 nodes."""

    timeout = 600

    def setup(self) -> None:
        """Simulate the cluster."""
        self.futures = simulated(40, 12, 38 * 10**9)

    def time_driver(self) -> None:
        """Seconds of the driver's own work."""
        sort(self.futures, 500, 2500)

    @unit("refs")
    def track_objects(self) -> int:
        """Refs made."""
        sort(self.futures, 500, 2500)
        return self.futures.objects


def main() -> None:
    """Run all 100 TB of it."""
    futures = simulated(40, 12, 38 * 10**9)
    shuffled, seconds, refs = sort(futures, 50_000, 25_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{shuffled.choice.algorithm}, {shuffled.choice.per_round} parts a round: "
        f"{futures.calls:,} tasks, {futures.objects:,} refs, {refs:,} merged blocks held at the "
        f"end of the shuffle, {futures.totals.peak_live:,} refs alive at the peak\n"
        f"driver: {seconds:.0f} s and {peak / 1e9:.2f} GB; simulated: {futures.now:.0f} s, "
        f"{futures.totals.spilled / 1e12:.1f} TB spilled"
    )


if __name__ == "__main__":
    main()
