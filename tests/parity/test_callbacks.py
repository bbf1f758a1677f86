"""Dask's callbacks see here what they see on Dask's own schedulers."""

from __future__ import annotations

import io

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.callbacks import Callback
from dask.diagnostics import CacheProfiler, Profiler, ProgressBar, ResourceProfiler

from dask_exo import Scheduler
from dask_exo.testing import InlineFutures

exo = Scheduler(InlineFutures())


def tree():
    numbers = [dask.delayed(pow, pure=True)(i, 2) for i in range(8)]
    return dask.delayed(sum, pure=True)(numbers)


class Diary(Callback):
    def __init__(self):
        self.lines = []

    def _start(self, dsk):
        self.lines.append("start")

    def _start_state(self, dsk, state):
        self.lines.append("start_state")

    def _pretask(self, key, dsk, state):
        assert key in dsk
        assert key in state["running"]
        self.lines.append(("pre", key))

    def _posttask(self, key, value, dsk, state, worker):
        assert key in state["finished"]
        self.lines.append(("post", key, value))

    def _finish(self, dsk, state, failed):
        self.lines.append(("finish", failed))


def test_a_callback_of_ones_own_sees_every_task_and_value() -> None:
    with Diary() as ours:
        assert tree().compute(scheduler=exo) == 140
    with Diary() as theirs:
        tree().compute(scheduler="sync")
    assert ours.lines[:2] == theirs.lines[:2] == ["start", "start_state"]
    assert ours.lines[-1] == theirs.lines[-1] == ("finish", False)
    assert {str(line) for line in ours.lines} == {str(line) for line in theirs.lines}
    for _, key, *_ in (line for line in ours.lines if line[0] == "post"):
        names = [line[:2] for line in ours.lines]
        assert names.index(("pre", key)) < names.index(("post", key))


def test_a_failure_is_told() -> None:
    with Diary() as diary, pytest.raises(ZeroDivisionError):
        dask.delayed(lambda: 1 / 0)().compute(scheduler=exo)
    assert diary.lines[-1] == ("finish", True)


def test_progress_bar() -> None:
    out = io.StringIO()
    frame = pd.DataFrame({"k": np.arange(1000) % 7, "v": 1.0})
    with ProgressBar(out=out, dt=0.01):
        dd.from_pandas(frame, npartitions=5).shuffle("k").v.sum().compute(scheduler=exo)
    assert "100% Completed" in out.getvalue()


def test_profilers() -> None:
    with Profiler() as tasks, ResourceProfiler(dt=0.01) as resources:
        tree().compute(scheduler=exo)
    assert {r.key.rsplit("-", 1)[0] for r in tasks.results} == {"pow", "sum"}
    assert len(tasks.results) == 9
    assert all(r.end_time >= r.start_time for r in tasks.results)
    assert resources.results is not None
    with CacheProfiler() as cached:
        tree().compute(scheduler=exo)
    assert len(cached.results) == 9


calls: list[int] = []  # what goes to a task is pickled; a global of a module is the same one


def slow(x):
    calls.append(x)
    return np.full(100, x)


def test_opportunistic_cache() -> None:
    pytest.importorskip("cachey")
    from dask.cache import Cache

    calls.clear()
    values = [dask.delayed(slow, pure=True)(i) for i in range(3)]
    with Cache(1e9, limit=0):
        first = dask.compute(*values, scheduler=exo)
        second = dask.compute(*values, scheduler=exo)
    assert len(calls) == 3
    np.testing.assert_array_equal(first, second)


def test_nested_computations_are_silent() -> None:
    frame = pd.DataFrame({"k": np.arange(100), "v": 1.0})
    with Diary() as diary:
        dd.from_pandas(frame, npartitions=3).v.sum().compute(scheduler=exo)
    assert diary.lines.count("start") == 1


def test_start_may_put_values_into_the_graph() -> None:
    key = tree().key

    class Shortcut(Callback):
        def _start(self, dsk):
            dsk[key] = 42

    with Shortcut():
        assert tree().compute(scheduler=exo) == 42
