"""What it costs to know that no row is lost: a shuffle with ``exo.shuffle.integrity``, and without.

``python -m asv_bench.benchmarks.integrity`` runs both in turns and prints the ratios of the medians
of seconds, and of the processor time of the driver, Ray and all workers, which noise disturbs less.
"""

from __future__ import annotations

import argparse
import statistics
import time

import dask
import psutil

from asv_bench.benchmarks.common import ROWS, OnRay, frames

LARGE, PARTITIONS = 10_000_000, 100


class Integrity(OnRay):
    """Seconds of a shuffle with and without."""

    params = (True, False)
    param_names = ("integrity",)
    rows = ROWS

    def setup(self, integrity: bool) -> None:
        """Start Ray; make the input."""
        self.start()
        self.ddf = frames(self.rows, PARTITIONS)
        dask.compute(self.ddf.map_partitions(len))

    def time_shuffle(self, integrity: bool) -> None:
        """Seconds."""
        with dask.config.set({"exo.shuffle.integrity": integrity}):
            self.ddf.shuffle("id6").map_partitions(len).compute()


def processor() -> float:
    """Seconds that this process and all below it have used."""
    mine = psutil.Process()
    times = [one.cpu_times() for one in (mine, *mine.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main(rounds: int) -> None:
    """Print ratios."""
    bench = Integrity()
    bench.rows = LARGE
    bench.setup(integrity=True)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    used: dict[bool, list[float]] = {True: [], False: []}
    bench.time_shuffle(integrity=True)
    for i in range(rounds):
        for integrity in (True, False) if i % 2 else (False, True):
            start, before = time.perf_counter(), processor()
            bench.time_shuffle(integrity)
            seconds[integrity].append(time.perf_counter() - start)
            used[integrity].append(processor() - before)
    for name, took in {"seconds": seconds, "processor time": used}.items():
        with_, without = statistics.median(took[True]), statistics.median(took[False])
        pairs = [a / b for a, b in zip(took[True], took[False], strict=True)]
        print(
            f"{name}: {with_:.2f}, without {without:.2f}, {with_ / without - 1:+.1%} "
            f"(pairs {min(pairs):.2f} to {max(pairs):.2f}, median {statistics.median(pairs):.3f})"
        )
    bench.teardown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
