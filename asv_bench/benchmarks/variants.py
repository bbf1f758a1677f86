"""Shuffle algorithms against each other on a simulated cluster: partitions, and size of the store.

Four nodes with a disk and a network each sort 16 GB. No data exists: every task is submitted and
every ref is held and dropped as on Ray. What a task computes holds a slot; what is fetched, read
back and written passes the networks and disks of the nodes, see `dask_exo.testing.simulated.store`.
``python -m asv_bench.benchmarks.variants`` prints the table of ``docs/performance-shuffles.md``.

References: Exoshuffle figures 3.4a (out of core, more and more partitions) and 3.4c (in memory).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from asv_bench.benchmarks.common import BRIEF
from asv_bench.benchmarks.simulated import Simulated, reduce, run_map, run_reduce, shuffle
from dask_exo.cluster.futures import Node
from dask_exo.shuffle.algorithms import names
from dask_exo.shuffle.choose import Limits
from dask_exo.testing import Call, Channels, Cost
from dask_exo.testing.simulated.tasks import TaskRun

DATA = 16 * 10**9  # bytes
NODES, SLOTS = 4, 4
CPU = 400e6  # bytes/s of a slot
CHANNELS = Channels(disk=400e6, net=1e9, seek=0.0004)  # bytes/s of a node; measured on Ray
MADE, READ = 0.001, 0.0001  # seconds that an object takes, whatever its size

PARTITIONS = (64, 256, 1024)
STORES = {"in memory": 2.5, "tight": 0.9, "out of core": 0.3}  # store of all nodes over the data


class Outcome(NamedTuple):
    """What a shuffle took: the algorithm that ran, virtual seconds, refs, and bytes.

    ``busy`` is the share of the slots' time, until the last map has ended, in which tasks ran.
    """

    algorithm: str
    seconds: float
    objects: int
    written: int
    spilled: int
    restored: int
    moved: int
    busy: float


def run(
    algorithm: str, partitions: int, store: float, *, nodes: int = NODES, nbytes: int = DATA
) -> Outcome:
    """Sort some bytes in M = R partitions.

    Parameters
    ----------
    algorithm : str
        Or ``'auto'``.
    partitions : int
    store : float
        Of all nodes, as a multiple of the data.
    """
    part = nbytes // partitions

    def cost(call: Call) -> Cost:
        # a reducer reads its own blocks of what lies on its node
        taken = part if call.fn in (run_map, run_reduce) else sum(call.sizes)
        seconds = taken / CPU + MADE * call.count + READ * len(call.args)
        if call.fn is run_map:
            sizes = [part * len(mine) // partitions for mine in call.args[0]]
            return Cost(seconds, [*sizes, 100])
        made = 100 if call.fn is run_reduce else taken // max(call.count, 1)
        return Cost(seconds, made)

    machines = [Node(f"n{i}", SLOTS, int(store * nbytes / nodes)) for i in range(nodes)]
    seconds = part / CPU
    futures = Simulated(machines, cost, part=part, seconds=seconds, channels=CHANNELS, trace=True)
    shuffled = shuffle(futures, partitions, partitions, Limits(algorithm, bundle_target=1e-9))
    reduce(futures, shuffled.inputs)
    return Outcome(
        shuffled.choice.algorithm,
        futures.now,
        futures.objects,
        futures.totals.writes,
        futures.totals.spilled,
        futures.totals.restored,
        futures.totals.moved,
        _busy(futures.trace, nodes),
    )


def _busy(trace: Sequence[TaskRun], nodes: int) -> float:
    end = max(task.end for task in trace if task.name == run_map.__name__)
    ran = sum(max(0.0, min(task.end, end) - task.start) for task in trace)
    return ran / (nodes * SLOTS * end)


class Variants:
    """Virtual seconds of each algorithm."""

    params = (
        [*names(), "auto"],
        PARTITIONS[:1] if BRIEF else PARTITIONS,
        tuple(STORES)[::2] if BRIEF else tuple(STORES),
    )
    param_names = ("algorithm", "partitions", "store")
    unit = "virtual seconds"

    def track_seconds(self, algorithm: str, partitions: int, store: str) -> float:
        """From the first map to the last output."""
        return run(algorithm, partitions, STORES[store]).seconds


def main() -> None:
    """Print the table."""
    heads = "store", "M = R", "algorithm", "seconds", "objects"
    heads += "spilled objects", "spilled", "restored", "sent"
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for store, factor in STORES.items():
        for partitions in PARTITIONS:
            for name in [*names(), "auto"]:
                one = run(name, partitions, factor)
                label = f"auto: {one.algorithm}" if name == "auto" else name
                sizes = " | ".join(f"{size / 1e9:.1f} GB" for size in one[4:7])
                print(
                    f"| {store} | {partitions:,} | {label} | {one.seconds:.0f} | {one.objects:,} "
                    f"| {one.written:,} | {sizes} |"
                )


if __name__ == "__main__":
    main()
