"""Nodes die under tasks that never make the same twice: no result has two versions of a part."""

from __future__ import annotations

import itertools

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo import Scheduler
from dask_exo.errors import NonDeterminismError
from dask_exo.report import recording
from dask_exo.testing import NodeDeath, SimFutures
from tests._data import ONE_TASK_PER_CALL, simulated

PARTS, ROWS = 12, 100
VERSIONS = itertools.count()


def cluster(at: float) -> SimFutures:
    return simulated(faults=[NodeDeath(at=at, node="n1", back=at + 5)])


def part(i: int, *, fickle: bool) -> pd.DataFrame:
    x = next(VERSIONS) if fickle else i
    return pd.DataFrame({"k": np.arange(ROWS) % 37, "part": i, "x": x})


def shuffled(
    futures: SimFutures, mode: str, algorithm: str, *, fickle: bool = True
) -> pd.DataFrame:
    ddf = dd.from_map(part, range(PARTS), fickle=fickle, meta=part(0, fickle=False))
    chosen = {"exo.shuffle.algorithm": algorithm, "exo.fault.nondeterminism": mode}
    with dask.config.set({**ONE_TASK_PER_CALL, **chosen}):
        return ddf.shuffle("k", npartitions=10).compute(scheduler=Scheduler(futures))


def mixed(rows: pd.DataFrame) -> bool:
    """Whether there are two versions of a part."""
    return bool((rows.groupby("part")["x"].nunique() > 1).any())


@pytest.mark.parametrize("algorithm", ["simple", "push", "magnet"])
@settings(max_examples=25)
@given(at=st.floats(0.5, 40))
def test_a_result_has_one_version_of_each_part_or_there_is_none(algorithm, at) -> None:
    try:
        rows = shuffled(cluster(at), "error", algorithm)
    except NonDeterminismError:
        return
    assert not mixed(rows)
    assert len(rows) == PARTS * ROWS


@settings(max_examples=15)
@given(at=st.floats(0.5, 40))
def test_what_is_made_again_and_is_the_same_is_no_error(at) -> None:
    rows = shuffled(cluster(at), "error", "push", fickle=False)
    assert not mixed(rows)


def test_without_the_comparison_two_versions_do_reach_a_result() -> None:
    when = np.arange(1.0, 30.0, 2.0)
    assert any(mixed(shuffled(cluster(at), "ignore", "simple")) for at in when)
    with pytest.warns(UserWarning, match="returned a different output"):
        assert any(mixed(shuffled(cluster(at), "warn", "simple")) for at in when)


def test_the_error_says_which_task_and_what_to_do() -> None:
    def run_until_it_shows() -> None:
        for at in np.arange(1.0, 30.0, 2.0):
            shuffled(cluster(at), "error", "simple")

    with pytest.raises(
        NonDeterminismError, match=r"'part\+.* ran again.* exo.fault.nondeterminism"
    ):
        run_until_it_shows()


def test_what_is_made_again_is_counted() -> None:
    with recording() as calm:
        shuffled(cluster(1000.0), "error", "simple", fickle=False)
    assert not calm.repeated
    with recording() as stats:
        shuffled(cluster(6.0), "error", "simple", fickle=False)
    made = {name: count for name, count in stats.repeated.items() if name.startswith("part+")}
    assert 0 < sum(made.values()) <= PARTS
