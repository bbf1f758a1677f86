"""The driver is killed: nothing of its Ray stays, and the same program gives the right result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dask_exo.cluster.failpoints import VARIABLE, arrivals, plant
from tests.faults.cells import PLACES

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

SOON = 60.0  # seconds until a process has come to the point
GONE = 120.0  # seconds until Ray's processes have ended: two agents outlive a driver by a minute


def start(job: str, files: Path, points: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.alone", job, str(files)],
        env={**os.environ, VARIABLE: str(points), "RAY_USAGE_STATS_ENABLED": "0"},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return bool(condition())


@pytest.mark.parametrize("place", PLACES)
def test_nothing_of_it_stays_and_the_next_run_is_right(place, tmp_path) -> None:
    job, fault = PLACES[place]
    points, files = tmp_path / "points", tmp_path / "files"
    points.mkdir()
    plant(points, fault)
    program = start(job, files, points)
    assert until(lambda: fault.first in arrivals(points), SOON), program.communicate(timeout=5)
    started = psutil.Process(program.pid).children(recursive=True)
    assert len(started) > 3, "Ray is not there"
    program.send_signal(signal.SIGKILL)
    program.communicate()
    left = until(lambda: not [one for one in started if running(one)], GONE)
    assert left, [one for one in started if running(one)]
    plant(points)
    out, errors = start(job, files, points).communicate(timeout=120)
    assert out == "same\n", errors[-3000:]


def running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
