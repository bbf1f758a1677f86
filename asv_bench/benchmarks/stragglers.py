"""One slow node among four: what a shuffle loses by it, with and without speculation.

Every task is submitted and run on the simulated cluster; what it takes follows from bytes, as in
`variants`, and is ten times as much on the slow node.
``python -m asv_bench.benchmarks.stragglers`` prints the table of ``docs/performance-shuffles.md``.

References: Exoshuffle section 3.3.2.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from asv_bench.benchmarks.common import BRIEF
from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import drive
from dask_exo.shuffle.algorithms import names
from dask_exo.shuffle.choose import Limits
from dask_exo.shuffle.map_stage import Refs
from dask_exo.shuffle.run_shuffle import run_shuffle
from dask_exo.shuffle.spec import Receipt, Spec, Tally
from dask_exo.shuffle.stragglers import SpeculationPolicy
from dask_exo.testing import Call, Cost, SimFutures

DATA = 16 * 10**9  # bytes
PARTITIONS = 512
NODES, SLOTS = 4, 4
SLOW = {"n3": 10.0}
CPU, DISK, NET = 400e6, 100e6, 250e6  # bytes/s of a slot: computing, its share of disk and network
MADE, READ = 0.001, 0.0001  # seconds that an object takes, whatever its size
STORES = {"in memory": 2.5, "out of core": 0.5}  # store of four nodes over the data
PATIENCE = SpeculationPolicy(floor=0.05)  # tasks of a tenth of a second: virtual time has no jitter


class Outcome(NamedTuple):
    """What a shuffle took: virtual seconds, and tasks."""

    seconds: float
    calls: int


def _map(owned: Sequence[range], *_: Any) -> list[Any]:
    return [*[None] * len(owned), Receipt(Tally(rows=1), DATA // PARTITIONS, 1.0)]


def _merge(slots: Sequence[range], *_: Any) -> Iterator[None]:
    for _each in slots:
        yield None


def _reduce(*_: Any) -> None: ...


def run(
    algorithm: str,
    store: str = "in memory",
    *,
    slow: dict[str, float] | None = None,
    speculation: bool = True,
    nodes: int = NODES,
) -> Outcome:
    """Sort ``DATA`` bytes in ``PARTITIONS`` partitions.

    Parameters
    ----------
    algorithm : str
    store : str
        One of ``STORES``.
    slow : dict, optional
        How many times longer tasks take, by node.
    speculation : bool
        Whether late tasks are copied or given up.
    nodes : int
        In all.
    """
    part = DATA // PARTITIONS

    def cost(call: Call) -> Cost:
        # a reducer reads its own blocks of what lies on its node
        taken = part if call.fn in (_map, _reduce) else sum(call.sizes)
        seconds = taken / CPU + call.restored / DISK + call.moved / NET
        seconds += MADE * call.count + READ * len(call.args)
        if call.fn is _map:
            sizes = [part * len(mine) // PARTITIONS for mine in call.args[0]]
            return Cost(seconds, [*sizes, 100])
        return Cost(seconds, 100 if call.fn is _reduce else taken // max(call.count, 1))

    size = int(STORES[store] * DATA / NODES)
    machines = [Node(f"n{i}", SLOTS, size) for i in range(nodes)]
    futures = SimFutures(machines, cost, stragglers=slow)
    spec = Spec(PARTITIONS, tuple(machines), _map, _merge)
    limits = Limits(algorithm, bundle_target=1e-9, speculation=PATIENCE if speculation else None)
    shuffled = drive(futures, run_shuffle(futures, Refs([None] * PARTITIONS), spec, limits))
    assert shuffled.tally.rows == PARTITIONS
    outputs = [futures.submit(_reduce, *c.refs, node=c.node) for c in shuffled.inputs]
    futures.get(outputs)
    return Outcome(futures.now, futures.calls)


class Stragglers:
    """Virtual seconds of each algorithm."""

    params = (
        names(),
        tuple(STORES)[:1] if BRIEF else tuple(STORES),
        ("none slow", "no speculation", "speculation"),
    )
    param_names = ("algorithm", "store", "how")
    unit = "virtual seconds"

    def track_seconds(self, algorithm: str, store: str, how: str) -> float:
        """From the first map to the last output."""
        slow = None if how == "none slow" else SLOW
        return run(algorithm, store, slow=slow, speculation=how != "no speculation").seconds


def main() -> None:
    """Print the table."""
    print("| store | algorithm | four nodes | three | one of four slow | with speculation |")
    print("|---|---|---|---|---|---|")
    for store in STORES:
        for name in names():
            whole = run(name, store).seconds
            three = run(name, store, nodes=NODES - 1).seconds
            plain = run(name, store, slow=SLOW, speculation=False).seconds
            helped = run(name, store, slow=SLOW).seconds
            cells = [f"{whole:.1f} s", f"{three:.1f} s"]
            cells += [f"{one:.1f} s ({one / whole:.2f} x)" for one in (plain, helped)]
            print(f"| {store} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
