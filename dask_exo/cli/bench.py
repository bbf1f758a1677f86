"""Quick benchmark of this machine: dask_exo and Dask's own schedulers, each in a process.

docs/performance.md has careful measurements, and more systems.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

import dask.base
import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd

ROW = 40  # bytes
PARTITION = 16_000_000  # bytes
SYSTEMS = ("dask_exo", "Dask threads", "LocalCluster p2p")
Checksums = list[int]
"""Numbers that differ for different results."""


@dataclass(frozen=True)
class BenchResult:
    """Seconds of both runs of each job on one system, and checksums of their results."""

    system: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    checksums: dict[str, Checksums] = field(default_factory=dict)
    error: str = ""


def purchases(number: int, rows: int, users: int) -> pd.DataFrame:
    """Return a partition of random rows, which depend on its number only."""
    rng = np.random.default_rng(number)
    return pd.DataFrame(
        {
            "user": rng.integers(0, users, rows),
            "at": rng.integers(0, 2**40, rows),
            "cents": rng.integers(1, 10_000, rows),
            "shop": pd.array(rng.choice(["north", "south"], rows), dtype="string[pyarrow]"),
        }
    )


def frame(nbytes: int) -> tuple[dd.DataFrame, dd.DataFrame]:
    """Return rows of ``nbytes`` bytes, and one row for each of their users, a tenth as many."""
    rows = max(nbytes // ROW, 1000)
    parts = max(nbytes // PARTITION, 4)
    users = rows // 10
    left = dd.from_map(partial(purchases, rows=rows // parts, users=users), range(parts))
    right = pd.DataFrame({"user": np.arange(users), "weight": np.arange(users) % 7})
    return left, dd.from_pandas(right, npartitions=max(parts // 4, 2))


def sort(left: dd.DataFrame, right: dd.DataFrame) -> Checksums:  # noqa: ARG001  all jobs have these arguments
    """Sort by a column; check the order, and sum another column."""

    def summarize(part: pd.DataFrame) -> pd.DataFrame:
        rises = int(part.index.is_monotonic_increasing)
        return pd.DataFrame({"rows": [len(part)], "cents": [part.cents.sum()], "rises": [rises]})

    summary = left.set_index("at").map_partitions(summarize).compute()
    return [int(summary.rows.sum()), int(summary.cents.sum()), int(summary.rises.min())]


def merge(left: dd.DataFrame, right: dd.DataFrame) -> Checksums:
    """Join rows with the table of users."""
    joined = left.merge(right, on="user")
    count, total = dask.base.compute(joined.shop.count(), (joined.cents * joined.weight).sum())
    return [int(count), int(total)]


def group(left: dd.DataFrame, right: dd.DataFrame) -> Checksums:  # noqa: ARG001
    """Sum the spending of each user: a tenth as many groups as rows."""
    totals = left.groupby("user", sort=False).cents.sum(split_out=left.npartitions)
    count, most = dask.base.compute(totals.count(), totals.max())
    return [int(count), int(most)]


JOBS: dict[str, Callable[[dd.DataFrame, dd.DataFrame], Checksums]] = {
    "set_index": sort,
    "merge": merge,
    "groupby": group,
}


@contextlib.contextmanager
def running(system: str, cores: int) -> Iterator[None]:
    """Run Dask on a system inside the block."""
    if system == "dask_exo":
        from dask_exo.enable import enable

        with enable(num_cpus=cores) as enabled:
            _ = enabled.cluster  # waits
            yield
    elif system == "Dask threads":
        with dask.config.set({"scheduler": "threads", "num_workers": cores}):
            yield
    else:
        from distributed import Client

        with Client(n_workers=cores, threads_per_worker=1, dashboard_address=None):
            yield


def run(system: str, nbytes: int, cores: int) -> BenchResult:
    """Run each job twice on a system, in this process."""
    left, right = frame(nbytes)
    result = BenchResult(system)
    with running(system, cores):
        for name, job in JOBS.items():
            for _ in range(2):
                begin = time.perf_counter()
                result.checksums[name] = job(left, right)
                result.seconds.setdefault(name, []).append(time.perf_counter() - begin)
    return result


def measure(system: str, nbytes: int, cores: int) -> BenchResult:
    """Call `run` in a new process."""
    command = [sys.executable, "-m", "dask_exo.cli.bench", system, str(nbytes), str(cores)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        return BenchResult(system, error=lines[-1])
    return BenchResult(**json.loads(process.stdout.splitlines()[-1]))


def table(results: list[BenchResult]) -> tuple[str, bool]:
    """Compare the systems with the first one; also return True if all ended with equal results.

    Examples
    --------
    >>> ours = BenchResult("dask_exo", {"merge": [3.0, 2.0]}, {"merge": [7]})
    >>> text, equal = table([ours, BenchResult("threads", {"merge": [3.5, 3.0]}, {"merge": [7]})])
    >>> print(text)
                             merge
    dask_exo        2.0 s (3.0)
    threads      3.0 s = 1.50 x
    Second run (first run), and how many times that of dask_exo; all results are equal.
    """
    completed = [result for result in results if not result.error]
    if not completed:
        return "\n".join(f"{result.system}: {result.error}" for result in results), False
    first, width = completed[0], max(len(result.system) for result in results) + 1
    lines = [" " * width + "".join(f"{job:>17}" for job in first.seconds)]
    for result in results:
        cells = [f"{_cell(result, first, job):>17}" for job in result.seconds]
        lines.append(f"{result.system:<{width}}{result.error or ''.join(cells)}")
    expected = first.checksums
    wrong = [
        job
        for job in expected
        if any(result.checksums[job] != expected[job] for result in completed)
    ]
    verdict = f"results DIFFER in {', '.join(wrong)}" if wrong else "all results are equal"
    lines.append(f"Second run (first run), and how many times that of {first.system}; {verdict}.")
    return "\n".join(lines), not wrong and len(completed) == len(results)


def _cell(result: BenchResult, first: BenchResult, job: str) -> str:
    cold, warm = result.seconds[job]
    if result is first:
        return f"{warm:.1f} s ({cold:.1f})"
    return f"{warm:.1f} s = {warm / first.seconds[job][1]:.2f} x"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(run(sys.argv[1], *map(int, sys.argv[2:])))) + "\n")
