"""``dask exo bench``: its jobs are right, and it says so when they are not."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import dask
import pandas as pd
import pytest
from click.testing import CliRunner

from dask_exo import Scheduler
from dask_exo.cli import bench, main
from dask_exo.testing import InlineFutures

NBYTES = 400_000


@pytest.mark.parametrize("scheduler", ["sync", Scheduler(InlineFutures())], ids=["sync", "exo"])
def test_jobs_see_what_pandas_sees(scheduler) -> None:
    left, right = bench.frame(NBYTES)
    rows = left.compute(scheduler="sync")
    joined = rows.merge(right.compute(scheduler="sync"), on="user")
    spent = rows.groupby("user").cents.sum()
    settings = {"dataframe.shuffle.method": "tasks", "scheduler": scheduler}
    with dask.config.set(settings):
        seen = {name: job(left, right) for name, job in bench.JOBS.items()}
    assert seen == {
        "set_index": [len(rows), rows.cents.sum(), 1],
        "merge": [len(rows), (joined.cents * joined.weight).sum()],
        "groupby": [len(spent), spent.max()],
    }


def test_rows_are_as_large_as_said_and_always_the_same() -> None:
    pd.testing.assert_frame_equal(bench.purchases(3, 100, 7), bench.purchases(3, 100, 7))
    made = bench.purchases(0, 100_000, 99)
    assert made.memory_usage(index=False, deep=True).sum() / len(made) == pytest.approx(40, rel=0.2)


OURS = bench.BenchResult("dask_exo", {"merge": [3.0, 2.0]}, {"merge": [7]})


@pytest.mark.parametrize(
    ("other", "code", "said"),
    [
        (bench.BenchResult("threads", {"merge": [9.0, 1.0]}, {"merge": [7]}), 0, "1.0 s = 0.50 x"),
        (bench.BenchResult("threads", {"merge": [9.0, 1.0]}, {"merge": [8]}), 1, "DIFFER in merge"),
        (bench.BenchResult("threads", error="MemoryError"), 1, "threads  MemoryError"),
    ],
)
def test_a_wrong_result_and_a_failure_are_told(other, code, said, monkeypatch) -> None:
    sides = iter([OURS, other, replace(OURS, system="p2p")])
    monkeypatch.setattr(bench, "measure", lambda *_: next(sides))
    done = CliRunner().invoke(main.main, ["bench", "--size", "1MB"])
    assert done.exit_code == code
    assert said in done.output


def test_a_process_that_fails_says_its_last_line(monkeypatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback: …\nMemoryError: 3 GB\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert bench.measure("threads", 1, 1) == bench.BenchResult("threads", error="MemoryError: 3 GB")


def test_a_wrong_size_is_named() -> None:
    done = CliRunner().invoke(main.main, ["bench", "--size", "much"])
    assert done.exit_code == 2
    assert "'much' is not a size" in done.output
