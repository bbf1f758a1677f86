"""Guesses of the number of distinct values against a count of all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.kernels.cardinality import (
    SAMPLE,
    distinct_of_repeats,
    neighbour_rows,
    spread_rows,
)

ROWS = 250_000
EVEN = {
    "all differ": np.arange(ROWS),
    "a million at random": np.random.default_rng(1).integers(0, 10**6, ROWS),
    "100,000 at random": np.random.default_rng(2).integers(0, 10**5, ROWS),
    "a thousand at random": np.random.default_rng(3).integers(0, 1000, ROWS),
    "four of each, in order": np.arange(ROWS) // 4,
    "a thousand of each, in order": np.arange(ROWS) // 1000,
    "again and again": np.arange(ROWS) % 61,
}


def guess(values: np.ndarray) -> float:
    samples = spread_rows(len(values)), neighbour_rows(len(values))
    return distinct_of_repeats(
        len(values), *(SAMPLE - len(np.unique(values[at])) for at in samples)
    )


@pytest.mark.parametrize("name", EVEN)
def test_values_that_are_as_frequent_as_each_other_are_counted_within_a_fifth(name) -> None:
    values = EVEN[name]
    assert guess(values) == pytest.approx(len(np.unique(values)), rel=0.2)


def test_where_some_are_frequent_the_guess_is_too_low() -> None:
    rng = np.random.default_rng(4)
    values = np.where(rng.random(ROWS) < 0.3, -1, np.arange(ROWS))
    assert guess(values) < len(np.unique(values))


@given(st.integers(SAMPLE, 10**7))
def test_samples_are_rows_in_order_and_none_twice(rows) -> None:
    for at in (spread_rows(rows), neighbour_rows(rows)):
        assert len(at) == SAMPLE
        assert (np.diff(at) > 0).all()
        assert at[0] >= 0
        assert at[-1] < rows


@given(st.integers(SAMPLE, 10**7), st.integers(0, SAMPLE - 1), st.integers(0, SAMPLE - 1))
def test_a_guess_is_between_one_and_all(rows, there, here) -> None:
    assert 0.9 < distinct_of_repeats(rows, there, here) <= rows
