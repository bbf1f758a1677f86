"""What a shuffle conserves, and that each kind of loss is found."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.errors import IntegrityError
from dask_exo.partitions import protocol
from dask_exo.shuffle import spec
from dask_exo.shuffle.spec import Tally, verify

ROWS = st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(0, 6)), min_size=1, max_size=40)


def tally(frame: pd.DataFrame, columns: list[str], counts: np.ndarray, first: int = 0) -> Tally:
    dtypes, keys = protocol.checksum(frame, columns)
    return spec.tally(counts, first, dtypes=dtypes, keys=keys)


def tally_of(rows: list[tuple[int, int]]) -> Tally:
    frame = pd.DataFrame(rows, columns=["k", "r"])
    return tally(frame, ["k"], np.bincount(frame["r"], minlength=7))


def arrived(rows: list[tuple[int, int]]) -> Tally:
    """The same rows as seven reducers would see them, one after the other."""
    total = Tally()
    for r in range(7):
        mine = pd.DataFrame([row for row in rows if row[1] == r], columns=["k", "r"])
        mine = mine.astype({"k": "int64"})
        total += tally(mine, ["k"], np.array([len(mine)]), r)
    return total


@given(ROWS, st.integers(0, 40))
def test_any_split_and_order_of_the_same_rows_has_the_same_tally(rows, cut) -> None:
    verify("s", tally_of(rows), arrived(rows[::-1]))
    both = [part for part in (rows[:cut], rows[cut:]) if part]
    verify("s", sum((tally_of(part) for part in both), Tally()), arrived(rows))


@given(ROWS, st.data())
def test_lost_doubled_changed_and_misplaced_rows_are_found(rows, data) -> None:
    i = data.draw(st.integers(0, len(rows) - 1))
    key, place = rows[i]
    wrong = [
        rows[:i] + rows[i + 1 :],
        [*rows, rows[i]],
        [*rows[:i], (key + 1, place), *rows[i + 1 :]],
        [*rows[:i], (key, (place + 1) % 7), *rows[i + 1 :]],
    ]
    for other in wrong:
        with pytest.raises(IntegrityError):
            verify("s", tally_of(rows), arrived(other))


def test_sums_of_different_dtypes_are_not_compared() -> None:
    ints = tally(pd.DataFrame({"k": [1, 2]}), ["k"], np.array([2]))
    floats = tally(pd.DataFrame({"k": [3.0]}), ["k"], np.array([1]))
    together = tally(pd.DataFrame({"k": [1.0, 2.0, 3.0]}), ["k"], np.array([3]))
    verify("s", ints + floats, together)
