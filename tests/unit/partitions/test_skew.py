"""Frequent keys: every pair of rows meets once, and no output gets much more than the others."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.kernels import skew

KEYS = st.lists(st.lists(st.integers(0, 12), max_size=30), min_size=1, max_size=4)


def hashed(keys):
    return (pd.util.hash_array(keys) % 2**62).astype(np.int64)


def dealt(side, placed, pieces, *, left, keys=None):
    """For each output the (part, row, other copy than the first) of the rows that it gets."""
    found: list[list[tuple[int, int, bool]]] = [[] for _ in range(pieces)]
    for number, hashes in enumerate(side):
        rows, outputs, again = skew.route_rows(
            hashes, placed, pieces, left=left, number=number,
            keys=None if keys is None else pd.DataFrame({0: keys[number]}),
        )  # fmt: skip
        rows = np.arange(len(hashes)) if rows is None else rows
        again = np.zeros(len(rows), bool) if again is None else again
        for row, output, other in zip(rows.tolist(), outputs.tolist(), again, strict=True):
            found[output].append((number, row, bool(other)))
    return found


@given(
    KEYS,
    KEYS,
    st.sampled_from(sorted(skew.SPLITTING)),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_pairs_meet_once_and_unmatched_rows_appear_once(lefts, rights, how, pieces, same):
    """Also if ``same`` different keys have the same hash."""
    keys = {"left": lefts, "right": rights}
    sides = {
        side: [np.array(one, np.int64) // same * 1_000_003 for one in lists]
        for side, lists in keys.items()
    }
    counts = [skew.merge_counts(*map(skew.count_keys, side)) for side in sides.values()]
    placed = skew.place_keys(*counts, how, pieces)
    ours, theirs = (
        dealt(sides[side], placed, pieces, left=side == "left",
              keys=keys[side] if other in skew.KEPT[how] else None)
        for side, other in (("left", "right"), ("right", "left"))
    )  # fmt: skip

    def key(side, row):
        return keys[side][row[0]][row[1]]

    met = Counter(
        (a[:2], b[:2])
        for mine, other in zip(ours, theirs, strict=True)
        for a in mine
        for b in other
        if key("left", a) == key("right", b)
    )
    wanted = Counter(
        ((i, m), (j, n))
        for i, one in enumerate(lefts)
        for m, a in enumerate(one)
        for j, two in enumerate(rights)
        for n, b in enumerate(two)
        if a == b
    )
    assert met == wanted
    if how == "leftsemi":  # a row with many partners comes out once
        assert max(Counter(row for one in ours for row in one).values(), default=1) == 1
    for side, other, mine, their in (
        ("left", "right", ours, theirs),
        ("right", "left", theirs, ours),
    ):
        if side in skew.KEPT[how]:
            alone = Counter(
                row[:2]
                for output, there in zip(mine, their, strict=True)
                for row in output
                if not row[2] and key(side, row) not in {key(other, one) for one in there}
            )
            partners = {one for part in keys[other] for one in part}
            assert alone == Counter(
                (i, n)
                for i, part in enumerate(keys[side])
                for n, one in enumerate(part)
                if one not in partners
            )


@pytest.mark.parametrize("exponent", [1.1, 1.3, 1.5, None])
@pytest.mark.parametrize("pieces", [4, 16, 100])
def test_outputs_of_a_join_are_even_whatever_the_skew(exponent, pieces):
    rng = np.random.default_rng(pieces)
    ranks = np.arange(1, 20_001)
    if exponent is None:
        keys = np.where(rng.random(200_000) < 0.9, 7, rng.choice(ranks, 200_000))
    else:
        chance = ranks**-exponent
        keys = rng.choice(ranks, 200_000, p=chance / chance.sum())
    left, right = (np.array_split(hashed(side), 8) for side in (keys, ranks))
    counts = [skew.merge_counts(*map(skew.count_keys, side)) for side in (left, right)]
    placed = skew.place_keys(*counts, "inner", pieces)
    sizes = np.array([len(one) for one in dealt(left, placed, pieces, left=True)])
    assert sizes.sum() == 200_000
    assert sizes.max() <= 1.5 * sizes.mean()


def test_rare_keys_are_not_placed():
    rows = np.arange(100_000) * 7919
    counts = skew.merge_counts(skew.count_keys(rows), skew.count_keys(rows))
    assert len(skew.place_keys(counts, counts, "inner", 50).keys) == 0
    assert skew.route_rows(rows, skew.place_keys(counts, counts, "inner", 50), 50,
                           left=True, number=0).rows is None  # fmt: skip


def test_counts_of_a_large_part_are_estimates_from_a_sample():
    rng = np.random.default_rng(0)
    rows = np.where(
        rng.random(10 * skew.SAMPLE) < 0.3,
        5,
        rng.integers(10, 2**60, 10 * skew.SAMPLE),
    )
    found = skew.count_keys(rows)
    assert found.keys.tolist() == [5]
    assert abs(found.counts[0] / len(rows) - 0.3) < 0.01
    assert found.rows == len(rows)
