"""A private Ray: its workers are ready before there is anything to do."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import psutil
import pytest

from tests._data import run_python

pytestmark = pytest.mark.cluster

PROGRAM = """
import sys
import ray
import dask_exo

with dask_exo.enable(num_cpus=1, object_store_memory="80MB"):
    first = ray.remote(lambda: "dask_exo" in sys.modules)  # it needs nothing of ours itself
    print(ray.get(first.remote()))
"""


def test_workers_import_what_tasks_need_when_they_start() -> None:
    done = run_python("-c", PROGRAM)
    assert done.stdout == "True\n", done.stderr


THREAD = """
import threading
import time
import dask
import dask_exo

settings = {"exo.num-cpus": 1, "exo.object-store-memory": "80MB", "scheduler": dask_exo.get}
with dask.config.set(settings):
    first = threading.Thread(target=dask.delayed(print)("first").persist)
    first.start()
    first.join()
    time.sleep(1)
    print(dask.delayed(sum)([1, 2]).compute())
    print(threading.Thread(target=dask_exo.disable).start())
"""


def test_ray_outlives_the_thread_that_asked_for_it() -> None:
    """Linux kills Ray's processes with the thread that has started them, and Ray then us."""
    done = run_python("-c", THREAD)
    assert done.stdout.split()[-2:] == ["3", "None"], done.stderr
    assert done.returncode == 0


SHUT_DOWN = """
import dask
import ray
import dask_exo

ray.init("local", num_cpus=1, object_store_memory=80_000_000, logging_level="ERROR")
with dask.config.set({"scheduler": dask_exo.get, "exo.engine": "ray"}):
    kept = dask.delayed(abs)(-1).persist()
    ray.shutdown()  # while a thread waits for the task
    try:
        kept.compute(scheduler="sync")
    except dask_exo.errors.ClusterError as error:
        print(str(error)[:37])
print(ray.is_initialized())
"""


def test_no_new_ray_starts_for_what_was_under_way() -> None:
    done = run_python("-c", SHUT_DOWN)
    assert done.stdout == "this process is not connected to Ray \nFalse\n", done.stderr


STARTING = """
import dask
import dask_exo

enabled = dask_exo.enable(num_cpus=1, object_store_memory="80MB")
print(enabled._connected.done(), dask.config.get("scheduler") is dask_exo.get)
print(dask.delayed(sum)([1, 2]).compute(), enabled.cluster.private)
with dask_exo.enable() as inner:
    print(inner.cluster is enabled.cluster)
"""


def test_ray_starts_in_the_background() -> None:
    done = run_python("-c", STARTING)
    assert done.stdout.split() == ["False", "True", "3", "True", "True"], done.stderr
    assert done.stderr.count("started a private Ray") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "seconds", "code"),
    [
        ("", 0, 0),
        ("dask_exo.disable()", 0.5, 0),
        ("dask_exo.enable().__exit__()", 0, 0),
        ("os.kill(os.getpid(), signal.SIGINT)", 1.5, 1),
        ("os.kill(os.getpid(), signal.SIGTERM)", 1, signal.SIGTERM),
    ],
)
def test_a_program_may_end_while_ray_starts(end: str, seconds: float, code: int) -> None:
    place = Path(tempfile.mkdtemp(prefix="t"))
    program = f"import dask_exo, os, signal, time; dask_exo.enable(); time.sleep({seconds}); {end}"
    done = run_python("-c", program, TMPDIR=str(place), DASK_EXO__REPORT__LIVE="false")
    assert done.returncode == code, done.stderr
    place.rmdir()  # it is empty
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if str(place) in " ".join(line or ())]


DYING = """
import os
import signal
import sys
import threading
import time
import dask
import dask_exo
from dask_exo.errors import WorkerLostError

dask_exo.enable(num_cpus=1, object_store_memory="80MB")
one = dask.delayed(sum)([1, 2])
print(">", one.compute())
from ray._private.worker import _global_node as node

process = node.all_processes[sys.argv[1]][0].process.pid
threading.Timer(2, os.kill, (process, signal.SIGKILL)).start()
try:
    dask.delayed(time.sleep)(100).compute()
except WorkerLostError as error:
    print(">", f"process {sys.argv[1]} has" in str(error))
print(">", one.compute(), dask_exo.enable().cluster.private)
dask_exo.disable()
print(">", "end")
"""


@pytest.mark.parametrize("process", ["raylet", "gcs_server"])
def test_a_private_ray_that_died_is_replaced(process: str) -> None:
    done = run_python("-c", DYING, process)
    lines = [line for line in done.stdout.splitlines() if line.startswith(">")]  # Ray prints more
    assert lines == ["> 3", "> True", "> 3 True", "> end"], done.stderr
    assert done.stderr.count("started a private Ray") == 2
    assert done.returncode == 0
