"""Guesses of the number of distinct values against a count of all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.kernels.cardinality import (
    REGISTERS,
    SAMPLE,
    STANDARD_ERROR,
    Sketch,
    distinct_of_repeats,
    merge_sketches,
    neighbour_rows,
    sketch,
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
def test_equally_frequent_values_are_counted_within_a_fifth(name) -> None:
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


PAIRS = st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 30))))


def of(pairs) -> Sketch:
    frame = pd.DataFrame(pairs, columns=["k", "x"]).astype({"x": "float64"})
    groups = pd.Index(sorted(set(frame["k"])), dtype="object")
    return sketch(groups, groups.get_indexer(frame["k"]), frame["x"])


def registers(one: Sketch) -> dict[tuple[str, int], int]:
    """Of each group and register the rank."""
    return {
        (one.groups[place // REGISTERS], place % REGISTERS): rank
        for place, rank in zip(one.places.tolist(), one.ranks.tolist(), strict=True)
    }


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_a_merged_sketch_is_that_of_all_values(lists) -> None:
    whole = of([pair for pairs in lists for pair in pairs])
    assert registers(merge_sketches([of(pairs) for pairs in lists])) == registers(whole)
    assert registers(merge_sketches([of(pairs) for pairs in lists[::-1]])) == registers(whole)
    assert registers(merge_sketches([whole, whole])) == registers(whole)


@given(PAIRS, st.permutations("abc"), st.integers(0, 3))
def test_groups_can_be_reordered_and_divided(pairs, wanted, first) -> None:
    one = of(pairs)
    order = one.groups.get_indexer([group for group in wanted if group in one.groups])
    moved = one.take(order)
    assert moved.groups.tolist() == one.groups[order].tolist()
    first = min(first, len(order))
    parts = moved.select(slice(0, first)), moved.select(slice(first, len(order)))
    assert registers(parts[0]) | registers(parts[1]) == registers(moved) == registers(one)


@given(PAIRS)
def test_a_few_values_are_counted_exactly(pairs) -> None:
    one = of(pairs)
    for key, count in one.counts().items():
        distinct = {x for k, x in pairs if k == key and x is not None}
        # two of 31 values may share one of 4,096 registers
        assert len(distinct) - 1.1 < count < len(distinct) + 0.5


@pytest.mark.parametrize("count", [3_000, 10_000, 30_000, 300_000])
def test_the_error_is_what_is_said(count: int) -> None:
    rng = np.random.default_rng(count)
    groups = pd.RangeIndex(20 if count < 10**5 else 4)
    off = []
    for group in groups:
        numbers = np.full(count, group)
        values = pd.Series(rng.permutation(2 * count)[:count] * 7919)
        off.append(sketch(groups, numbers, values).counts()[group] / count - 1)
    assert abs(np.mean(off)) < 4 * STANDARD_ERROR / len(groups) ** 0.5
    assert np.std(off) < 1.8 * STANDARD_ERROR


def test_a_group_takes_no_more_than_its_registers() -> None:
    one = sketch(pd.Index(["a"]), np.zeros(10**5, "int64"), pd.Series(range(10**5)))
    assert one.places.nbytes + one.ranks.nbytes <= 5 * REGISTERS


def test_values_of_any_type_can_be_counted() -> None:
    zeros = np.zeros(4, "int64")
    for values in (
        pd.Series(["x", "y", "y", None], dtype="string"),
        pd.Series(["x", "y", "y", None], dtype="category"),
        pd.Series(pd.to_datetime(["2020-01-01", "2021-01-01", "2021-01-01", None])),
        pd.Series([True, False, False, None], dtype="boolean"),
    ):
        assert round(sketch(pd.Index(["a"]), zeros, values).counts()["a"], 1) == 2
