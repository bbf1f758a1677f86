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
import sys, time
from pathlib import Path
import dask, dask.dataframe as dd, numpy as np, pandas as pd
import dask_exo
from dask_exo.report import recording

kept, out, log = sys.argv[1:]

def load(i):
    with open(log, "a") as file:
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
                    **{{"checkpoint.path": kept, "checkpoint.keep": "all"}})
with recording() as stats:
    ddf.exo.to_parquet(out)
print("shuffles", len(stats.shuffles), "found", sum(one.found for one in stats.checkpoints))
"""


def start(tmp_path: Path, *args: object) -> subprocess.Popen:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [sys.executable, script, *map(str, args)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_driver_goes_on_where_it_was(tmp_path: Path, seed: int) -> None:
    kept, out, log = tmp_path / "kept", tmp_path / "out", tmp_path / "log"
    assert start(tmp_path, "none", tmp_path / "whole", tmp_path / "other").wait(120) == 0
    # two sorts and what is written: three times as many values as there are partitions
    last = random.Random(seed).randint(PARTS * seed + 1, PARTS * (2 + seed) - 1)
    killed = start(tmp_path, kept, out, log)
    deadline = time.monotonic() + 120
    while len(list(kept.rglob("*.value"))) < last:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait(30)
    assert not out.exists()
    time.sleep(1)  # tasks that its Ray has not stopped yet
    there = {file.name for file in kept.rglob("*.value")}
    log.unlink()
    again = start(tmp_path, kept, out, log)
    said, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert tree(out) == tree(tmp_path / "whole")
    assert f"found {len(there)}" in said
    now = {file.name for file in kept.rglob("*.value")}
    assert there <= now
    loads = log.read_text().splitlines() if log.exists() else []
    first_is_there = "shuffles 2" not in said
    assert len(loads) == (0 if first_is_there else PARTS)
    # nothing has two values: what was there was not written again, with other bytes
    assert len({name.split("-")[0] for name in now}) == len(now)
