"""Tasks whose process dies: they run again, with the same random numbers, and that is reported."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.report import recording

pytestmark = [pytest.mark.cluster]


def draw(i: int) -> tuple[float, float, list[str]]:
    return random.random(), np.random.random(), list({f"item {i}" for i in range(20)})


def draw_and_die_once(i: int, directory: Path) -> tuple[float, float, list[str]]:
    drawn, first = draw(i), directory / "first"
    if not first.exists():
        first.write_text(repr(drawn))
        os.kill(os.getpid(), signal.SIGKILL)
    return drawn


def test_a_second_attempt_draws_what_the_first_one_drew(cluster, tmp_path) -> None:
    with recording() as stats:
        drawn = dask.delayed(draw_and_die_once)(1, tmp_path).compute()
    assert repr(drawn) == (tmp_path / "first").read_text()
    assert stats.repeated == {"draw_and_die_once": 1}


def test_tasks_and_computations_draw_numbers_of_their_own(cluster) -> None:
    jobs = [dask.delayed(draw)(i) for i in range(40)]
    drawn = [one[:2] for _ in range(2) for one in dask.compute(*jobs)]
    assert len({x for x, _ in drawn}) == len({y for _, y in drawn}) == 80


def test_a_seed_of_the_users_own_counts(cluster) -> None:
    def seeded(i: int) -> float:
        np.random.seed(i)
        return float(np.random.random())

    expected = [np.random.RandomState(i).random_sample() for i in range(3)]
    assert list(dask.compute(*[dask.delayed(seeded)(i) for i in range(3)])) == expected


def test_a_map_that_dies_costs_one_call_more(cluster, tmp_path) -> None:
    def part(i: int) -> pd.DataFrame:
        if i == 3 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return pd.DataFrame({"k": np.arange(100), "v": i})

    ddf = dd.from_map(part, range(8), meta=pd.DataFrame({"k": [0], "v": [0]}))
    with recording() as stats:
        rows = ddf.shuffle("k", npartitions=4).compute()
    assert sorted(rows["v"]) == sorted(np.repeat(range(8), 100))
    ((name, count),) = stats.repeated.items()
    assert name.startswith("part+")
    assert 1 <= count < 8
