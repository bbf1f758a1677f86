"""Key filters: rows with a partner pass, and few others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.kernels.key_filter import KeyFilter, can_filter, union

INTEGERS = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 255, 2**53, 2**53 + 1, 2**63 - 1])
TEXTS = st.sampled_from(["", "a", "b", "ab", "ä", "a" * 300, None])


def frame(values: list[object], dtype: object = None) -> pd.DataFrame:
    return pd.DataFrame({"k": pd.Series(values, dtype=dtype), "j": np.arange(len(values)) % 3})


@pytest.mark.parametrize("columns", [["k"], ["k", "j"]])
@given(st.one_of(*(st.tuples(*[st.lists(kind)] * 2, st.just(kind)) for kind in (INTEGERS, TEXTS))))
def test_every_row_with_a_partner_passes(columns, drawn):
    *both, kind = drawn
    left, right = (frame(values, "int64" if kind is INTEGERS else "str") for values in both)
    parts = [right[:2], right[2:]]
    filters = [KeyFilter.of([part], columns, len(right)) for part in parts]
    passed = union(*filters).contains(left, columns)
    numbered = left.assign(row=range(len(left)))
    assert set(numbered.merge(right, on=columns).row) <= set(np.flatnonzero(passed))


@pytest.mark.parametrize("kind", ["int64", "str"])
def test_few_rows_without_a_partner_pass(kind):
    keys = frame(list(range(10_000)), "int64").astype({"k": kind})
    others = frame(list(range(10_000, 110_000)), "int64").astype({"k": kind})
    found = KeyFilter.of([keys], ["k"], len(keys))
    assert found.contains(keys, ["k"]).all()
    assert found.contains(others, ["k"]).mean() < 1 / 12


def test_integers_of_any_width_are_equal():
    found = KeyFilter.of([frame([1, 200], "uint8")], ["k"], 2)
    rows = frame([1, 200, 7], "int64")
    assert found.contains(rows, ["k"]).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", ["float64", "Int64", "category", "datetime64[ns]", "bool"])
def test_keys_of_other_dtypes_all_pass(dtype):
    values = pd.Series([1, 0]).astype(dtype)
    assert not can_filter(values.dtype, values.dtype)
    known = KeyFilter.of([frame([5], "int64")], ["k"], 1)
    assert known.contains(values.to_frame("k"), ["k"]).all()
    unknown = union(known, KeyFilter.of([values.to_frame("k")], ["k"], 2))
    assert unknown.contains(frame([5, 6], "int64"), ["k"]).all()


def test_no_rows():
    assert not KeyFilter.of([], ["k"], 0).contains(frame([1], "int64"), ["k"]).any()
    assert len(KeyFilter.of([], ["k"], 0).contains(frame([], "int64"), ["k"])) == 0
