"""A pipeline of sleeping operators under a limit of memory, by each policy and by Ray Data.

``python -m asv_bench.benchmarks.streaming`` prints the table of ``docs/performance.md``. As in the
thesis's section 2.5.3.1, five times faster and with less data: 160 loads of 1 s, each of which
gives five partitions of 2 MB, a transform of 0.1 s a partition on the same eight CPUs, and 0.1 s a
partition on one of four GPUs (logical ones). No schedule takes less than 30 s.

References: thesis figure 2.11; the streaming batch model, figure 9.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo

LOADS, PIECES, ROWS = 160, 5, 25_000
PART = 2_000_000  # bytes
BOUND = 30.0  # seconds
LIMITS = (3, 6, 10, 20, 40, 160)  # partitions


def rows() -> pd.DataFrame:
    """A partition of 2 MB."""
    return pd.DataFrame(np.zeros((ROWS, PART // ROWS // 8)))


def load(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """One second, in which partitions come evenly."""
    for _ in range(len(frame) * PIECES):
        time.sleep(1.0 / PIECES)
        yield rows()


def work(frame: pd.DataFrame) -> pd.DataFrame:
    """A tenth of a second."""
    time.sleep(0.1)
    return frame


def name(i: int) -> pd.DataFrame:
    """What is to be loaded."""
    return pd.DataFrame({"name": [i]})


def ours(policy: str) -> Callable[[int], tuple[float, float]]:
    """A pipeline by a policy: seconds to the first partition, and to the last one."""

    def run(partitions: int) -> tuple[float, float]:
        pipeline = (
            dd.from_map(name, range(LOADS))
            .exo.pipeline(memory=partitions * (PART + 1000), target=PART)
            .map_partitions(load)
            .map_partitions(work, concurrency=8)  # else it would run in the tasks of the loads
            .map_partitions(work, num_cpus=0, num_gpus=1)
        )
        with dask.config.set({"exo.stream.policy": policy}):
            return timed(pipeline.iter_batches())

    return run


def ray_data(partitions: int) -> tuple[float, float]:
    """The same by Ray Data."""
    import ray

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = PART
    context.enable_progress_bars = False
    limits = ray.data.ExecutionResources(object_store_memory=partitions * (PART + 1000))
    context.execution_options.resource_limits = limits
    frames = (
        ray.data.range(LOADS, override_num_blocks=LOADS)
        .map_batches(load, batch_size=1, batch_format="pandas")
        .map_batches(work, batch_size=None, batch_format="pandas", concurrency=8)
        .map_batches(work, batch_size=ROWS, batch_format="pandas", num_cpus=0, num_gpus=1)
    )
    return timed(frames.iter_batches(batch_size=None, batch_format="pandas"))


def timed(batches: Any) -> tuple[float, float]:
    """Seconds to the first batch, and to the last one."""
    start = time.perf_counter()
    first, got = 0.0, 0
    for batch in batches:
        first = first or time.perf_counter() - start
        got += len(batch)
    assert got == LOADS * PIECES * ROWS
    return first, time.perf_counter() - start


SYSTEMS: dict[str, Callable[[int], tuple[float, float]]] = {
    "dask_exo": ours("partition-admission"),
    "adaptive": ours("adaptive"),
    "conservative": ours("conservative"),
    "staged": ours("staged"),
    "Ray Data": ray_data,
}


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.streaming")
    usual = [name for name in SYSTEMS if name != "Ray Data"]  # it takes minutes
    parser.add_argument("--systems", type=lambda text: text.split(","), default=usual)
    parser.add_argument(
        "--limits", type=lambda text: [int(n) for n in text.split(",")], default=LIMITS
    )
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    found: dict[Any, list[tuple[float, float]]] = {}
    with dask_exo.enable(num_cpus=8, num_gpus=4, object_store_memory="4GB"):
        for _ in range(options.rounds):
            for limit in options.limits:
                for system in options.systems:
                    try:
                        took = SYSTEMS[system](limit)
                    except Exception as error:  # noqa: BLE001  in its place in the table
                        print(f"{system} at {limit}: {error!r}")
                        continue
                    found.setdefault((system, limit), []).append(took)
                    print(f"{system} at {limit}: first {took[0]:.1f} s, all {took[1]:.1f} s")
    print(f"| over {BOUND:.0f} s, by partitions | {' | '.join(map(str, options.limits))} |")
    print("|---|" + "---|" * len(options.limits))
    for system in options.systems:
        cells = []
        for limit in options.limits:
            runs = found.get((system, limit))
            last = statistics.median(run[1] for run in runs) / BOUND if runs else 0
            cells.append(f"{last:.2f}" if runs else "failed")
        print(f"| {system} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
