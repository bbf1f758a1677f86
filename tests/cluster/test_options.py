"""Functions that say what they ask for, on real Ray: workers that are kept, and nothing left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray
from dask.dataframe.utils import assert_eq

import dask_exo
from dask_exo.errors import OptionsError

PARTS, ROWS = 6, 50
META = {"n": "i8", "y": "i8", "call": "i8", "pid": "i8"}

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def part(i: int) -> pd.DataFrame:
    return pd.DataFrame({"n": np.arange(i * ROWS, (i + 1) * ROWS)})


class Model:
    """Counts its calls; may die in one of them, once."""

    def __init__(self, factor: int, dies: Path | None = None) -> None:
        self.factor, self.calls, self.dies = factor, 0, dies

    def __call__(self, frame: pd.DataFrame) -> pd.DataFrame:
        self.calls += 1
        if self.dies is not None and self.calls == 2 and not self.dies.exists():
            self.dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return frame.assign(y=frame.n * self.factor, call=self.calls, pid=os.getpid())


@pytest.fixture
def ddf():
    return dd.from_map(part, range(PARTS), meta=part(0).iloc[:0])


@pytest.fixture
def all_given_back():
    """Afterwards no worker holds a CPU."""
    yield
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU", 0) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 2


def test_a_class_is_made_once_in_each_worker(ddf, all_given_back):
    model = dask_exo.options(concurrency=1)(Model, 3)
    made = ddf.map_partitions(model, meta=META)
    got = made.map_partitions(lambda frame: frame.assign(z=frame.y + 1)).compute()
    assert got.n.tolist() == list(range(PARTS * ROWS))
    assert got.z.tolist() == [3 * n + 1 for n in range(PARTS * ROWS)]
    assert got.pid.nunique() == 1
    assert got.call.nunique() == PARTS  # of one instance


def test_batches_and_a_shuffle_after_it_and_what_is_persisted(ddf, all_given_back):
    made = ddf.exo.map_partitions(Model, 2, batch_size=20, concurrency=1, meta=META)
    kept = made.shuffle("n").persist()
    got = kept.compute().sort_values("n")
    assert got.y.tolist() == [2 * n for n in range(PARTS * ROWS)]
    assert got.groupby("pid").call.nunique().sum() == 3 * PARTS
    assert_eq(kept.n.sum(), sum(range(PARTS * ROWS)))


def test_a_worker_that_needs_every_cpu_and_one_that_dies(ddf, all_given_back, tmp_path):
    model = dask_exo.options(num_cpus=2)(Model, 3, tmp_path / "died")
    got = ddf.map_partitions(model, meta=META).n.sum().compute()
    assert got == sum(range(PARTS * ROWS))
    assert (tmp_path / "died").exists()


def test_an_exception_keeps_its_type_and_its_traceback(ddf, all_given_back):
    @dask_exo.options(concurrency=1)
    def fails(frame):
        raise ZeroDivisionError("of the user")

    with pytest.raises(ZeroDivisionError, match="of the user") as caught:
        ddf.map_partitions(fails, meta=ddf._meta).compute()
    assert any(entry.name == "fails" for entry in caught.traceback)


def test_what_the_cluster_does_not_have_is_said_at_once(ddf):
    made = ddf.exo.map_partitions(Model, 1, num_gpus=1, meta=META)
    with pytest.raises(OptionsError, match=r"Model requests 1 CPU, 1 GPU .* have 2 CPU, 0 GPU"):
        made.compute()
