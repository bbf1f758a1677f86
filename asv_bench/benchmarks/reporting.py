"""What it costs to see: a job with a report of it, and without.

``python -m asv_bench.benchmarks.reporting`` runs both in turns and prints the ratio of the medians,
for a shuffle of some partitions and for one of a thousand.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path

import dask
import dask.dataframe as dd

import dask_exo
from asv_bench.benchmarks.common import BRIEF, ROWS, OnRay, frames

LARGE, PARTITIONS = 5_000_000, (50, 1000)


def job(ddf: dd.DataFrame) -> None:
    """A shuffle, and a groupby of it."""
    ddf.shuffle("id6").groupby("id1").v1.sum().compute()


class Reporting(OnRay):
    """Seconds of the job with and without a report."""

    params = (PARTITIONS[:1] if BRIEF else PARTITIONS, ("none", "written"))
    param_names = ("partitions", "report")
    rows = ROWS

    def setup(self, partitions: int, report: str) -> None:
        """Start Ray; make the input."""
        self.start()
        self.ddf = frames(self.rows, partitions)
        dask.compute(self.ddf.map_partitions(len))

    def time_job(self, partitions: int, report: str) -> None:
        """Seconds."""
        with seen(report):
            job(self.ddf)


@contextlib.contextmanager
def seen(report: str):
    """Write a report of what is done, or none."""
    with tempfile.TemporaryDirectory() as directory:
        if report == "written":
            with dask_exo.performance_report(Path(directory) / "report.html"):
                yield
        else:
            yield


def main(rounds: int) -> None:
    """Print medians and their ratio."""
    for partitions in PARTITIONS:
        bench = Reporting()
        bench.rows = LARGE
        bench.setup(partitions, "none")
        took: dict[str, list[float]] = {"none": [], "written": []}
        writing = []
        for number in range(rounds):
            for report in sorted(took, reverse=number % 2 == 1):  # each is first in half of them
                seconds = took[report]
                start = time.perf_counter()
                with seen(report):
                    job(bench.ddf)
                    seconds.append(time.perf_counter() - start)
                writing.append(time.perf_counter() - start - seconds[-1])
        without, with_ = (statistics.median(seconds) for seconds in took.values())
        text = f"{without:.2f} s, with a report {with_:.2f} s, {with_ / without - 1:+.1%}"
        print(f"{partitions} partitions: {text}; to write it {max(writing):.1f} s")
        print("  each round:", *(f"{b / a:.3f}" for a, b in zip(*took.values(), strict=True)))
        bench.teardown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    main(parser.parse_args().rounds)
