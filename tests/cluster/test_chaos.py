"""On real Ray: workers are killed while a shuffle runs, and nothing is lost."""

from __future__ import annotations

import time

import dask.dataframe as dd
import pandas as pd
import pytest

from dask_exo.testing import Chaos

pytestmark = [pytest.mark.cluster]


def test_a_shuffle_whose_workers_are_killed_loses_nothing(cluster) -> None:
    df = pd.DataFrame({"k": range(4000), "v": 1.5})

    def slow(part: pd.DataFrame) -> pd.DataFrame:
        time.sleep(0.3)
        return part

    ddf = dd.from_pandas(df, npartitions=12).map_partitions(slow, meta=df)
    with Chaos(seed=3, rate=4.0, filter="run_map", most=2) as chaos:
        got = ddf.shuffle("k", npartitions=6).compute()
    pd.testing.assert_frame_equal(got.sort_values("k").reset_index(drop=True), df)
    assert [one.name for one in chaos.strikes] == ["run_map"] * len(chaos.strikes) != []
