"""Which rows of an epoch each consumer gets, and how they are cut into batches."""

from __future__ import annotations

import weakref
from concurrent.futures import Executor, Future
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.partitions.batching import RowSpan, rebatch
from dask_exo.pipeline.shard_server import fetch_rows
from dask_exo.training.epoch_shuffle import locate_rows, skip_rows, split_rows
from dask_exo.training.iterator import prefetch


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


@given(LENGTHS, st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_spans_are_where_the_rows_are(lengths, start, count, skip) -> None:
    parts = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1]) if lengths else []
    spans = skip_rows(locate_rows(range(start, start + count), lengths), skip)
    got = [int(n) for part, a, b in spans for n in parts[part][a:b]]
    assert got == list(range(sum(lengths)))[start : start + count][skip:]
    assert all(isinstance(span, RowSpan) and span.start < span.stop for span in spans)


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
    parts = prefetch(fetch_rows(spans), AtOnce())
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
