"""Joins by keys that are looked up, which have to be those of pandas."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from dask_exo import Scheduler
from dask_exo.dask_adapter import merge_chunk
from dask_exo.partitions.kernels import array_join
from dask_exo.testing import InlineFutures

EXO = Scheduler(InlineFutures())


@pytest.fixture
def rows(monkeypatch) -> list[bool]:
    """Whether rows were found, each time."""
    seen: list[bool] = []
    original = array_join._matching_rows

    def see(*args, **options):
        found = original(*args, **options)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(array_join, "_matching_rows", see)
    return seen


def table(keys, name: str, dtype="int64", label: str = "k") -> pd.DataFrame:
    n = len(keys)
    return pd.DataFrame(
        {
            f"{name}_at": np.arange(n),
            label: np.array(keys, dtype),
            f"{name}_flag": np.arange(n) % 2 == 0,
            f"{name}_small": np.arange(n, dtype="int16"),
            f"{name}_text": pd.array([f"{name}{i}" for i in range(n)], dtype="str"),
            f"{name}_time": pd.Timestamp("2020") + pd.to_timedelta(np.arange(n), unit="s"),
            f"{name}_n": pd.array([None if i % 3 == 0 else i for i in range(n)], dtype="Int64"),
        },
        index=np.arange(n) + 7,
    )


def both(lhs, rhs, **options) -> tuple[pd.DataFrame, pd.DataFrame]:
    given = {"suffixes": ("_x", "_y"), "left_index": False, "indicator": False, **options}
    how = options.get("how", "inner")
    meta = lhs.head(0).merge(rhs.head(0), **{**options, "how": "inner" if "semi" in how else how})
    return (
        array_join.merge(lhs, rhs, result_meta=meta, fewest=0, **given),
        merge_chunk(lhs, rhs, result_meta=meta, **given),
    )


few = st.lists(st.integers(0, 60), max_size=60)


@given(
    left=few,
    right=few,
    how=st.sampled_from(["inner", "left", "leftsemi", "right", "outer"]),
    dtype=st.sampled_from(["int8", "uint16", "int32", "int64", "uint64"]),
    unique=st.sampled_from(["left", "right", "both", "none"]),
    same=st.booleans(),
)
def test_rows_are_those_of_pandas_in_its_order(left, right, how, dtype, unique, same) -> None:
    if unique in ("left", "both"):
        left = list(dict.fromkeys(left))
    if unique in ("right", "both"):
        right = list(dict.fromkeys(right))
    lhs = table(left, "l", dtype)
    rhs = table(right, "r", dtype, "k" if same else "other")
    if how == "leftsemi":
        rhs = rhs[["k" if same else "other"]]
    got, expected = both(lhs, rhs, how=how, left_on="k", right_on="k" if same else "other")
    assert_frame_equal(got, expected)


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ([-(2**63), 2**63 - 1, 5, 6], [5, 6, 9], True),
        ([5, 2**63 - 1], [-(2**63), 5], False),
        ([3, 3, 4, 1], [4, 4, 3], False),
        ([-3, -2, -1], [-1, -3], True),
    ],
    ids=["keys far away", "a range that is too wide", "several on both sides", "below zero"],
)
def test_extreme_keys(left, right, found, rows) -> None:
    got, expected = both(table(left, "l"), table(right, "r"), left_on=["k"], right_on=["k"])
    assert_frame_equal(got, expected)
    assert rows == [found]


@pytest.mark.parametrize(
    ("lhs", "rhs", "options"),
    [
        (table([1, 2], "l"), table([1, 2], "l"), {"on": "k"}),
        (table([1, 2], "l"), table([1, 2], "r", "int32"), {"left_on": "k", "right_on": "k"}),
        (
            table([1, 2], "l", "float64"),
            table([1], "r", "float64"),
            {"left_on": "k", "right_on": "k"},
        ),
        (table([1, 2], "l"), table([1], "r"), {"left_on": "k", "right_index": True}),
        (table([1, 2], "l"), table([1, 2], "l"), {"left_on": "k", "right_on": "k"}),
        (table([1, 2], "l"), table([], "r"), {"left_on": "k", "right_on": "k"}),
        (
            table([1, 2], "l").astype({"l_text": "category"}),
            table([1, 2], "r"),
            {"left_on": "k", "right_on": "k"},
        ),
        (table([1, 2], "l"), table([1], "r"), {"left_on": "k", "right_on": "k", "indicator": True}),
    ],
    ids=["on", "types", "floats", "index", "same names", "empty", "categories", "indicator"],
)
def test_what_is_not_known_is_left_to_pandas(lhs, rhs, options, rows) -> None:
    got, expected = both(lhs, rhs, **options)
    assert_frame_equal(got, expected)
    assert rows == []


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize(("parts", "broadcast"), [(1, None), (4, None), (2, True)])
def test_a_merge_of_dask(how, parts, broadcast, rows) -> None:
    rng = np.random.default_rng(3)
    lhs = table(rng.integers(0, 900, 8 * array_join.FEWEST), "l")
    rhs = table(rng.permutation(1000)[:700], "r")
    left, right = dd.from_pandas(lhs, npartitions=4), dd.from_pandas(rhs, npartitions=parts)
    query = left.merge(right, on="k", how=how, broadcast=broadcast)
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        got = query.compute(scheduler=EXO)
        expected = query.compute(scheduler="sync")
    assert any(rows)
    by = ["l_at"]
    assert_frame_equal(
        got.sort_values(by, ignore_index=True), expected.sort_values(by, ignore_index=True)
    )
