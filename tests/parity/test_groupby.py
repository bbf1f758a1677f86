"""``ddf.exo.groupby``: what pandas finds, and no group makes a large partition."""

from __future__ import annotations

import itertools

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo import explain
from dask_exo.dask_adapter import new_collection
from dask_exo.dataframe.groupby import AGGREGATES
from dask_exo.errors import AggregationError, ColumnError
from dask_exo.partitions.kernels import skew
from dask_exo.partitions.kernels.skew import VALUE
from dask_exo.testing import InlineFutures
from tests._data import NODES, compute

HOT = st.sampled_from([7, 7, 7, 7, 7, 7, 1, 2, 9])
VALUES = {
    "f8": st.one_of(st.none(), st.sampled_from([-0.0, 0.0, 1.5, 2.25]), st.floats(-9, 9)),
    "Int64": st.one_of(st.none(), st.integers(-3, 3)),
    "M8[ns]": st.one_of(st.none(), st.integers(0, 50)),
    "i8": st.integers(2**53, 2**53 + 5),
}


@st.composite
def frames(draw):
    dtype = draw(st.sampled_from(sorted(VALUES)))
    rows = draw(st.lists(st.tuples(HOT, st.sampled_from("ab"), VALUES[dtype]), max_size=60))
    source = pd.DataFrame(rows, columns=["k", "s", "x"])
    source["x"] = pd.Series(source["x"].to_numpy(object), dtype=object).astype(dtype)
    kind = draw(st.sampled_from(["i8", "f8", "str", "category"]))
    source["k"] = source["k"].astype("str" if kind in ("str", "category") else kind).astype(kind)
    if kind == "f8":
        source["k"] = source["k"].mask(source["k"] == 9)
    return source


def same(got, want):
    pd.testing.assert_frame_equal(
        got.sort_index(), want, check_dtype=False, check_index_type=False, check_column_type=False
    )


@settings(max_examples=10)
@given(frames(), st.integers(1, 6), st.sampled_from(["k", ["k", "s"]]), st.booleans())
def test_it_gives_what_pandas_gives(source, parts, by, several) -> None:
    spec = {"x": ["median", "nunique", "count"], "s": ["nunique", "first"]}
    spec = spec if several else {"x": "quantile", "k": "nunique"}
    ddf = dd.from_pandas(source, npartitions=parts, sort=False)
    groups = source.groupby(by, observed=True)
    same(compute(ddf.exo.groupby(by).agg(spec)), groups.agg(spec))


@given(frames(), st.lists(st.integers(0, 60), max_size=6), st.sampled_from(["k", "s", "both"]))
def test_ranks_of_groups_that_are_cut_anywhere(source, cuts, by) -> None:
    by, asked = ["k", "s"] if by == "both" else [by], [None, 0.0, 0.3, 0.5, 0.99, 1.0]
    source = source.dropna(subset="k").rename(columns={"x": VALUE})
    ordered = source.sort_values([*by, VALUE], ignore_index=True)
    limits = [0, *sorted(min(cut, len(ordered)) for cut in cuts), len(ordered)]
    parts = [ordered.iloc[a:b] for a, b in itertools.pairwise(limits)]
    spanning = skew.spanning_groups(*(skew.edge_groups(part, by) for part in parts))
    picked = pd.concat(
        [skew.pick_ranked_rows(p, by, spanning, asked, j) for j, p in enumerate(parts)]
    )
    assert len(picked) <= 2 * len(asked) * len(spanning)
    names = [str(rank) for rank in asked]
    found = [
        skew.finish_quantiles(part, by, spanning, picked, asked, names, j)
        for j, part in enumerate(parts)
    ]
    groups = source.groupby(by, observed=True)[VALUE]
    want = {str(r): groups.median() if r is None else groups.quantile(r) for r in asked}
    got = pd.concat([one for one in found if len(one)] or found[:1]).set_index(by)
    assert got.index.is_unique
    same(got, pd.DataFrame(want))


