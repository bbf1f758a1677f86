"""A private Ray: its workers are ready before there is anything to do."""

from __future__ import annotations

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
