"""Quick benchmark of this machine: dask_exo beside Dask's own schedulers, a process for each.

docs/performance.md has careful measurements, and more systems.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import dask.base
import dask.config
import dask.dataframe as dd
import numpy as np
import pandas as pd

ROW = 40  # bytes
PART = 16_000_000  # bytes of a partition
SYSTEMS = ("dask_exo", "Dask threads", "LocalCluster p2p")
Checksums = list[int]
"""Numbers that differ for different results."""


@dataclass(frozen=True)
class BenchResult:
    """Times and checksums of one system.

    Attributes
    ----------
    system : str
    seconds : dict
        Job → seconds of the first and the second run.
    seen : dict
        Job → checksums of its result.
    error : str
        Reason of a failure; empty without one.
    """

    system: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    seen: dict[str, Checksums] = field(default_factory=dict)
    error: str = ""


def purchases(number: int, rows: int, users: int) -> pd.DataFrame:
    """Make one partition; the same number gives the same rows."""
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
    """Make rows of ``nbytes`` bytes, and one row for each of their users, a tenth as many."""
    rows = max(nbytes // ROW, 1000)
    parts = max(nbytes // PART, 4)
    users = rows // 10
    left = dd.from_map(partial(purchases, rows=rows // parts, users=users), range(parts))
    right = pd.DataFrame({"user": np.arange(users), "weight": np.arange(users) % 7})
    return left, dd.from_pandas(right, npartitions=max(parts // 4, 2))


def sort(left: dd.DataFrame, right: dd.DataFrame) -> Checksums:  # noqa: ARG001  jobs are called alike
    """Sort by a column; check the order, and sum another column."""

    def look(part: pd.DataFrame) -> pd.DataFrame:
        rises = int(part.index.is_monotonic_increasing)
        return pd.DataFrame({"rows": [len(part)], "cents": [part.cents.sum()], "rises": [rises]})

    found = left.set_index("at").map_partitions(look).compute()
    return [int(found.rows.sum()), int(found.cents.sum()), int(found.rises.min())]


def merge(left: dd.DataFrame, right: dd.DataFrame) -> Checksums:
    """Join rows with the table of users."""
    joined = left.merge(right, on="user")
    count, total = dask.base.compute(joined.shop.count(), (joined.cents * joined.weight).sum())
    return [int(count), int(total)]


def group(left: dd.DataFrame, right: dd.DataFrame) -> Checksums:  # noqa: ARG001
    """Sum the spending of each user: a tenth as many groups as rows."""
    spent = left.groupby("user", sort=False).cents.sum(split_out=left.npartitions)
    count, most = dask.base.compute(spent.count(), spent.max())
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

        with enable(num_cpus=cores):
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
    seconds: dict[str, list[float]] = {}
    seen: dict[str, Checksums] = {}
    with running(system, cores):
        for name, job in JOBS.items():
            for _ in range(2):
                begin = time.perf_counter()
                seen[name] = job(left, right)
                seconds.setdefault(name, []).append(time.perf_counter() - begin)
    return BenchResult(system, seconds, seen)


def measure(system: str, nbytes: int, cores: int) -> BenchResult:
    """Call `run` in a new process."""
    command = [sys.executable, "-m", "dask_exo.cli.bench", system, str(nbytes), str(cores)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        return BenchResult(system, error=lines[-1])
    found = json.loads(done.stdout.splitlines()[-1])
    return BenchResult(system, found["seconds"], found["seen"])


def table(sides: list[BenchResult]) -> tuple[str, bool]:
    """Compare the systems with the first one.

    Returns
    -------
    text : str
    right : bool
        Whether all have ended, with equal results.

    Examples
    --------
    >>> ours = BenchResult("dask_exo", {"merge": [3.0, 2.0]}, {"merge": [7]})
    >>> text, right = table([ours, BenchResult("threads", {"merge": [3.5, 3.0]}, {"merge": [7]})])
    >>> print(text)
                             merge
    dask_exo        2.0 s (3.0)
    threads      3.0 s = 1.50 x
    Second run (first run), and how many times that of dask_exo; all results are equal.
    """
    ended = [side for side in sides if not side.error]
    if not ended:
        return "\n".join(f"{side.system}: {side.error}" for side in sides), False
    first, wide = ended[0], max(len(side.system) for side in sides) + 1
    lines = [" " * wide + "".join(f"{job:>17}" for job in first.seconds)]
    for side in sides:
        cells = [f"{_cell(side, first, job):>17}" for job in side.seconds]
        lines.append(f"{side.system:<{wide}}{side.error or ''.join(cells)}")
    wrong = [job for job in first.seen if any(side.seen[job] != first.seen[job] for side in ended)]
    said = f"results DIFFER in {', '.join(wrong)}" if wrong else "all results are equal"
    lines.append(f"Second run (first run), and how many times that of {first.system}; {said}.")
    return "\n".join(lines), not wrong and len(ended) == len(sides)


def _cell(side: BenchResult, first: BenchResult, job: str) -> str:
    once, again = side.seconds[job]
    if side is first:
        return f"{again:.1f} s ({once:.1f})"
    return f"{again:.1f} s = {again / first.seconds[job][1]:.2f} x"


if __name__ == "__main__":
    found = run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps({"seconds": found.seconds, "seen": found.seen}) + "\n")
