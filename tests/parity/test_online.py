"""``agg_online`` against pandas: exact at the end, and estimates that are as good as they say."""

from __future__ import annotations

from unittest.mock import patch

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.dataframe import online
from dask_exo.dataframe.online import AGGREGATES
from dask_exo.errors import AggregationError, ColumnError


@pytest.fixture(autouse=True, params=["few groups", "one share", "many shares"])
def _sync(request, monkeypatch):
    if request.param != "few groups":
        monkeypatch.setattr(online, "FEW", 3)
        monkeypatch.setattr(online, "NEW", 0)
    if request.param == "many shares":
        monkeypatch.setattr(online, "SHARE", 1)
    with dask.config.set(scheduler="sync"):
        yield


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4), st.sampled_from("ab"), st.one_of(st.none(), st.integers(-9, 9))
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 7),
    st.floats(0.1, 1),
    st.booleans(),
)
def test_the_last_estimate_is_exact(rows, parts, every, both) -> None:
    source = pd.DataFrame(rows, columns=["k", "s", "x"]).astype({"x": "float64"})
    by = ["k", "s"] if both else "k"
    exact = [name for name in AGGREGATES if name != "approx_nunique"]
    spec = {"x": exact, "s": ["count", "nunique"]} if not both else {"x": ["mean"]}
    ddf = dd.from_pandas(source, npartitions=parts)
    *before, last = ddf.exo.groupby(by).agg_online(spec, every=every)
    expected = source.groupby(by).agg(spec)
    got = last.frame.sort_index()
    assert last.exact
    assert last.share == 1
    assert not any(estimate.exact for estimate in before)
    pd.testing.assert_frame_equal(
        got, expected, check_index_type=False, check_dtype=False, check_column_type=False
    )
    exact = last.error[[c for c in last.error.columns if c[1] in ("sum", "count")]]
    assert (exact == 0).all(axis=None)


def pages(rows: int = 40_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    languages = rng.zipf(1.5, rows).clip(max=20)
    return pd.DataFrame({"lang": languages, "views": rng.exponential(10, rows)})


def test_estimates_converge_and_their_errors_are_honest() -> None:
    source = pages()
    truth = source.groupby("lang").agg({"views": ["sum", "count", "mean"]})
    ddf = dd.from_pandas(source, npartitions=80)
    spec = {"views": ["sum", "count", "mean"]}
    distances, hits, looks = [], 0, 0
    for estimate in ddf.exo.groupby("lang").agg_online(spec, every=0.05, seed=2):
        found = estimate.frame.reindex(truth.index).fillna(0)
        p, q = (f["views", "sum"] / f["views", "sum"].sum() for f in (truth, found))
        distances.append(float((p * np.log(p / q.clip(lower=1e-9))).sum()))
        if not estimate.exact and len(distances) >= 5:
            off = (found - truth).abs() / estimate.error.reindex(truth.index)
            frequent = truth["views", "count"] > 300
            hits += int((off[frequent] < 2.5).sum().sum())
            looks += int(off[frequent].notna().sum().sum())
    assert len(distances) == 3 + 20  # after 1, 2 and 3 partitions, and after every 4
    assert distances[0] < 0.08
    assert distances[-1] < 1e-12
    assert np.mean(distances[10:]) < np.mean(distances[:5])
    assert hits / looks > 0.85  # about 99 % of normal ones would be; errors are estimates too


def test_sums_stay_integers_and_plain_specs_plain_columns() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2] * 20, "n": range(40)}), npartitions=4)
    first, *_, last = ddf.exo.groupby("k").agg_online({"n": "sum"}, every=2)
    assert last.frame.dtypes.to_dict() == {"n": np.dtype("int64")}
    assert first.share == 0.25
    assert first.error.n.isna().all()


def test_the_seed_decides_the_order() -> None:
    ddf = dd.from_pandas(pages(1000), npartitions=10)
    firsts = [
        next(ddf.exo.groupby("lang").agg_online({"views": "sum"}, seed=seed)).frame
        for seed in (1, 1, 2)
    ]
    pd.testing.assert_frame_equal(firsts[0], firsts[1])
    assert not firsts[0].equals(firsts[2])


@pytest.mark.parametrize(
    ("by", "spec", "every", "kind", "message"),
    [
        (
            "language",
            {},
            0.1,
            ColumnError,
            "no column 'language' to group by: did you mean 'lang'",
        ),
        ("lang", {"visits": "sum"}, 0.1, ColumnError, "no column 'visits'"),
        (
            "lang",
            {"views": "median"},
            0.1,
            AggregationError,
            "'median' is not an aggregate: there are",
        ),
        ("lang", {}, 0.1, AggregationError, "is empty: there are"),
        ("lang", {"views": "sum"}, 0, AggregationError, "every=0: need a share"),
        ("lang", {"views": "sum"}, 2.5, AggregationError, "every=2.5: need a share"),
    ],
)
def test_wrong_arguments_are_named_at_once(by, spec, every, kind, message) -> None:
    ddf = dd.from_pandas(pages(100), npartitions=2)
    with pytest.raises(kind, match=message):
        ddf.exo.groupby(by).agg_online(spec, every=every)


