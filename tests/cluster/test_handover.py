"""Work that holds the interpreter lock moves to a Ray that starts beside it."""

from __future__ import annotations

import pytest

from tests._data import run_python

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PROGRAM = """
import os
import threading
import dask
import dask.dataframe as dd
import pandas as pd
import dask_exo
from dask_exo.execution import admission
from dask_exo.report import recording

admission.ONE_CORE, admission.IDLE = 0.2, 0.0  # other tests may use the processors
HERE = os.getpid()

def count(number):
    total = 0
    for i in range(6_000_000):
        total += i % 7
    return pd.DataFrame({"k": [number % 5], "total": [total], "here": [os.getpid() == HERE]})

meta = pd.DataFrame({"k": [0], "total": [0], "here": [True]})
dask.config.set({"scheduler": dask_exo.get, "exo.num-cpus": 2})
with recording() as stats:
    got = dd.from_map(count, range(80), meta=meta).shuffle("k").compute()
print(stats.figures().engines)
print(sorted(got.k) == sorted(n % 5 for n in range(80)), got.total.nunique())
print(sorted(set(got.here)))
"""


def test_tasks_move_to_processes_while_a_computation_runs() -> None:
    done = run_python("-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    engines, right, here = done.stdout.splitlines()
    assert "its functions hold the interpreter lock: moved from threads" in engines
    assert right == "True 1"
    assert here == "[False, True]"
    assert "started a private Ray" in done.stderr


ENDING = """
import dask, dask_exo
from dask_exo.config import Config
from dask_exo.scheduler import _in_background

_in_background(Config.current())
"""


def test_a_program_may_end_while_ray_starts() -> None:
    done = run_python("-c", ENDING)
    assert done.returncode == 0, done.stderr
