"""What a computation costs in calls and objects, counted on real Ray."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo.report import recording

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"k": np.arange(rows) % 997, "v": np.arange(rows)})


def test_a_shuffle_of_100_by_100_makes_few_objects_and_calls() -> None:
    ddf = dd.from_pandas(frame(20_000), npartitions=100)
    with recording() as stats:
        got = ddf.shuffle("k", npartitions=100).compute()
    assert sorted(got["v"]) == list(range(20_000))
    assert [s.maps for s in stats.shuffles] == [100]
    assert stats.calls <= 350
    assert stats.objects <= 350


@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_many_reducers_share_calls_and_merged_blocks(algorithm: str) -> None:
    ddf = dd.from_pandas(frame(200_000), npartitions=20)
    with dask.config.set({"exo.shuffle.algorithm": algorithm}), recording() as stats:
        got = ddf.shuffle("k", npartitions=900).map_partitions(len).compute()
    assert (got.sum(), len(got)) == (200_000, 900)
    assert [s.reducers for s in stats.shuffles] == [900]
    assert stats.calls <= 300
    assert stats.objects <= 500


def test_unread_partition_numbers_are_not_in_the_outputs() -> None:
    ddf = dd.from_pandas(frame(1000), npartitions=4)
    shuffled = ddf.shuffle("k", npartitions=5)
    whole, one, both = dask.compute(
        shuffled, shuffled.v.map_partitions(lambda v: v.name, meta=("v", str)), shuffled[["v", "k"]]
    )
    assert whole.columns.tolist() == ["k", "v"]
    assert set(one) == {"v"}
    assert both.columns.tolist() == ["v", "k"]
    pd.testing.assert_frame_equal(whole[["v", "k"]], both)


def test_many_small_tasks_share_calls() -> None:
    tasks = [dask.delayed(abs)(-i) for i in range(2000)]
    with recording() as stats:
        got = dask.compute(*tasks)
    assert got == tuple(range(2000))
    assert stats.calls < 200


def test_a_chain_of_tasks_is_one_call() -> None:
    value = dask.delayed(0)
    for _ in range(500):
        value = dask.delayed(lambda x: x + 1)(value)
    with recording() as stats:
        assert value.compute() == 500
    assert stats.calls == 1


def test_literals_and_aliases_make_no_call() -> None:
    with recording() as stats:
        assert dask_exo.get({"a": 1, "b": "a", "c": [1, 2]}, [["b"], "c"]) == ((1,), [1, 2])
    assert stats.calls == 0


def test_push_spills_what_it_has_to_and_little_more() -> None:
    rows = 12_000_000  # 192 MB of int64 pairs and index through a store of 300 MB
    ddf = dd.from_map(make_part, [(i, rows // 24) for i in range(24)], meta=make_part((0, 1)))
    with dask.config.set({"exo.shuffle.algorithm": "push"}), recording() as stats:
        total = (
            ddf.shuffle("k").map_partitions(lambda p: p.v.sum(), meta=("v", "i8")).sum().compute()
        )
    assert total == sum(range(rows))
    (shuffle,) = stats.shuffles
    assert shuffle.algorithm == "push"
    assert shuffle.rows == rows
    assert stats.spilled <= 1.3 * shuffle.nbytes


def make_part(where: tuple[int, int]) -> pd.DataFrame:
    start = where[0] * where[1]
    v = np.arange(start, start + where[1])
    return pd.DataFrame({"k": v * 2654435761 % 2**31, "v": v, "w": v * 0.5})