def pages(exponent: float | None, rows: int = 20_000) -> pd.DataFrame:
    """Rows with keys by Zipf's law, or with one in nine of ten."""
    rng = np.random.default_rng(0)
    if exponent is None:
        keys = np.where(rng.random(rows) < 0.9, 7, rng.integers(0, 100, rows))
    else:
        keys = rng.zipf(exponent, rows).clip(max=1000)
    return pd.DataFrame({"k": keys, "x": rng.integers(0, rows, rows), "y": rng.random(rows)})


@pytest.mark.parametrize("exponent", [1.5, None])
def test_no_group_makes_a_large_partition(exponent) -> None:
    source = pages(exponent)
    ddf = dd.from_pandas(source, npartitions=8)
    spec = {"x": ["nunique", "sum"], "y": ["median"]}
    found = ddf.exo.groupby("k").agg(spec)
    same(compute(found), source.groupby("k").agg(spec))
    steps = {type(node).__name__: node for node in found.expr.walk()}
    for step in (steps["GroupRanks"].frame, steps["DropDuplicates"]):
        lengths = compute(new_collection(step).map_partitions(len, meta=(None, "i8")))
        assert lengths.max() <= 1.3 * lengths.mean()


def test_quantiles_of_several_columns_are_in_the_order_of_pandas() -> None:
    source = pages(None, 3000).assign(s=lambda frame: frame.x % 3)
    ddf = dd.from_pandas(source, npartitions=5)
    found = ddf.exo.groupby(["s", "k"]).quantile(["y", "x"], [0.9, 0.1], npartitions=3)
    assert found.npartitions == 3
    want = source.groupby(["s", "k"])[["y", "x"]].quantile([0.9, 0.1])
    got = compute(found)
    pd.testing.assert_frame_equal(got.loc[want.index], want)
    assert list(got.columns) == list(found.columns)
    one = compute(ddf.exo.groupby("s").quantile("x", 0.25))
    same(one, source.groupby("s")[["x"]].quantile(0.25))


def test_explain_says_how_groups_are_cut() -> None:
    ddf = dd.from_pandas(pages(None, 100), npartitions=2)
    found = ddf.exo.groupby("k").quantile("x", [0.5, 0.9])
    (line,) = explain(found, nbytes="1MB", futures=InlineFutures(NODES[2])).heavy_hitters
    assert line.startswith("quantile 0.5, quantile 0.9 of x by group: sorted by group and value")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda g: g.agg({"x": "mode"}), AggregationError, "'mode' is not an aggregate: there are"),
        (
            lambda g: g.agg({"x": [len]}),
            AggregationError,
            "len.* is not an aggregate.*groupby.*apply",
        ),
        (
            lambda g: g.agg({"x": ["sum", "sum"]}),
            AggregationError,
            "'sum' of 'x' is requested twice",
        ),
        (lambda g: g.agg({}), AggregationError, "is empty: there are"),
        (lambda g: g.agg({"z": "sum"}), ColumnError, "no column 'z' to aggregate"),
        (lambda g: g.agg({"s": ["median"]}), AggregationError, "median of 's': .*need numbers"),
        (lambda g: g.quantile("s"), AggregationError, "quantile of 's': .*need numbers or times"),
        (lambda g: g.quantile("x", 1.1), AggregationError, r"q=1.1: need .* from 0 to 1"),
        (lambda g: g.quantile("x", []), AggregationError, "shares from 0 to 1"),
        (lambda g: g.agg({"x": "sum"}, npartitions=0), AggregationError, "npartitions=0: need"),
    ],
)
def test_what_cannot_be_asked(call, kind, message) -> None:
    ddf = dd.from_pandas(pages(None, 100).assign(s="a"), npartitions=2)
    with pytest.raises(kind, match=message):
        call(ddf.exo.groupby("k"))
    with pytest.raises(AggregationError, match="names no column to group by"):
        ddf.exo.groupby([])


def test_all_aggregates_beside_each_other() -> None:
    source = pages(None, 2000)
    spec = {"x": list(AGGREGATES), "y": "max"}
    found = dd.from_pandas(source, npartitions=4).exo.groupby("k").agg(spec)
    same(compute(found), source.groupby("k").agg(spec))
