"""``ddf.exo.merge``: the rows that pandas gives, in partitions about equally long."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.errors import ColumnError, MergeArgumentError
from dask_exo.planning.expressions import ExoShuffle
from dask_exo.planning.rewrite import rewrite
from dask_exo.report import recording
from tests._data import compute

pytestmark = pytest.mark.filterwarnings(
    "ignore:Merging dataframes with merge column data", "ignore:You are merging on int and float"
)


def text(column):
    return column.astype(str).replace("-0.0", "0.0")  # which one an index takes is not said


def same(got, want, *, index=False):
    got, want = (one.reset_index(drop=not index) for one in (got, want))
    columns = list(want.columns)
    got, want = (one.sort_values(columns, key=text).reset_index(drop=True) for one in (got, want))
    pd.testing.assert_frame_equal(got, want, check_dtype=False)


def keys(dtype):
    numbers = st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4])
    if dtype == "f8":
        return st.one_of(numbers, st.sampled_from([None, -0.0, 2.5]))
    if dtype == "i8":  # Dask hashes numbers as floats, which makes the last three one
        return st.one_of(numbers, st.sampled_from([2**53, 2**53 + 1, 2**53 + 2]))
    return numbers.map(lambda n: f"key {n}") if dtype == "str" else numbers


@st.composite
def sides(draw):
    dtype = draw(st.sampled_from(["i8", "f8", "str"]))
    other = dtype if dtype != "f8" else draw(st.sampled_from(["f8", "i4"]))
    left = pd.Series(draw(st.lists(keys(dtype), max_size=60)), dtype=dtype)
    right = pd.Series(draw(st.lists(keys(other), max_size=60)), dtype=other)
    return (
        pd.DataFrame({"k": left, "j": np.arange(len(left)) % 2, "a": range(len(left))}),
        pd.DataFrame({"k": right, "j": np.arange(len(right)) % 3, "b": range(len(right))}),
    )


BOTH = {"left_index": True, "right_index": True}


@settings(max_examples=60)
@given(
    sides(),
    st.sampled_from(["inner", "left", "right", "outer"]),
    st.integers(2, 6),
    st.sampled_from([{"on": "k"}, {"on": ["j", "k"]}, BOTH, {"left_index": True, "right_on": "k"}]),
    st.booleans(),
)
def test_it_gives_the_rows_of_pandas(frames, how, parts, on, plain):
    left, right = frames
    if "left_index" in on:
        left = left.set_index("k")
    if "right_index" in on:
        right = right.set_index("k")
    ours, theirs = (dd.from_pandas(one, npartitions=parts, sort=False) for one in (left, right))
    merged = ours.exo.merge(theirs, how=how, indicator=True, **on)
    got = merged.compute(scheduler="sync") if plain else compute(merged)
    same(got, left.merge(right, how=how, indicator=True, **on), index=on == BOTH)


RNG = np.random.default_rng(0)
LEFT = pd.DataFrame({
    "k": np.where(RNG.random(4000) < 0.9, 7, RNG.integers(0, 400, 4000)), "a": range(4000)
})  # fmt: skip
RIGHT = pd.DataFrame({"key": range(300), "b": [f"b{i}" for i in range(300)], "a": 1})
OURS, THEIRS = dd.from_pandas(LEFT, npartitions=8), dd.from_pandas(RIGHT, npartitions=8)
ON = {"left_on": "k", "right_on": "key"}


@pytest.mark.parametrize(
    ("how", "hot"),
    [
        ("inner", "left"),
        ("left", "right"),
        ("right", "left"),
        ("outer", "right"),
        ("outer", "both"),
    ],
)
def test_one_key_in_nine_of_ten_rows_makes_no_large_partition(how, hot):
    def largest(merged):
        lengths = compute(merged.map_partitions(len, meta=(None, "i8")))
        return lengths.max() / lengths.mean()

    many, few = LEFT, RIGHT.rename(columns={"key": "k"})
    if hot == "both":  # 40 rows more of the frequent key, and one that only one side has
        alone = pd.DataFrame({"k": 1000, "b": "alone", "a": range(3000)})
        few = pd.concat([few, few[few.k == 7].iloc[[0] * 40], alone])
    left, right = (few, many) if hot == "right" else (many, few)
    ours, theirs = (dd.from_pandas(one, npartitions=8) for one in (left, right))
    merged = ours.exo.merge(theirs, how, on="k")
    assert largest(merged) < 1.5
    same(compute(merged), left.merge(right, how, on="k"))
    assert largest(ours.merge(theirs, how, on="k", broadcast=False)) > (4 if hot == "both" else 6)


def test_it_is_two_exoshuffles_and_reads_only_what_is_asked_for():
    merged = OURS.exo.merge(THEIRS, **ON)
    with recording() as stats:
        same(compute(merged), LEFT.merge(RIGHT, **ON))
    assert [(one.maps, one.reducers) for one in stats.shuffles] == [(8, 8), (8, 8)]
    narrow = merged[["b"]].optimize(fuse=False)
    read = {tuple(node.columns) for node in narrow.expr.walk() if not node.dependencies()}
    assert read == {("k",), ("key", "b")}
    assert compute(merged[merged.b == "b7"].a_x.sum()) == LEFT.a[LEFT.k == 7].sum()


@pytest.mark.parametrize("method", ["tasks", "p2p", "disk"])
def test_who_needs_a_key_whole_gets_it_whole(method):
    with dask.config.set({"dataframe.shuffle.method": method}):
        merged = OURS.exo.merge(THEIRS, **ON)
        want = LEFT.merge(RIGHT, **ON)
        sizes = merged.groupby("k").apply(len, meta=(None, "i8"))
        pd.testing.assert_series_equal(
            compute(sizes).sort_index(), want.groupby("k").size(), check_names=False
        )
        again = merged.merge(dd.from_pandas(RIGHT.assign(c=2), npartitions=8), on="key")
        assert len(compute(again)) == len(want)
        unique = merged.drop_duplicates("k", split_out=8)
        assert sorted(compute(unique.k)) == sorted(want.k.unique())


def test_small_sides_categories_suffixes_and_several_keys():
    one = dd.from_pandas(RIGHT, npartitions=1)
    same(compute(OURS.exo.merge(one, "left", **ON)), LEFT.merge(RIGHT, "left", **ON))
    left = LEFT.assign(s=LEFT.k.astype(str).astype("category"))
    right = RIGHT.assign(s=RIGHT.key.astype(str).astype("category"))
    both = {"left_on": ["s", "k"], "right_on": ["s", "key"], "suffixes": ("", "_r")}
    merged = dd.from_pandas(left, npartitions=5).exo.merge(
        dd.from_pandas(right, npartitions=3), indicator=True, how="outer", npartitions=4, **both
    )
    assert merged.npartitions == 4
    want = left.astype({"s": str}).merge(
        right.astype({"s": str}), how="outer", indicator=True, **both
    )
    same(compute(merged).astype({"s": str}), want)
    semi = compute(OURS.exo.merge(THEIRS[["key"]], "leftsemi", **ON))
    assert sorted(semi.a) == LEFT.a[LEFT.k.isin(RIGHT.key)].tolist()
    # columns that both have
    same(compute(OURS.exo.merge(THEIRS)), LEFT.merge(RIGHT))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"on": "kk"}, ColumnError, "no column 'kk' to join on: did you mean 'k'"),
        ({"left_on": "k"}, MergeArgumentError, "join the right side on: need right_on="),
        ({"on": "i"}, MergeArgumentError, "'i' is the index of the left side.*left_index=True"),
        ({"left_index": True, **ON}, MergeArgumentError, "left_on='k' and left_index=True: give"),
        ({"on": "a", "left_index": True}, MergeArgumentError, "on='a' is given, and left_on"),
        (
            {"left_index": True, "right_on": ["a", "key"]},
            MergeArgumentError,
            r"left_index=True, right_on=\['a', 'key'\]: need as many",
        ),
        (
            {"left_on": "k", "right_index": True, "how": "leftsemi"},
            MergeArgumentError,
            "need columns of the right side",
        ),
        ({"left_on": ["k", "a"], "right_on": "key"}, MergeArgumentError, "as many keys"),
        ({"on": []}, MergeArgumentError, "as many keys"),
        ({"how": "cross", **ON}, ValueError, "cross"),
    ],
)
def test_what_cannot_be_asked(arguments, error, message):
    with pytest.raises(error, match=message):
        OURS.rename_axis(index="i").exo.merge(THEIRS, **arguments)


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        ({"on": "k"}, [True, True]),
        ({"on": "k", "how": "outer"}, [True, True]),
        ({"left_on": "k", "right_index": True}, [False, False]),
    ],
    ids=str,
)
def test_labels_of_rows_that_a_join_ignores_do_not_travel(options, dropped) -> None:
    labels = pd.Index(range(100, 160), name="i")
    left = pd.DataFrame({"k": np.arange(60) % 7, "a": range(60)}, labels)
    right = pd.DataFrame({"k": np.arange(60) % 9, "b": range(60)}, labels)
    parts = [dd.from_pandas(side, npartitions=4, sort=False) for side in (left, right)]
    program = parts[0].merge(parts[1], **options, shuffle_method="tasks", broadcast=False)
    nodes = rewrite(program.expr.optimize(fuse=False)).walk()
    found = {node._name: node.ignore_index for node in nodes if isinstance(node, ExoShuffle)}
    assert list(found.values()) == dropped
    same(compute(program), left.merge(right, **options), index="right_index" in options)
