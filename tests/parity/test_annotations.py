"""What users ask for tasks reaches the cluster, or they are told that it does not."""

from __future__ import annotations

import warnings

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo import Scheduler
from dask_exo.errors import ConfigError
from tests._data import RecordsRequests


@pytest.fixture
def noting():
    return RecordsRequests()


def inc(x):
    return x + 1


def test_of_single_tasks(noting) -> None:
    with dask.annotate(resources={"GPU": 1, "disk": 2}):
        a = dask.delayed(inc)(1)
    with dask.annotate(ray_remote_args={"num_cpus": 2, "max_retries": 7}):
        b = dask.delayed(inc)(a)
    assert dask.delayed(inc)(b).compute(scheduler=Scheduler(noting)) == 4
    assert noting.requested == [
        {"num_gpus": 1, "resources": {"disk": 2}},
        {"num_cpus": 2, "max_retries": 7},
        {},
    ]


def test_neighbours_that_ask_alike_run_together(noting) -> None:
    with dask.annotate(num_gpus=1):
        a = dask.delayed(inc)(dask.delayed(inc)(1))
    assert dask.delayed(inc)(a).compute(scheduler=Scheduler(noting)) == 4
    assert noting.requested == [{"num_gpus": 1}, {}]


def test_of_a_whole_computation(noting) -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": np.arange(100), "v": 1}), npartitions=4)
    scheduler, total = Scheduler(noting), ddf.v.sum()
    with dask.annotate(resources={"disk": 1}):
        assert total.compute(scheduler=scheduler) == 100
    assert noting.requested
    assert all(needs == {"resources": {"disk": 1}} for needs in noting.requested)
    noting.requested.clear()
    assert total.compute(scheduler=scheduler, ray_remote_args={"num_cpus": 2}) == 100
    assert all(needs == {"num_cpus": 2} for needs in noting.requested)
    noting.requested.clear()
    found = ddf.shuffle("k").compute(scheduler=scheduler, num_gpus=1)
    assert sorted(found.k) == list(range(100))
    assert {"num_gpus": 1} in noting.requested


seen: list[int] = []  # what goes to a task is pickled; a global of a module is the same one


def flaky(x):
    seen.append(x)
    if len(seen) < 3:
        raise OSError("try again")
    return x


def test_retries(noting) -> None:
    value = dask.delayed(flaky)(5)
    seen.clear()
    with pytest.raises(OSError, match="try again"):
        value.compute(scheduler=Scheduler(noting), retries=1)
    seen.clear()
    assert value.compute(scheduler=Scheduler(noting), retries=2) == 5


def note(x):
    seen.append(x)


def test_priority(noting) -> None:
    seen.clear()
    tasks = []
    for i in range(6):
        with dask.annotate(priority=i):
            tasks.append(dask.delayed(note)(i))
    dask.compute(*tasks, scheduler=Scheduler(noting))
    assert seen == [5, 4, 3, 2, 1, 0]


def test_what_means_nothing_is_said(noting) -> None:
    with dask.annotate(workers=["alice"]):
        value = dask.delayed(inc)(1)
    with pytest.warns(UserWarning, match=r"\['workers'\] are ignored: dask_exo supports"):
        assert value.compute(scheduler=Scheduler(noting)) == 2


def test_what_dask_drops_is_said(noting) -> None:
    with dask.annotate(num_gpus=1):
        bag = db.from_sequence(range(10), npartitions=2).map(inc)
    with pytest.warns(UserWarning, match="optimize_graph=False"):
        assert bag.compute(scheduler=Scheduler(noting)) == list(range(1, 11))
    noting.requested.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bag.compute(scheduler=Scheduler(noting), optimize_graph=False)
    assert {"num_gpus": 1} in noting.requested


def test_an_array_with_optimization_off(noting) -> None:
    x = da.ones((10, 10), chunks=5)
    with dask.annotate(num_gpus=1):
        y = x + 1
    total = y.sum().compute(scheduler=Scheduler(noting), optimize_graph=False)
    assert total == 200
    assert {"num_gpus": 1} in noting.requested


def test_nonsense_is_refused(noting) -> None:
    with pytest.raises(ConfigError, match="not a dictionary of Ray's task options"):
        dask.delayed(inc)(1).compute(scheduler=Scheduler(noting), ray_remote_args=3)
