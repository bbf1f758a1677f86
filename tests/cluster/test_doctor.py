"""The doctor on real Ray, and keys that ask for another Ray than the one that runs."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import pandas as pd
import pytest

from dask_exo.cli.doctor import diagnose, gather
from dask_exo.errors import ConfigError

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def test_it_finds_what_the_cluster_was_started_with() -> None:
    facts = gather()
    assert facts.private
    assert not facts.unreachable
    (machine,) = facts.machines
    assert (machine.slots, machine.store) == (2, 300 * 10**6)
    assert machine.versions == facts.program.versions
    assert machine.lacks == ()
    assert machine.spill is not None
    assert not machine.spill.error
    assert machine.spill.write > 0
    assert abs(machine.skew) <= machine.doubt + 0.1
    found = {one.name: one.level for one in diagnose(facts).findings}
    names = ("versions", "configuration", "scheduler", "shuffle", "cluster", "token", "environment")
    assert {name: found[name] for name in names} == dict.fromkeys(names, "ok")


def test_another_size_than_that_of_the_ray_that_runs_is_refused() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2]}), npartitions=2)
    with (
        dask.config.set({"exo.num-cpus": 3}),
        pytest.raises(ConfigError, match=r"exo.num-cpus=3 has no effect: .* dask_exo.disable\(\)"),
    ):
        ddf.k.sum().compute()
    with dask.config.set({"exo.num-cpus": 2}):  # what it was started with
        assert ddf.k.sum().compute() == 3


def test_keys_inside_a_task_may_be_of_any_program() -> None:
    def inside() -> int:
        with dask.config.set({"exo.num-cpus": 9}):  # as a worker may have it in its environment
            return dask.delayed(sum)([1, 2]).compute()

    assert dask.delayed(inside)().compute() == 3
