"""Sorts and searches of integers against those of numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dask_exo.partitions.kernels.argsort import _BLOCK, count_below, counting_argsort


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "float32", "float64"])
@given(st.data(), st.sampled_from(["left", "right"]))
def test_as_many_as_numpy_counts(dtype, data, side) -> None:
    one = {"allow_nan": False} if dtype.startswith("f") else {}
    values = data.draw(arrays(dtype, st.integers(0, 50), elements=one))
    bounds = np.sort(data.draw(arrays(dtype, st.integers(0, 20), elements=one)))
    expected = np.searchsorted(bounds, values, side)
    assert count_below(values, bounds, side).tolist() == expected.tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 159, 160, 1023, 1024])
def test_more_values_than_one_block(count) -> None:
    rng = np.random.default_rng(count)
    values, bounds = rng.integers(0, 5000, 2 * _BLOCK + 7), np.sort(rng.integers(0, 5000, count))
    assert (count_below(values, bounds, "right") == np.searchsorted(bounds, values, "right")).all()


@given(codes=st.lists(st.integers(0, 40), max_size=200))
def test_small_numbers_are_sorted_by_counting(codes) -> None:
    numbers = np.array(codes, np.uint8)
    order, offsets = counting_argsort(numbers, 41)
    assert order.tolist() == np.argsort(numbers, kind="stable").tolist()
    assert offsets.tolist() == np.searchsorted(np.sort(numbers), range(42)).tolist()
