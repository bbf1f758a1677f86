"""Which rows of an epoch each consumer gets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.epochs.batches import cut
from dask_exo.epochs.deal import Span, deal, located, without

LENGTHS = st.lists(st.integers(0, 12), max_size=8)


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 12), st.booleans())
def test_steps_are_equal_and_hardly_a_row_is_left_over(rows, consumers, size, drop_last) -> None:
    dealt = deal(rows, consumers, size, drop_last=drop_last)
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
    spans = without(located(range(start, start + count), lengths), skip)
    got = [int(n) for part, a, b in spans for n in parts[part][a:b]]
    assert got == list(range(sum(lengths)))[start : start + count][skip:]
    assert all(isinstance(span, Span) and span.start < span.stop for span in spans)


@given(LENGTHS, st.integers(1, 15))
def test_batches_are_the_rows_cut_anew(lengths, size) -> None:
    ends = np.cumsum([0, *lengths])
    parts = [pd.DataFrame({"n": range(a, b)}) for a, b in pairwise(ends)]
    got = [batch.n.tolist() for batch in cut(iter(parts), size)]
    whole = list(range(ends[-1]))
    assert got == [whole[i : i + size] for i in range(0, len(whole), size)]
