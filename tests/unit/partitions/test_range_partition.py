"""Partition numbers against Dask's own, which makes Python objects of strings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.partitionquantiles import percentiles_summary
from dask.dataframe.shuffle import set_partitions_pre
from dask.utils import random_state_data
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.kernels.argsort import count_up_to
from dask_exo.partitions.kernels.range_partition import (
    partition_numbers,
    sort_index,
    summary,
)

# few characters, so that words agree: one that is a zero byte, and ones of two to four bytes
TEXT = st.text(st.sampled_from("ab\0é漢😀"), max_size=30)
PREFIXED = st.builds(lambda a, b: "a-common-beginning-"[:a] + b, st.integers(0, 19), TEXT)


@given(st.lists(PREFIXED, max_size=40), st.lists(PREFIXED, max_size=12))
def test_bounds_are_counted_as_python_compares(values, bounds) -> None:
    bounds = sorted(bounds)
    expected = [sum(bound <= value for bound in bounds) for value in values]
    assert count_up_to(pa.array(values, pa.large_string()), bounds).tolist() == expected
    chunks = pa.chunked_array([["zz", *values][1:], values[:2], []], pa.string())
    assert count_up_to(chunks, bounds).tolist() == expected + expected[:2]
    assert count_up_to(pa.array(["zz", *values])[1:], bounds).tolist() == expected


@pytest.mark.parametrize("dtype", ["str", "string[pyarrow]", "string[python]", object])
@given(
    st.lists(st.one_of(TEXT, st.none()), min_size=1, max_size=30),
    st.lists(TEXT, min_size=2, max_size=8),
    st.booleans(),
    st.sampled_from(["first", "last"]),
)
def test_partitions_are_those_of_dask(dtype, values, divisions, ascending, na_position) -> None:
    s, bounds = pd.Series(values, dtype=dtype), pd.Series(sorted(divisions), dtype=object)
    got = partition_numbers(s, bounds, ascending, na_position)
    there = s.notna().to_numpy()
    expected = np.empty(len(s), int)
    expected[there] = set_partitions_pre(s[there].astype(object), bounds, ascending, na_position)
    expected[~there] = len(bounds) - 2 if na_position == "last" else 0
    assert np.asarray(got).tolist() == expected.tolist()


NUMBERS = {
    "int64": st.integers(-50, 50),
    "uint8": st.integers(0, 50),
    "float64": st.one_of(st.floats(-50, 50), st.just(float("nan"))),
    "float32": st.floats(-50, 50, width=32),
    "datetime64[ns]": st.one_of(st.integers(0, 50), st.just(pd.NaT.value)),
    "datetime64[s]": st.integers(0, 50),
    "Int64": st.integers(-50, 50),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@given(st.data(), st.booleans(), st.sampled_from(["first", "last"]))
def test_partitions_of_numbers_are_those_of_dask(dtype, data, ascending, na_position) -> None:
    s = pd.Series(data.draw(st.lists(NUMBERS[dtype], max_size=30))).astype(dtype)
    bounds = data.draw(st.lists(NUMBERS[dtype], min_size=2, max_size=12))
    divisions = pd.Series(bounds).astype(dtype).dropna().sort_values()
    divisions = divisions if len(divisions) > 1 else pd.Series([1, 2]).astype(dtype)
    got = partition_numbers(s, divisions, ascending, na_position)
    expected = set_partitions_pre(s, divisions, ascending, na_position)
    assert np.asarray(got).tolist() == np.asarray(expected).tolist()


def test_numbers_between_divisions_of_another_type() -> None:
    s, divisions = pd.Series([1, 2, 3]), pd.Series([0.5, 1.5, 2.5])
    assert partition_numbers(s, divisions).tolist() == [0, 1, 1]


@given(st.lists(st.one_of(PREFIXED, TEXT, st.none()), max_size=60))
def test_rows_are_sorted_as_by_pandas(labels) -> None:
    index = pd.Index(labels, dtype="string[pyarrow]", name="label")
    frame = pd.DataFrame({"x": range(len(labels)), "y": 1.5}, index)
    expected = frame.set_axis(index.astype(object)).sort_index(kind="stable")
    pd.testing.assert_frame_equal(
        sort_index(frame), expected.set_axis(expected.index.astype(index.dtype))
    )
    assert sort_index(frame.x).tolist() == expected.x.tolist()
    assert sort_index(frame.reset_index(drop=True)[::-1]).x.tolist() == frame.x.tolist()


@pytest.mark.parametrize("dtype", ["str", "string[pyarrow]", object, "int64", "category"])
@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 9), st.integers(1, 9))
def test_percentiles_are_those_of_dask(dtype, numbers, old, new) -> None:
    values = pd.Series(numbers if dtype == "int64" else [f"é{n}" for n in numbers]).astype(dtype)
    how = (old, new, 1.0, random_state_data(1, 7)[0])
    assert summary(values, *how) == percentiles_summary(values, *how)
