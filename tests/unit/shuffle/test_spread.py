"""Which reducers of a join are divided, and into which pieces."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.shuffle import spread
from dask_exo.shuffle.blocks import Share
from dask_exo.shuffle.spec import ReducerInput

SIZES = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=40
).map(lambda pairs: np.array(pairs).T)


def loads(nbytes, divisions):
    """Bytes of each reducer once all pieces are where they go."""
    pieces = [spread.pieces(inputs(nbytes.shape[1]), side, divisions) for side in (0, 1)]
    return np.array([
        sum(spread.piece_bytes(side[j], nbytes[i]) for i, side in enumerate(pieces))
        for j in range(nbytes.shape[1])
    ])  # fmt: skip


def inputs(reducers, blocks=3):
    return [ReducerInput(tuple(range(blocks)), slot) for slot in range(reducers)]


def test_one_frequent_key():
    nbytes = np.full((2, 20), 10 * 2**20)
    nbytes[0, 3] = 20 * 90 * 2**20
    after = loads(nbytes, spread.divide(nbytes, (True, True)))
    assert after.max() <= 2 * after.mean()


def test_an_even_join_is_left_alone():
    nbytes = np.full((2, 20), 10**8)
    assert not spread.divide(nbytes, (True, True))
    assert not spread.divide(nbytes * 0, (True, True))


def test_a_small_reducer_is_left_alone():
    assert not spread.divide(np.array([[spread.SMALL, 1, 1, 1], [0, 0, 0, 0]]), (True, True))


def test_rows_are_not_dealt_out_if_the_copies_would_be_larger():
    nbytes = np.array([[10**9, 1, 1, 1, 1], [10**9, 1, 1, 1, 1]])
    assert [len(d.others) for d in spread.divide(nbytes, (True, True))] == [1]
    nbytes[1, 0] += 1
    assert not spread.divide(nbytes, (True, False))


@given(SIZES, st.tuples(st.booleans(), st.booleans()).filter(any))
def test_all_rows_of_both_sides_meet_once(nbytes, dealt):
    divisions = spread.divide(nbytes, dealt)
    reducers = nbytes.shape[1]
    assert all(dealt[side] for _, side, _ in divisions)
    left, right = (spread.pieces(inputs(reducers), side, divisions) for side in (0, 1))
    meetings = Counter()
    for number in range(reducers):
        assert left[number][0].number == right[number][0].number == number
        for a in left[number]:
            for b in right[number]:
                if a.number == b.number:
                    assert a.share is None or b.share is None
                    k, of = next((s.k, s.of) for s in (a.share, b.share, Share(0, 1, 1)) if s)
                    meetings[a.number, k, of] += 1
    assert set(meetings.values()) <= {1}
    shares = Counter(number for number, _, _ in meetings)
    assert all(of == shares[number] for number, _, of in meetings)
    assert set(shares) == set(range(reducers))


@given(SIZES)
def test_it_makes_no_reducer_larger_than_the_largest(nbytes):
    before = nbytes.sum(axis=0)
    assert loads(nbytes, spread.divide(nbytes, (True, True))).max() <= 2 * before.max()


@given(st.integers(1, 30), st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_shares_are_all_rows_in_order(shares, lengths):
    found = []
    for k in range(shares):
        share = Share(k, shares, len(lengths))
        for block in share.blocks:
            start, stop = share.rows(block, lengths[block])
            found += [(block, row) for row in range(start, stop)]
    assert found == [(block, row) for block, rows in enumerate(lengths) for row in range(rows)]
