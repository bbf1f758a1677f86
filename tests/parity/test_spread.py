"""Joins whose large reducers are divided: equal to those of pandas, and no task stands out."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo import events
from dask_exo.shuffle import key_filters, spread
from tests._data import inline

ALGORITHMS = ["simple", "push", "riffle", "magnet", "two-level", "streaming"]
JOIN = {"broadcast": False, "shuffle_method": "tasks"}
PARTS = 10


@pytest.fixture(autouse=True)
def _divide_small_joins(monkeypatch):
    monkeypatch.setattr(spread, "SMALL", 0)


def views(rows=20_000, share=0.9):
    """Rows of which most have one key."""
    rng = np.random.default_rng(1)
    keys = np.where(rng.random(rows) < share, 7, rng.integers(0, 2000, rows))
    return pd.DataFrame({"k": keys, "x": np.arange(rows), "z": rng.integers(0, 9, rows)})


def pages(rows=2000):
    return pd.DataFrame({"k": np.arange(rows), "y": np.arange(rows) % 13})


def both(parts=PARTS):
    return dd.from_pandas(views(), npartitions=parts), dd.from_pandas(pages(), npartitions=parts)


def compute(collection, nodes=2, **config):
    """Compute; return the result, the divided reducers of each shuffle, and rows of all tasks."""
    seen: list[events.Event] = []
    with dask.config.set(scheduler=inline(nodes), **config), events.observing(seen.append):
        result = collection.compute()
    return result, [e.reducers for e in seen if isinstance(e, events.ReducersDivided)]


def sorted_rows(frame):
    return frame.sort_values([*frame.columns], ignore_index=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_output_is_much_larger_than_the_others(algorithm, tmp_path):
    left, right = both()
    joined = left.merge(right, on="k", **JOIN)
    with dask.config.set({"exo.shuffle.algorithm": algorithm}):
        _, divided = compute_parquet(joined, tmp_path)
    assert divided == [1, 1]
    written = [pd.read_parquet(path) for path in sorted(tmp_path.glob("*.parquet"))]
    rows = [len(part) for part in written]
    assert len(rows) == PARTS
    assert max(rows) <= 2 * np.mean(rows)
    expected = views().merge(pages(), on="k")
    pd.testing.assert_frame_equal(sorted_rows(pd.concat(written)), sorted_rows(expected))


def compute_parquet(joined, path):
    return compute(joined.to_parquet(path, write_index=False, compute=False))


@pytest.mark.parametrize("how", ["inner", "left", "right", "leftsemi", "outer"])
@pytest.mark.parametrize("frequent", ["left", "right"])
def test_every_kind_of_join(how, frequent, tmp_path):
    left, right = views(), pages(1500)
    if frequent == "right":
        left, right = right, left
    if how == "leftsemi":
        right = right[["k"]]
        expected = left[left.k.isin(right.k)]
    else:
        expected = left.merge(right, on="k", how=how)
    left, right = dd.from_pandas(left, npartitions=PARTS), dd.from_pandas(right, npartitions=PARTS)
    _, divided = compute_parquet(left.merge(right, on="k", how=how, **JOIN), tmp_path)
    found = dd.read_parquet(tmp_path).compute(scheduler="sync")
    pd.testing.assert_frame_equal(
        sorted_rows(found), sorted_rows(expected), check_dtype=how != "outer"
    )
    dealt = {"left": ("inner", "left", "leftsemi"), "right": ("inner", "right")}[frequent]
    assert bool(divided) == (how in dealt)


QUERIES = {
    "sum": (lambda m: m.x.sum(), 1),
    "size": (lambda m: m.size, 1),
    "mean": (lambda m: m.y.mean(), 1),
    "elementwise": (lambda m: m[m.y > 3].assign(v=m.x * 2).v.max(), 1),
    "groups": (lambda m: m.groupby("z").agg({"x": ["sum", "mean"], "y": "max"}), 1),
    "many groups": (lambda m: m.groupby("y").x.sum(split_out=3), 1),
    "another join": (lambda m: m.merge(users(), on="x", **JOIN).w.sum(), 1),
    "a result": (lambda m: m, 0),
    "groups of the key": (lambda m: m.groupby("k").x.sum(split_out=4), 0),
    "the same key again": (lambda m: m.merge(pages_again(), on="k", **JOIN).x.sum(), 0),
    "a function of partitions": (lambda m: m.map_partitions(len).sum(), 0),
    "rows of groups": (lambda m: m.groupby("k").apply(len, meta=(None, "i8")), 0),
    "first rows": (lambda m: m.head(5, compute=False), 0),
    "first values": (lambda m: m.groupby("z").x.first(), 0),
    "first of several": (lambda m: m.groupby("z").agg({"x": ["sum", "first"]}), 0),
    "a reduction of the user": (lambda m: m.reduction(lambda d: d.k.nunique(), np.sum), 0),
    "rows beside others": (lambda m: (m.x + m.y).sum() + m.x.max(), 1),
}


def users():
    return dd.from_pandas(views().assign(w=3)[["x", "w"]], npartitions=PARTS)


def pages_again():
    frame = pages().rename(columns={"y": "q"})
    return dd.from_pandas(frame, npartitions=PARTS)


@pytest.mark.parametrize("name", QUERIES)
def test_it_is_divided_where_nothing_depends_on_its_partitions(name):
    query, shuffles = QUERIES[name]
    left, right = both()
    result = query(left.merge(right, on="k", **JOIN))
    found, divided = compute(result)
    expected = result.compute(scheduler="sync")
    if hasattr(expected, "sort_index"):
        found, expected = found.sort_index(), expected.sort_index()
        assert found.equals(expected)
    else:
        assert found == expected
    assert len(divided) == 2 * shuffles


def test_rows_of_a_frame_beside_the_join_stay_with_theirs():
    left, right = both()
    joined = left.merge(right, on="k", **JOIN)
    other = left.shuffle("k", npartitions=PARTS).clear_divisions()
    result = (joined.x + other.x).count()
    assert compute(result) == (result.compute(scheduler="sync"), [])


def test_a_side_with_two_readers_is_whole():
    left, right = both()
    shuffled = left.shuffle("k", npartitions=PARTS)
    joined = shuffled.merge(right.shuffle("k", npartitions=PARTS), on="k", **JOIN)
    _, divided = compute(joined.x.sum() + shuffled.x.sum())
    assert not divided


def test_categories_of_a_result_depend_on_all_values():
    left, right = both()
    right = right.assign(c=right.y.astype(str).astype("category"))
    assert not compute(left.merge(right, on="k", **JOIN).groupby("c").x.sum())[1]


def test_an_index_is_joined_too():
    left, right = views().set_index("k"), pages().set_index("k")
    expected = left.join(right, how="inner")
    left = dd.from_pandas(left, npartitions=PARTS, sort=False)
    right = dd.from_pandas(right, npartitions=PARTS, sort=False)
    joined = left.merge(right, left_index=True, right_index=True, how="inner", **JOIN)
    found, divided = compute((joined.x * joined.y).sum())
    assert found == (expected.x * expected.y).sum()
    assert divided == [1, 1]


def test_a_failed_side_holds_nobody_up():
    def fail(part):
        raise ValueError("no such luck")

    left, right = both()
    for sides in (
        (left, right.map_partitions(fail, meta=right._meta)),
        (
            left.map_partitions(fail, meta=left._meta),
            right,
        ),
    ):
        total = sides[0].merge(sides[1], on="k", **JOIN).x.sum()
        with dask.config.set(scheduler=inline(2)):
            persisted = total.persist()
            for each in (total, persisted):
                with pytest.raises(ValueError, match="no such luck"):
                    each.compute()


def test_a_side_that_is_filtered_is_divided(monkeypatch):
    monkeypatch.setattr(key_filters, "SMALL", 0)
    left, right = dd.from_pandas(views(), npartitions=40), dd.from_pandas(pages(50), npartitions=4)
    result = left.merge(right, on="k", **JOIN).x.sum()
    found, divided = compute(result)
    assert found == views().merge(pages(50), on="k").x.sum()
    assert divided == [1, 1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=300),
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.sampled_from(["inner", "left", "right", "leftsemi"]),
    st.integers(2, 7),
    st.integers(1, 3),
)
def test_any_keys(left, right, how, parts, nodes):
    left = pd.DataFrame({"k": left, "x": range(len(left))})
    right = pd.DataFrame({"k": right, "y": range(len(right))})
    if how == "leftsemi":
        right, expected = right[["k"]], left[left.k.isin(right.k)]
    else:
        expected = left.merge(right, on="k", how=how)
    sides = (dd.from_pandas(side, npartitions=parts) for side in (left, right))
    joined = next(sides).merge(next(sides), on="k", how=how, **JOIN)
    sums = ["count"] if how == "leftsemi" else ["sum", "count"]
    value = "x" if how == "leftsemi" else "y"
    found, _ = compute(joined.groupby("x").agg({value: sums}, split_out=2), nodes)
    grouped = expected.groupby("x").agg({value: sums})
    pd.testing.assert_frame_equal(
        found.sort_index(), grouped, check_dtype=False, check_index_type=False
    )
