"""A pipeline of sleeping operators under a limit of memory, by each policy and by Ray Data.

``python -m asv_bench.benchmarks.streaming`` prints the tables of ``docs/performance-pipelines.md``.
As in the thesis's section 2.5.3.1, five times faster and with less data: 160 loads of 1 s, each of
which gives five partitions of 2 MB, a transform of 0.1 s a partition on the same eight CPUs, and
0.1 s a partition on one of four GPUs (logical ones).

References: thesis figure 2.11; the streaming batch model, figure 9.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo

LOADS, PIECES, ROWS = 160, 5, 25_000
PART = 2_000_000  # bytes
CPUS, GPUS, WORK = 8, 4, 0.1
LIMITS = (1, 3, 6, 10, 20, 40, 160)  # partitions
IDEAL = 1 / PIECES + 2 * WORK  # seconds to the first partition


def bound(limit: int, loads: int) -> float:
    """Seconds that no schedule stays below.

    All CPUs are busy; and of each load five partitions stay for 0.2 s after another 0.2 s in which
    they were made.
    """
    return max(loads * (1 + PIECES * WORK) / CPUS, loads * PIECES * (1 / PIECES + 2 * WORK) / limit)


def rows() -> pd.DataFrame:
    """A partition of 2 MB."""
    return pd.DataFrame(np.zeros((ROWS, PART // ROWS // 8)))


def load(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """One second, in which partitions come evenly."""
    for _ in range(len(frame) * PIECES):
        time.sleep(1.0 / PIECES)
        yield rows()


def work(frame: pd.DataFrame) -> pd.DataFrame:
    """A tenth of a second for a partition."""
    time.sleep(WORK * len(frame) / ROWS)
    return frame


def fused(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """All in one task, which needs a CPU and a GPU."""
    for part in load(frame):
        yield work(work(part))


class Work:
    """`work` as Ray Data wants it on GPUs: a task of its own would be a process of its own."""

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        return work(frame)


def name(i: int) -> pd.DataFrame:
    """What is to be loaded."""
    return pd.DataFrame({"name": [i]})


class Took(NamedTuple):
    """Seconds to the first partition, and to the last one."""

    first: float
    all: float


def ours(policy: str) -> Callable[[int, int], Took]:
    """A pipeline by a policy."""

    def run(partitions: int, loads: int) -> Took:
        source = dd.from_map(name, range(loads)).exo
        pipeline = source.pipeline(memory=partitions * (PART + 1000), target=PART)
        if policy == "fused":
            pipeline = pipeline.map_partitions(fused, num_gpus=1)
        else:
            pipeline = (
                pipeline.map_partitions(load)
                .map_partitions(work, concurrency=CPUS)  # else in the tasks of the loads
                .map_partitions(work, num_cpus=0, num_gpus=1)
            )
        which = "partition-admission" if policy == "fused" else policy
        with dask.config.set({"exo.stream.policy": which}):
            return timed(pipeline.iter_batches(), loads)

    return run


def ray_data(partitions: int, loads: int) -> Took:
    """The same by Ray Data: its own limit of memory and size of blocks, actors for the GPUs."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = PART
    context.enable_progress_bars = False
    context.execution_options.resource_limits = ray.data.ExecutionResources(
        cpu=CPUS, gpu=GPUS, object_store_memory=partitions * (PART + 1000)
    )
    frames = (
        ray.data.range(loads, override_num_blocks=loads)
        .map_batches(load, batch_size=1, batch_format="pandas")
        .map_batches(work, batch_size=None, batch_format="pandas", concurrency=CPUS)
        .map_batches(
            Work, batch_size=ROWS, batch_format="pandas", num_cpus=0, num_gpus=1, concurrency=GPUS
        )
    )
    return timed(frames.iter_batches(batch_size=None, batch_format="pandas"), loads)


def timed(batches: Any, loads: int) -> Took:
    """Run, and look at the clock."""
    start = time.perf_counter()
    first, got = 0.0, 0
    for batch in batches:
        first = first or time.perf_counter() - start
        got += len(batch)
    assert got == loads * PIECES * ROWS
    return Took(first, time.perf_counter() - start)


SYSTEMS: dict[str, Callable[[int, int], Took]] = {
    "partition-admission": ours("partition-admission"),
    "adaptive": ours("adaptive"),
    "conservative": ours("conservative"),
    "staged": ours("staged"),
    "fused": ours("fused"),
    "Ray Data": ray_data,
}


def measure(
    systems: Sequence[str], limits: Sequence[int], loads: int, rounds: int
) -> Iterator[tuple[str, int, Took]]:
    """Run each system with each limit, by turns; yield both and what it took."""
    with dask_exo.enable(num_cpus=CPUS, num_gpus=GPUS, object_store_memory="4GB"):
        SYSTEMS["partition-admission"](2 * CPUS, 2 * CPUS)  # processes of CPUs start only once
        for _, limit, system in product(range(rounds), limits, systems):
            took = SYSTEMS[system](limit, loads)
            text = f"first {took.first:.1f} s, all {took.all:.1f} s"
            print(f"{system} at {limit}: {text}, bound {bound(limit, loads):.1f} s", flush=True)
            yield system, limit, took


def report(found: dict[tuple[str, int], list[Took]], loads: int) -> None:
    """Print tables: all seconds as multiples of the bound, and those after the first partition."""
    systems, limits = (list(dict.fromkeys(keys)) for keys in zip(*found, strict=True))
    head = f"{' | '.join(str(limit) for limit in limits)} |"
    after = {"all": 0.0, "after the start": 1.0}
    for what, share in after.items():
        print(f"| {what}, over the bound, by partitions | {head}")
        print("|---|" + "---|" * len(limits))
        for system in systems:
            cells = []
            for limit in limits:
                runs = found.get((system, limit), ())
                took = [run.all - share * max(0.0, run.first - IDEAL) for run in runs]
                ratio = statistics.median(took) / bound(limit, loads) if took else None
                cells.append(f"{ratio:.2f}" if ratio else "")
            print(f"| {system} | {' | '.join(cells)} |")


def main() -> None:
    """Parse, measure, print."""

    def numbers(text: str) -> list[int]:
        return [int(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.streaming")
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--limits", type=numbers, default=LIMITS, help="partitions")
    parser.add_argument("--loads", type=int, default=LOADS)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    found: dict[tuple[str, int], list[Took]] = {}
    runs = measure(options.systems, options.limits, options.loads, options.rounds)
    for system, limit, took in runs:
        found.setdefault((system, limit), []).append(took)
    report(found, options.loads)


if __name__ == "__main__":
    main()
