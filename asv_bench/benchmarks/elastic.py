"""A shuffle of three times the store on four nodes, while nodes join, get notice, and are killed.

``python -m asv_bench.benchmarks.elastic`` prints the table of
``docs/development/measurements-clusters.md``. Records of the sort benchmark are sorted, and each
output is checked where it is made. The nodes are processes of this machine, of one slot each.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asv_bench.figures.cluster import Nodes, nodes
from asv_bench.figures.shuffles import expected_sum, measured

COUNT, SLOTS = 4, 1
# what happens to the nodes, and at which shares of the time of the run without it
CHANGES: dict[str, list[tuple[float, str]]] = {
    "nothing": [],
    "one added, one drained and ended": [(0.2, "add"), (0.4, "drain"), (0.7, "kill")],
    "one killed among the maps": [(0.25, "kill")],
    "one killed between": [(0.5, "kill")],
    "one killed among the reducers": [(0.8, "kill")],
}


def act(cluster: Nodes, what: str) -> None:
    """Add, drain or kill a node; the thread that started the cluster has to do it."""
    if what == "drain":
        cluster.drain(60.0)
    elif what == "add":
        cluster.add()
    else:
        cluster.kill()


def run(nbytes: int, partitions: int, what: str, usual: float) -> dict[str, Any]:
    """Sort once on a cluster of its own, and check the output; return figures."""
    with nodes(COUNT, slots=SLOTS, store=nbytes // 3) as cluster, ThreadPoolExecutor(1) as pool:
        expected, begin = expected_sum(nbytes), time.perf_counter()
        running = pool.submit(measured, "auto", nbytes, partitions, expected)
        for share, kind in CHANGES[what]:
            time.sleep(max(0.0, begin + share * usual - time.perf_counter()))
            act(cluster, kind)
        return running.result()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=float, default=1.8e9)
    parser.add_argument("--partitions", type=int, default=60)
    args = parser.parse_args()
    print("| nodes | seconds | beside the first | spilled | recovered |")
    print("|---" * 5 + "|", flush=True)
    usual = 0.0
    for what in CHANGES:
        found = run(int(args.size), args.partitions, what, usual)
        usual = usual or found["seconds"]
        print(
            f"| {what} | {found['seconds']:.1f} | {found['seconds'] / usual:.2f} x "
            f"| {found['spilled']:.2f} x the data | {sum(found['recovered'].values())} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