@pytest.mark.parametrize("top", [0, 1.5])
def test_a_top_that_is_no_number_of_groups_is_an_error(top) -> None:
    ddf = dd.from_pandas(pages(100), npartitions=2)
    with pytest.raises(AggregationError, match=f"top={top}: need a number of groups"):
        ddf.exo.groupby("lang").agg_online({"views": "sum"}, top=top)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from(["sum", "count", "max", "mean"]),
    st.sampled_from([online.FEW, 2]),
)
def test_the_top_groups_are_those_that_pandas_finds(rows, top, parts, name, few) -> None:
    source = pd.DataFrame(rows, columns=["k", "x"])
    ddf = dd.from_pandas(source, npartitions=parts)
    with patch.multiple(online, FEW=few, SHARE=2):
        *before, last = ddf.exo.groupby("k").agg_online({"x": [name, "min"]}, top=top, every=0.3)
    expected = source.groupby("k").agg({"x": [name, "min"]}).nlargest(top, ("x", name))
    pd.testing.assert_frame_equal(last.frame, expected, check_column_type=False)
    for estimate in [*before, last]:
        shown = estimate.frame["x", name]
        assert len(shown) <= top
        assert shown.is_monotonic_decreasing
        assert estimate.error.index.equals(estimate.frame.index)


def test_cardinality_is_within_the_error_of_the_sketch() -> None:
    rng = np.random.default_rng(1)
    source = pd.DataFrame(
        {"k": rng.integers(0, 3, 60_000), "page": rng.integers(0, 15_000, 60_000)}
    )
    source.loc[source["k"] == 2, "page"] %= 40
    source["name"] = source["page"].astype("string")
    ddf = dd.from_pandas(source, npartitions=8)
    spec = {"page": ["nunique", "approx_nunique"], "name": "approx_nunique"}
    for estimate in ddf.exo.groupby("k").agg_online(spec, every=2):
        exact = estimate.frame["page", "nunique"]
        for column in ("page", "name"):
            off = (estimate.frame[column, "approx_nunique"] - exact).abs()
            assert (off < 4 * estimate.error[column, "approx_nunique"]).all()
            assert off[2] < 1
    assert estimate.exact


def test_the_first_estimate_needs_one_partition() -> None:
    made = []

    def make(i):
        made.append(i)
        return pages(50)

    ddf = dd.from_map(make, range(100), meta=pages(1))
    estimates = ddf.exo.groupby("lang").agg_online({"views": "count"}, every=0.1)
    shares = [next(estimates).share for _ in range(8)]
    assert shares == [0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2]
    assert len(made) <= 20 + 3 * 10  # at most three rounds more
    assert len(set(made)) == len(made)


def test_a_shuffled_frame_is_aggregated_as_it_is() -> None:
    source = pages(2000)
    ddf = dd.from_pandas(source, npartitions=4).shuffle("lang")
    *_, last = ddf.exo.groupby("lang").agg_online({"views": "count"})
    assert last.frame["views"].to_dict() == source.groupby("lang").views.count().to_dict()


def test_each_group_is_in_one_share() -> None:
    rng = np.random.default_rng(2)
    source = pd.DataFrame({"page": rng.integers(0, 5000, 60_000), "views": rng.random(60_000)})
    partial = online.aggregate_partition(
        source, online.AggregationSpec(["page"], [("views", "sum")], True, 3)
    )
    found = [partial.share(i, 4).aggregates for i in range(4)]
    assert all(len(each) > 1000 for each in found)
    assert partial.share(0, 1) is partial
    expected = partial.aggregates.sort_index()
    pd.testing.assert_frame_equal(pd.concat(found).sort_index(), expected)


def test_sketches_stay_with_their_groups() -> None:
    spec = online.AggregationSpec(["page"], [("user", "approx_nunique")], True)
    sources = [
        pd.DataFrame({"page": np.repeat(pages, 30), "user": range(30 * len(pages))})
        for pages in ([2, 5, 7], [1, 3, 5], [0, 9])
    ]
    partial = online.combine([online.aggregate_partition(each, spec) for each in sources])
    counts = pd.concat(each.sketches[0].counts() for each in partial.hashed().split())
    distinct = pd.concat(sources).drop_duplicates().page.value_counts()
    assert counts.round().sort_index().to_dict() == distinct.sort_index().to_dict()


def test_many_groups_are_combined_when_there_are_several_times_as_many_new_ones(
    monkeypatch,
) -> None:
    monkeypatch.setattr(online, "FEW", 99)
    monkeypatch.setattr(online, "NEW", 4)
    frame = pd.DataFrame({"page": range(100), "views": 1})
    ddf = dd.from_map(lambda _: frame, range(40), meta=frame)
    found = list(ddf.exo.groupby("page").agg_online({"views": "sum"}, every=2))
    assert [round(each.share * 40) for each in found] == [1, 6, 10, 14, 18, 22, 26, 30, 34, 38, 40]
    assert found[-1].frame.views.to_list() == [40] * 100


def test_partitions_without_rows_or_without_keys() -> None:
    keys = [], [None, None], [1.0, None]
    parts = [pd.DataFrame({"k": pd.Series(k, dtype="float64"), "x": 1.0}) for k in keys]
    ddf = dd.from_map(lambda i: parts[i], range(3), meta=parts[2])
    spec = {"x": ["sum", "nunique", "approx_nunique"]}
    *_, last = ddf.exo.groupby("k").agg_online(spec)
    assert last.frame.to_numpy().round().tolist() == [[1, 1, 1]]
