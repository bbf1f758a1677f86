"""A groupby after a shuffle, a cacheful of groups at a time."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal, assert_series_equal

from dask_exo import Scheduler
from dask_exo.partitions.kernels import groupby
from dask_exo.partitions.kernels.argsort import counting_argsort
from dask_exo.testing import InlineFutures

EXO = Scheduler(InlineFutures())
ROWS = 60_000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(9)
    df = pd.DataFrame(
        {
            "key": rng.integers(-(2**60), 2**60, 12_000)[rng.integers(0, 12_000, ROWS)],
            "small": rng.integers(0, 200, ROWS).astype("uint8"),
            "x": rng.random(ROWS) * 10.0 ** rng.integers(-9, 9, ROWS),
            "f": rng.random(ROWS).astype("float32"),
            "i": rng.integers(-5, 5, ROWS).astype("int32"),
            "b": rng.random(ROWS) < 0.5,
            "t": pd.Timestamp("2020") + pd.to_timedelta(rng.integers(0, 10**6, ROWS), unit="s"),
            "s": pd.array(rng.choice(["a", "b", "c"], ROWS), dtype="str"),
        }
    )
    df.loc[::7, "x"] = np.nan
    return df


@pytest.fixture
def cut(monkeypatch) -> list[int]:
    """How many clusters were made, each time; frames are small here."""
    seen: list[int] = []
    original = groupby.radix_clusters

    def see(frame, count):
        seen.append(count)
        return original(frame, count)

    monkeypatch.setattr(groupby, "CLUSTERED", 5000)
    monkeypatch.setattr(groupby, "CACHED", 50)
    monkeypatch.setattr(groupby, "radix_clusters", see)
    return seen


OUT = {"split_out": 2}
ALL = {
    "x": ["sum", "mean", "var", "std", "count", "first", "last"],
    "f": ["sum", "prod", "mean"],
    "i": ["max", "sum", "min", "std"],
    "b": ["sum", "max"],
    "t": ["min", "max", "count"],
}
IN_CLUSTERS = {
    "many functions": lambda d, **k: d.groupby("key").agg(ALL, **k),
    "a function": lambda d, **k: d.groupby("key").x.sum(**k),
    "columns": lambda d, **k: d.groupby("key")[["x", "i", "t"]].max(**k),
    "rows": lambda d, **k: d.groupby("key").size(**k),
    "count": lambda d, **k: d.groupby("key")[["x"]].count(**k),
    "fewer than so many": lambda d, **k: d.groupby("key").x.sum(min_count=9, **k),
}
WHOLE = {
    "few groups": lambda d, **k: d.groupby("i").agg({"x": "sum"}, **k),
    "sorted": lambda d, **k: d.groupby("key", sort=True).agg({"x": "sum"}, **k),
    "two keys": lambda d, **k: d.groupby(["key", "i"]).agg({"x": "max"}, **k),
    "strings": lambda d, **k: d.groupby("key").agg({"s": "max"}, **k),
    "keys of floats": lambda d, **k: d.groupby("x").agg({"i": "max"}, **k),
    "a function of the user's": lambda d, **k: d.groupby("key").agg(SHARE, **k),
}
SHARE = dd.Aggregation(
    "share", lambda g: g.sum(), lambda g: g.sum(), lambda sums: sums / sums.max()
)


def same(got, expected) -> None:
    check = assert_frame_equal if expected.ndim == 2 else assert_series_equal
    check(got.sort_index(), expected.sort_index(), check_exact=True)


@pytest.mark.parametrize("name", [*IN_CLUSTERS, *WHOLE])
def test_groups_are_those_of_dask_to_the_last_bit(name, frame, cut) -> None:
    query = {**IN_CLUSTERS, **WHOLE}[name]
    df = frame if name != "a function of the user's" else frame[["key", "i"]]
    ddf = dd.from_pandas(df, npartitions=4, sort=False)
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        expected = query(ddf, **OUT).compute()
    got = query(ddf, **OUT).compute(scheduler=EXO)
    same(got, expected)
    assert bool(cut) == (name in IN_CLUSTERS)


KEYS = ["int8", "uint8", "int32", "uint64", "int64"]


@given(
    keys=st.lists(st.integers(0, 100), min_size=1, max_size=300),
    dtype=st.sampled_from(KEYS),
    power=st.integers(1, 8),
)
def test_all_rows_of_a_key_are_in_one_cluster_in_their_order(keys, dtype, power) -> None:
    rows = pd.DataFrame({"at": range(len(keys))}, index=pd.Index(keys, dtype=dtype, name="k"))
    cut = list(groupby.radix_clusters(rows, 2**power))
    assert len(cut) <= 2**power
    assert all(map(len, cut))
    assert sum(len(set(one.index)) for one in cut) == len(set(keys))
    assert all(one["at"].is_monotonic_increasing for one in cut)
    assert_frame_equal(pd.concat(cut).sort_values("at"), rows)


def test_there_are_as_many_clusters_as_their_groups_need(frame, cut) -> None:
    rows = frame.set_index("key")[["x"]]
    options = {"aggfunc": groupby.methodcaller("sum"), "levels": 0, "sort": None}
    got = groupby.aggregate(rows, whole=lambda inputs, **_: inputs[0], options=options)
    assert cut == [256]  # 12,000 groups, at most 50 in each
    assert len(got) == ROWS


@given(codes=st.lists(st.integers(0, 40), max_size=200))
def test_small_numbers_are_sorted_by_counting(codes) -> None:
    numbers = np.array(codes, np.uint8)
    order, offsets = counting_argsort(numbers, 41)
    assert order.tolist() == np.argsort(numbers, kind="stable").tolist()
    assert offsets.tolist() == np.searchsorted(np.sort(numbers), range(42)).tolist()
