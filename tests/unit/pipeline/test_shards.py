"""Who gets which rows of a pipeline."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dask_exo.pipeline.shards import AHEAD, Sharder

SIZES = st.lists(st.integers(0, 30), max_size=25)


def play(sizes, consumers, equal, seed, leaving=()):
    """Consumers that ask in any order, and some that leave; what each got, and what waited."""
    rng, coming = Random(seed), list(enumerate(sizes))
    sharder = Sharder(consumers, equal=equal)
    got = {i: [] for i in range(consumers)}
    asking = set(range(consumers))
    ended, most, idle = False, 0, 0
    leaving = dict(leaving)
    while asking:
        i = rng.choice(sorted(asking))
        if len(got[i]) >= leaving.get(i, 10**9):
            sharder.leave(i)
            asking.discard(i)
            continue
        if sharder.over(i):
            asking.discard(i)
            continue
        span = sharder.assign(i)
        idle += 1
        if span is not None:
            got[i].append(span)
            idle = 0
        elif sharder.wants(i):
            idle = 0
            if coming:
                sharder.add(*coming.pop(0))
            else:
                sharder.end()
                assert not ended
                ended = True
        most = max(most, len(sharder._waiting))
        assert idle < 1000, "nobody gets anything any more"
    return got, most


def rows(got):
    return [(s.part, j) for spans in got.values() for s in spans for j in range(s.start, s.stop)]


def lengths(got):
    return {i: sum(s.stop - s.start for s in spans) for i, spans in got.items()}


@given(SIZES, st.integers(1, 6), st.booleans(), st.integers(0, 2**20))
def test_each_row_goes_to_one_and_equal_shares_are_equal(sizes, consumers, equal, seed) -> None:
    got, most = play(sizes, consumers, equal, seed)
    dealt, total = rows(got), sum(sizes)
    assert len(set(dealt)) == len(dealt)
    assert set(dealt) <= {(part, j) for part, size in enumerate(sizes) for j in range(size)}
    if equal:
        assert set(lengths(got).values()) == {total // consumers}
        assert most <= AHEAD * consumers + 1
    else:
        assert len(dealt) == total


@given(SIZES, st.integers(2, 5), st.integers(0, 2**20), st.data())
def test_those_who_stay_share_what_others_leave(sizes, consumers, seed, data) -> None:
    gone = data.draw(st.dictionaries(st.integers(1, consumers - 1), st.integers(0, 4)))
    got, _ = play(sizes, consumers, True, seed, gone)
    dealt = rows(got)
    assert len(set(dealt)) == len(dealt)
    stayed = {lengths(got)[i] for i in range(consumers) if i not in gone}
    assert len(stayed) == 1
    got, _ = play(sizes, consumers, False, seed, gone)
    assert len(rows(got)) == sum(sizes)


def test_pieces_of_one_size_are_not_cut_for_consumers_in_step() -> None:
    sharder, parts = Sharder(3, equal=True), iter(range(12))
    for _ in range(4):
        for i in range(3):
            while (span := sharder.assign(i)) is None:
                assert sharder.wants(i)
                part = next(parts, None)
                sharder.add(part, 10) if part is not None else sharder.end()
            assert (span.start, span.stop) == (0, 10)
