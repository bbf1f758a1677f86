"""Joins whose larger side leaves out rows: equal to Dask's, in rows, order, dtypes and index."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo import events
from dask_exo.execution.background import stop_all
from dask_exo.planning.expressions import ExoShuffle
from dask_exo.planning.rewrite import rewrite
from dask_exo.report import recording
from dask_exo.shuffle import key_filters
from tests._data import inline

pytestmark = pytest.mark.filterwarnings(
    "ignore:Merging dataframes with merge column data", "ignore:You are merging on int and float"
)
ALGORITHMS = ["simple", "push", "riffle", "magnet", "two-level", "streaming"]
JOIN = {"broadcast": False, "shuffle_method": "tasks"}


@pytest.fixture(autouse=True)
def _filter_small_joins(monkeypatch):
    monkeypatch.setattr(key_filters, "SMALL", 0)


def larger(rows=4000, keys=2000):
    rng = np.random.default_rng(1)
    return pd.DataFrame({"k": rng.integers(0, keys, rows), "a": rng.random(rows), "c": range(rows)})


def smaller(rows=60):
    return pd.DataFrame({"k": np.arange(rows) * 3, "b": np.arange(rows) * 0.5})


def check(collection, nodes=2, *, order=True, **settings):
    """Compare with the synchronous scheduler; return the rows that were left out by shuffle."""
    with dask.config.set(scheduler=inline(nodes), **settings), recording() as collector:
        found = collection.compute()
    with dask.config.set(scheduler="sync"):
        expected = collection.compute()
    if not order:
        found, expected = (
            frame.sort_values([*frame.columns], ignore_index=True) for frame in (found, expected)
        )
    pd.testing.assert_frame_equal(found, expected)
    return sorted(shuffle.left_out for shuffle in collector.figures().shuffles)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_leaves_rows_out(algorithm):
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    joined = left.merge(right, on="k", **JOIN)
    none, some = check(joined, **{"exo.shuffle.algorithm": algorithm})
    assert none == 0
    assert some > 3000  # all but those of the first part, and one in sixteen


@pytest.mark.parametrize(
    ("how", "filters"), [("inner", 1), ("left", 0), ("right", 1), ("outer", 0), ("leftsemi", 1)]
)
def test_only_rows_that_the_join_drops_are_left_out(how, filters):
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    assert sum(map(bool, check(left.merge(right, on="k", how=how, **JOIN)))) == filters
    if how != "leftsemi":
        other = {"left": "right", "right": "left"}.get(how, how)
        assert sum(map(bool, check(right.merge(left, on="k", how=other, **JOIN)))) == filters


def test_rows_for_other_readers_are_sent():
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    shuffled = left.shuffle("k", npartitions=12)
    joined = shuffled.merge(right.shuffle("k", npartitions=12), on="k", **JOIN)
    both = dd.concat([joined[["a", "c"]], shuffled[["a", "c"]]])
    assert check(both.reset_index(drop=True), order=False) == [0, 0]


def test_categories_of_a_result_depend_on_all_rows():
    left = dd.from_pandas(larger().assign(s=lambda f: f.k.astype(str)), npartitions=12)
    right = dd.from_pandas(smaller().assign(s=lambda f: f.k.astype(str)), npartitions=3)
    right = right.assign(s=right.s.astype("category"))
    assert check(left.merge(right, on=["k", "s"], **JOIN)) == [0, 0]


def test_an_indicator_is_no_obstacle():
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    assert any(check(right.merge(left, on="k", how="left", indicator=True, **JOIN)))


def test_a_chain_of_joins_filters_by_its_smallest_side():
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    middle = larger(1000).rename(columns={"a": "d", "c": "e"})
    middle = dd.from_pandas(middle, npartitions=12)
    chained = right.merge(middle, on="k", **JOIN).merge(left, on="k", **JOIN)
    assert sum(map(bool, check(chained))) == 2


def test_some_partitions_of_a_join():
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    joined = left.merge(right, on="k", **JOIN)
    assert any(check(joined.partitions[2]))
    assert any(check(dd.concat([joined.partitions[5], joined.partitions[1]])))


def test_a_failed_side_holds_nobody_up():
    def fail(part):
        if len(part):
            raise ValueError("no such luck")
        return part

    left = dd.from_pandas(larger(), npartitions=12)
    right = dd.from_pandas(smaller(), npartitions=3)
    broken = left.merge(right.map_partitions(fail, meta=right._meta), on="k", **JOIN)
    with dask.config.set(scheduler=inline(2)):
        persisted = broken.persist()
        for joined in (broken, persisted):
            with pytest.raises(ValueError, match="no such luck"):
                joined.compute()
    stop_all()  # whoever records next must not hear of what persists here


def test_a_side_that_is_read_from_a_checkpoint_is_whole(tmp_path):
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=3)
    kept = {"exo.checkpoint.path": str(tmp_path), "exo.checkpoint.keep": "all"}
    assert check(left.merge(right, on="k", **JOIN), **kept) == [0, 0]
    other = left.shuffle("k", npartitions=12, ignore_index=True)
    check(other.reset_index(drop=True), order=False, **kept)


def test_the_larger_side_waits_for_the_smaller_one():
    left, right = dd.from_pandas(larger(), npartitions=12), dd.from_pandas(smaller(), npartitions=6)
    seen: list[events.Event] = []
    with dask.config.set(scheduler=inline(2)), events.observing(seen.append):
        left.merge(right, on="k", **JOIN).compute()
    maps = [event.parts for event in seen if isinstance(event, events.PartsCut)]
    ended = len(maps) - maps[::-1].index(6)
    assert maps[:ended].count(12) == 1


KEYS = {
    "i8": st.integers(0, 30),
    "i4": st.integers(0, 30),
    "str": st.one_of(st.none(), st.integers(0, 20).map("key {}".format)),
    "f8": st.one_of(st.none(), st.sampled_from([-0.0, 0.0, 1.0, 2.0, 3.0])),
}


@st.composite
def sides(draw):
    kinds = draw(st.sampled_from([("i8", "i8"), ("i4", "i8"), ("str", "str"), ("f8", "i8")]))
    frames = []
    for kind, name, most in zip(kinds, "ab", draw(st.permutations([80, 12])), strict=True):
        keys = pd.Series(draw(st.lists(KEYS[kind], max_size=most)), dtype=kind)
        rows = {"k": keys, "j": np.arange(len(keys)) % 2, name: np.arange(len(keys))}
        frames.append(pd.DataFrame(rows, index=pd.Index(range(7, 7 + len(keys)), name="i")))
    return frames


@settings(max_examples=60)
@given(
    sides(),
    st.sampled_from(["inner", "left", "right", "outer", "leftsemi"]),
    st.sampled_from([["k"], ["k", "j"]]),
    st.tuples(st.integers(2, 6), st.integers(2, 6)),
    st.sampled_from(ALGORITHMS),
    st.integers(1, 3),
)
def test_random_joins(frames, how, on, npartitions, algorithm, nodes):
    left, right = (
        dd.from_pandas(frame, npartitions=count, sort=False)
        for frame, count in zip(frames, npartitions, strict=True)
    )
    if how == "leftsemi":
        right = right[on]
    check(left.merge(right, on=on, how=how, **JOIN), nodes, **{"exo.shuffle.algorithm": algorithm})


def test_random_chains():
    rng = np.random.default_rng(3)
    hows = ["inner", "left", "right", "inner"]
    for _ in range(20):
        names, sizes = iter("abcde"), rng.permutation([400, 100, 40, 10])
        frames = [
            pd.DataFrame({"k": rng.integers(0, 60, size), next(names): np.arange(size)})
            for size in sizes
        ]
        parts = [dd.from_pandas(frame, npartitions=int(rng.integers(2, 6))) for frame in frames]
        joined = parts[0]
        for part, how in zip(parts[1:], rng.permutation(hows), strict=False):
            joined = joined.merge(part, on="k", how=how, **JOIN)
        check(joined)


def test_numbers_of_shuffles_are_those_of_the_next_program():
    def sides_of():
        left = dd.from_pandas(larger(), npartitions=4).map_partitions(lambda part: part)
        joined = left.merge(dd.from_pandas(smaller(), npartitions=3), on="k", **JOIN)
        expr = rewrite(joined.expr.lower_completely())
        return sorted(node.join for node in expr.walk() if isinstance(node, ExoShuffle))

    assert [len(side.sources) for side in sides_of()] == [1, 1]
    assert sides_of() == sides_of()


def test_joins_below_others_leave_rows_out_too():
    middle = pd.DataFrame({"c": np.arange(4000), "m": np.arange(4000) % 300})
    last = pd.DataFrame({"m": np.arange(20), "d": np.arange(20) * 2.0})
    chained = dd.from_pandas(larger(), npartitions=12)
    for frame, key in (smaller(), "k"), (middle, "c"), (last, "m"):
        chained = chained.merge(dd.from_pandas(frame, npartitions=3), on=key, **JOIN)
    assert sum(map(bool, check(chained, order=False))) == 3
