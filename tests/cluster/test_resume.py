"""A driver that is killed, on real Ray: run again, it does what is missing, to the same bytes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PARTS = 8
DRIVER = f"""
import os, sys, time
from pathlib import Path
import dask, dask.dataframe as dd, numpy as np, pandas as pd
import dask_exo
from dask_exo.report import recording

kept, out = sys.argv[1:]

def load(i):
    with open(os.environ["LOADS"], "a") as file:  # a file that code names would count
        file.write(f"load {{i}}\\n")
    rng = np.random.default_rng(i)
    return pd.DataFrame({{"v": rng.random(1000), "w": rng.random(1000)}})

def work(rows):
    time.sleep(0.15)
    return rows.assign(x=rows.v + rows.w)

ddf = dd.from_map(load, range({PARTS}), meta=pd.DataFrame({{"v": [0.0], "w": [0.0]}}))
ddf = ddf.exo.sort_values("v").map_partitions(work).exo.sort_values("w").map_partitions(work)
if kept == "none":
    dask.config.set(scheduler="sync")
else:
    dask_exo.enable(num_cpus=2, object_store_memory="150MB",
                    **{{"checkpoint.path": kept, "checkpoint.keep": "all",
                       "checkpoint.overhead": 0.0}})
with recording() as stats:
    ddf.exo.to_parquet(out)
print("shuffles", len(stats.shuffles), "found", sum(one.found for one in stats.checkpoints))
"""


def start(tmp_path: Path, kept: object, out: Path, log: Path) -> subprocess.Popen:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "LOADS": str(log)}
    return subprocess.Popen(
        [sys.executable, script, str(kept), str(out)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def values(kept: Path) -> set[str]:
    return {file.name for file in kept.rglob("*.value")}


def values_at_rest(kept: Path, seconds: float = 3.0) -> set[str]:
    """What is kept when the tasks that a dead driver's Ray has not stopped yet are through."""
    last, since = values(kept), time.monotonic()
    while time.monotonic() < since + seconds:
        time.sleep(0.1)
        if (now := values(kept)) != last:
            last, since = now, time.monotonic()
    return last


def test_a_driver_that_is_killed_twice_goes_on_where_it_was(tmp_path: Path) -> None:
    kept, out, log = tmp_path / "kept", tmp_path / "out", tmp_path / "log"
    with start(tmp_path, "none", tmp_path / "whole", tmp_path / "other") as whole:
        assert whole.wait(120) == 0
    rng = random.Random(os.getpid())
    # two sorts and what is written: three times as many values as there are partitions. What goes
    # into a sort is kept if it took long, which depends on the machine; not with an overhead of 0
    for kill in (rng.randint(1, PARTS - 1), rng.randint(PARTS + 1, 3 * PARTS - 4)):
        before, deadline = values(kept), time.monotonic() + 120
        with start(tmp_path, kept, out, log) as killed:
            while len(values(kept)) < kill:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            killed.send_signal(signal.SIGKILL)
        assert killed.returncode == -signal.SIGKILL
        assert before <= values(kept)
        assert not out.exists()
    there = values_at_rest(kept)
    log.unlink()
    with start(tmp_path, kept, out, log) as again:
        said, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert tree(out) == tree(tmp_path / "whole")
    assert f"found {len(there)}" in said
    assert there <= values(kept)
    # nothing has two values: what was there was not written again, with other bytes
    assert len({name.split("-")[0] for name in values(kept)}) == 3 * PARTS == len(values(kept))
    assert not log.exists()  # the first sort was there as a whole
    assert "shuffles 2" not in said
