"""CPU | GPU | CPU in plain Dask code, on a private Ray with a logical GPU that need not exist."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """
import json
import os
import signal
import sys
import time
from pathlib import Path

import dask.dataframe as dd
import pandas as pd

import dask_exo

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
folder = Path(sys.argv[1])

def part(i):
    return pd.DataFrame({"n": [i], "pid": [0]})

def same(frame):
    return frame

def model(frame):
    return frame.assign(pid=os.getpid())

def fails(frame):
    if frame.n.iloc[0] == 3:
        raise ZeroDivisionError("of the user")
    return model(frame)

def dies(frame):
    if frame.n.iloc[0] == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)
    return model(frame)

def waits(frame):
    (folder / "waits").touch()
    time.sleep(100)

ddf = dd.from_map(part, range(6), meta=part(0).iloc[:0])

def chain(function):
    made = ddf.map_partitions(same).map_partitions(function, meta=ddf._meta)
    return made.map_partitions(same).compute()

def pids(function):
    got = chain(dask_exo.options(num_gpus=1)(function))
    assert sorted(got.n) == list(range(6))
    return got.pid.unique().tolist()

seen = {}
with dask_exo.enable(num_cpus=2, num_gpus=1, object_store_memory="80MB"):
    try:
        pids(fails)
    except Exception as error:
        seen["fails"] = [type(error).__name__, str(error)]
    seen["dies"] = pids(dies)
    seen["first"], seen["second"] = pids(model), pids(model)
    chain(dask_exo.options(num_cpus=2)(same))  # it needs the CPU of the actor, too
    pipeline = ddf.exo.pipeline().map_partitions(model, num_gpus=1)
    seen["pipeline"] = pipeline.compute().pid.unique().tolist()
    (folder / "seen").write_text(json.dumps(seen))
    pids(waits)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the program has seen before it is interrupted, and how it ended."""
    folder = tmp_path_factory.mktemp("chain")
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, folder], stderr=subprocess.PIPE)
    try:
        while not (folder / "waits").exists() and program.poll() is None:
            time.sleep(0.1)
        if program.poll() is not None:
            pytest.fail(program.communicate()[1].decode())
        family = psutil.Process(program.pid).children(recursive=True)
        start = time.monotonic()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
        seconds = time.monotonic() - start
        _, alive = psutil.wait_procs(family, timeout=10)
        found = json.loads((folder / "seen").read_text())
        yield {**found, "errors": errors.decode(), "seconds": seconds, "alive": alive}
    finally:
        program.kill()


def test_a_function_that_fails_keeps_its_exception(seen: dict[str, Any]) -> None:
    assert seen["fails"] == ["ZeroDivisionError", "of the user"]


def test_an_actor_that_dies_is_replaced(seen: dict[str, Any]) -> None:
    assert 1 <= len(seen["dies"]) <= 2  # before and after


def test_the_next_computation_finds_the_actor_and_others_get_its_resources(
    seen: dict[str, Any],
) -> None:
    assert seen["first"] == seen["second"]
    assert len(seen["pipeline"]) == 1
    assert seen["pipeline"] != seen["first"]


def test_an_interrupt_ends_all_processes(seen: dict[str, Any]) -> None:
    assert "KeyboardInterrupt" in seen["errors"]
    assert seen["seconds"] < 15
    assert not seen["alive"]
