"""Which processes have bad luck."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from dask_exo.testing import Chaos
from dask_exo.testing.chaos import victims

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="names of processes")


@pytest.fixture
def processes():
    """Processes that call themselves as Ray's do."""
    names = ["ray::run_map", "ray::merge", "ray::IDLE", "ray::RuntimeEnvAgent", "/x/raylet"]
    started = {}
    for name in [*names, "/y/raylet"]:
        started[name] = subprocess.Popen([name, "60"], executable=shutil.which("sleep"))
        time.sleep(0.02)  # by their age
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def names(mode: str, pattern: str = "") -> list[str]:
    return [name for _, name in victims(mode, re.compile(pattern))]


def test_chaos_kills_busy_workers_and_nodes_but_the_first(processes) -> None:
    assert names("kill") == ["run_map", "merge"]
    assert names("pause", "^mer") == ["merge"]
    children = psutil.Process().children(recursive=True)
    raylets = [(one.cmdline() or [""])[0] for one in children]
    # another test may have a Ray of its own, which is older
    assert len(names("node")) == sum(name.endswith("/raylet") for name in raylets) - 1
    assert names("node")[-1] == "/y/raylet"


def test_those_that_match_are_killed_until_it_is_enough(processes) -> None:
    with Chaos(seed=1, rate=200, filter="run_map") as chaos:
        assert processes["ray::run_map"].wait(timeout=10) < 0
    assert [one.name for one in chaos.strikes] == ["run_map"]
    assert processes["ray::merge"].poll() is None
    with Chaos(seed=1, rate=200, most=0) as chaos:
        time.sleep(0.1)
    assert not chaos.strikes


def test_one_that_has_not_yet_ended_is_not_killed_again(processes, monkeypatch) -> None:
    monkeypatch.setattr(psutil.Process, "kill", lambda process: None)  # as one that takes its time
    with Chaos(seed=1, rate=200, filter="run_map|merge") as chaos:
        deadline = time.monotonic() + 10
        while len(chaos.strikes) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
    assert sorted(one.name for one in chaos.strikes) == ["merge", "run_map"]


def test_one_that_stands_still_goes_on(processes) -> None:
    merge = psutil.Process(processes["ray::merge"].pid)
    with Chaos(seed=1, rate=200, filter="merge", mode="pause", most=1, away=0.3):
        deadline = time.monotonic() + 10
        while merge.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert merge.status() == psutil.STATUS_STOPPED
    assert merge.status() != psutil.STATUS_STOPPED


@pytest.mark.parametrize("wrong", [{"mode": "magic"}, {"rate": 0}])
def test_what_it_cannot_do_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="need kill, pause or node"):
        Chaos(seed=1, **wrong)
