"""Failpoints: nothing without the variable; with it, each fault as often as it was planted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dask_exo.cluster import failpoints
from dask_exo.cluster.failpoints import (
    VARIABLE,
    FailpointError,
    Fault,
    arrivals,
    go_on,
    plant,
    reach,
)

THREE = (
    "from dask_exo.cluster.failpoints import reach\n"
    "for i in range(3): reach('map', i)\nprint('alive')"
)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    monkeypatch.setattr(failpoints, "_directory", str(tmp_path))
    return tmp_path


def run(directory):
    env = {**os.environ, VARIABLE: str(directory)}
    return subprocess.run([sys.executable, "-c", THREE], env=env, check=False, capture_output=True)


def test_nothing_happens_unless_it_is_asked_for(planted, monkeypatch) -> None:
    reach("map")  # nothing is planted
    plant(planted, Fault("map", "raise"))
    monkeypatch.setattr(failpoints, "_directory", None)
    reach("map")
    assert not arrivals(planted)


def test_a_fault_strikes_at_its_point_and_key_only_and_so_often(planted) -> None:
    plant(planted, Fault("map", "raise", key="b", first=1, times=2))
    struck = []
    for point, key in [("map", "a"), ("merge", "b"), *[("map", ("b", i)) for i in range(5)]]:
        try:
            reach(point, key)
        except FailpointError as error:
            struck.append(str(error))
    assert struck == [f"a test lets map of {str(('b', i))!r} fail" for i in (1, 2)]


def test_arrivals_are_counted_over_all_processes_and_threads(planted) -> None:
    plant(planted, Fault("map", "raise", first=30, times=10**6))

    def come(_):
        try:
            reach("map")
        except FailpointError:
            return 1
        return 0

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(come, range(50))) == 20
    assert set(arrivals(planted).values()) == {os.getpid()}


def test_a_process_kills_itself_once(planted) -> None:
    plant(planted, Fault("map", "kill", key="1"))
    assert run(planted).returncode == -signal.SIGKILL
    done = run(planted)
    assert (done.returncode, done.stdout) == (0, b"alive\n")
    assert sorted(arrivals(planted)) == [0, 1]


def test_a_paused_process_goes_on_when_it_is_told_to(planted) -> None:
    plant(planted, Fault("map", "pause"))
    with ThreadPoolExecutor(1) as pool:
        paused = pool.submit(reach, "map")
        time.sleep(0.1)
        assert not paused.done()
        go_on(planted)
        paused.result(5)


def test_memory_that_is_not_there(planted) -> None:
    plant(planted, Fault("map", "memory"))
    with pytest.raises(MemoryError):
        reach("map")
