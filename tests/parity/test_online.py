"""``agg_online`` against pandas: exact at the end, and estimates that are as good as they say."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.errors import AggregationError, ColumnError
from dask_exo.online import AGGREGATES


@pytest.fixture(autouse=True)
def _sync():
    with dask.config.set(scheduler="sync"):
        yield


ROWS = st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.one_of(st.none(), st.integers(-9, 9)))


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
    spec = {"x": list(AGGREGATES), "s": ["count", "nunique"]} if not both else {"x": ["mean"]}
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
    assert len(distances) == 20
    assert distances[0] < 0.08
    assert distances[-1] < 1e-12
    assert np.mean(distances[10:]) < np.mean(distances[:5])
    assert hits / looks > 0.85  # about 99 % of normal ones would be; errors are estimates too


def test_sums_stay_whole_numbers_and_plain_specs_have_plain_columns() -> None:
    ddf = dd.from_pandas(pd.DataFrame({"k": [1, 2] * 20, "n": range(40)}), npartitions=4)
    first, *_, last = ddf.exo.groupby("k").agg_online({"n": "sum"}, every=0.25)
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
        ("language", {}, 0.1, ColumnError, r"no column 'language': there are \['lang', 'views'\]"),
        ("lang", {"visits": "sum"}, 0.1, ColumnError, "no column 'visits'"),
        ("lang", {"views": "median"}, 0.1, AggregationError, "'median' is no aggregate: there are"),
        ("lang", {}, 0.1, AggregationError, "asks for nothing"),
        ("lang", {"views": "sum"}, 0, AggregationError, "every=0: need a share"),
    ],
)
def test_wrong_arguments_are_named_at_once(by, spec, every, kind, message) -> None:
    ddf = dd.from_pandas(pages(100), npartitions=2)
    with pytest.raises(kind, match=message):
        ddf.exo.groupby(by).agg_online(spec, every=every)
