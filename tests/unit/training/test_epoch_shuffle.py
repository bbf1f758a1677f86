"""Which rows of an epoch each consumer gets, and how they are cut into batches."""

from __future__ import annotations

import time
import weakref
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import dask.dataframe as dd
import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.batching import RowSpan, prefetch, rebatch
from dask_exo.pipeline.shard_server import NextRows
from dask_exo.training import epoch_shuffle
from dask_exo.training.epoch_shuffle import Epoch, EpochShuffles, EpochSpec, split_rows
from dask_exo.training.iterator import _EpochRows


class Memory:
    """An array that lives as long as one of its views."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


class AtOnce(Executor):
    """Runs what it is given, in the calling thread."""

    def submit(self, fn, /, *args, **kwargs):
        done = Future()
        done.set_result(fn(*args, **kwargs))
        return done


LENGTHS = st.lists(st.integers(0, 12), max_size=8)


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_steps_are_equal_and_hardly_a_row_is_left_over(rows, consumers, size, drop_last) -> None:
    dealt = split_rows(rows, consumers, size, drop_last=drop_last)
    assert [i for mine in dealt for i in mine] == list(range(dealt[-1].stop))
    assert len({-(-len(mine) // size) for mine in dealt}) == 1
    left = rows - dealt[-1].stop
    if drop_last:
        assert all(len(mine) % size == 0 for mine in dealt)
        assert 0 <= left < consumers * size
    else:
        assert 0 <= left < consumers
        assert not left or len(dealt[0]) % size == 0


@given(LENGTHS, st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 60))
def test_each_consumer_takes_the_rows_of_its_place(lengths, consumers, size, drop, had) -> None:
    parts = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]) if lengths else []
    spec = EpochSpec(1, size, 0, None, drop, consumers)
    epoch = Epoch({i: (i + 1) % consumers for i in range(consumers)})
    epoch.shares = spec.shares(sum(lengths))
    for i, length in enumerate(lengths):
        epoch.add(i, length)
    epoch.end(spec)
    for consumer in range(consumers):
        share, got, first = epoch.shares[(consumer + 1) % consumers], [], had
        while (span := epoch.take(consumer, first)) is not None:
            got += [int(n) for n in parts[span.part][span.start : span.stop]]
            first += span.stop - span.start
        assert got == list(share)[had:]
        assert epoch.rows(consumer) == len(share)


def test_an_epoch_that_a_consumer_waits_for_is_not_dropped(monkeypatch) -> None:
    monkeypatch.setattr(EpochShuffles, "_continue", lambda *_: None)  # rows never come
    frame = dd.from_pandas(pd.DataFrame({"a": range(8)}), npartitions=2)
    store = EpochShuffles(frame, EpochSpec(8, 1, 0, None, False, consumers=8))
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(store.share, i, (i, 0)) for i in range(8)]
        deadline = time.monotonic() + 60
        while sum(each.waiters for each in list(store._epochs.values())) < 8:
            assert time.monotonic() < deadline, "consumers drop each other's epochs"
            time.sleep(0.01)
        assert sorted(store._epochs) == list(range(8))
        for i in range(8):
            store.leave(i)
        assert [each.result() for each in waiting] == [NextRows()] * 8


def test_one_consumer_gets_rows_before_they_are_counted() -> None:
    epoch = Epoch({0: 0})
    epoch.add("a", 3)
    assert epoch.take(0, 0) == ("a", 0, 3)
    assert epoch.take(0, 3) is None
    assert epoch.rows(0) is None
    epoch.add("b", 4)
    epoch.end(EpochSpec(1, 2, 0, None, True, 1))
    assert epoch.take(0, 3) == ("b", 0, 4)
    assert epoch.rows(0) == 6  # the consumer drops the last one


def test_the_next_epoch_starts_when_it_will_be_ready_in_time(monkeypatch) -> None:
    now = 0.0
    monkeypatch.setattr(epoch_shuffle.time, "monotonic", lambda: now)
    epoch = Epoch({0: 0})
    now = 10.0  # what the first rows take
    epoch.add("a", 500)
    assert not epoch.is_nearly_over(0, 400)  # it is still shuffled
    epoch.add("b", 500)
    epoch.end(EpochSpec(2, 100, 0, None, False, 1))
    now = 60.0  # half of the rows in 50 seconds: the others take 50 seconds, too
    assert not epoch.is_nearly_over(0, 500)
    now = 90.0  # and the last 200 take 20
    assert epoch.is_nearly_over(0, 800)


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(1, 15))
def test_two_partitions_are_in_memory_and_no_more(lengths, size) -> None:
    alive: weakref.WeakSet[Memory] = weakref.WeakSet()
    most = 0

    def part(length: int, _: dict) -> pd.DataFrame:
        nonlocal most
        memory = Memory(np.arange(2.0 * length).reshape(length, 2))
        alive.add(memory)
        most = max(most, sum(len(one.array) for one in alive))
        return pd.DataFrame(np.asarray(memory), copy=False)

    spans = [RowSpan(partial(part, length), 0, length) for length in lengths]
    spans.reverse()
    parts = prefetch(
        iter(_EpochRows(lambda _: NextRows(spans.pop() if spans else None), 0, 0)), AtOnce()
    )
    rows = sum(len(batch) for batch in prefetch(rebatch(parts, size), AtOnce()))
    assert rows == sum(lengths)
    assert most <= 2 * max(lengths, default=0) + size
    assert not alive


@given(LENGTHS, st.integers(1, 15))
def test_batches_are_the_rows_cut_anew(lengths, size) -> None:
    ends = np.cumsum([0, *lengths])
    parts = [pd.DataFrame({"n": range(a, b)}) for a, b in pairwise(ends)]
    got = [batch.n.tolist() for batch in rebatch(iter(parts), size)]
    whole = list(range(ends[-1]))
    assert got == [whole[i : i + size] for i in range(0, len(whole), size)]
