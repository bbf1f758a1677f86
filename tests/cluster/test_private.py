"""A private Ray: its workers are ready before there is anything to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True\n", done.stderr
