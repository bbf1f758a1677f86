"""``ddf.exo.random_shuffle``: the same rows, in an order that only the seed decides."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_exo.errors import ShuffleArgumentError
from dask_exo.report import recording
from tests._data import compute


def frame(rows: int) -> pd.DataFrame:
    index = pd.Index([f"row {i}" for i in range(rows)], name="index")
    return pd.DataFrame({"n": range(rows), "s": [f"s{i}" for i in range(rows)]}, index)


@given(
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(0, 2**40),
    st.one_of(st.none(), st.integers(1, 12)),
)
def test_the_seed_determines_the_permutation_everywhere(rows, parts, seed, window):
    ddf = dd.from_pandas(frame(rows), npartitions=parts, sort=False)
    source, shuffled = ddf.compute(), ddf.exo.random_shuffle(seed=seed, window=window)
    got = compute(shuffled)
    pd.testing.assert_frame_equal(got.sort_values("n"), source)
    pd.testing.assert_frame_equal(got, shuffled.compute(scheduler="sync"))
    assert compute(shuffled.n).tolist() == got.n.tolist()
    assert compute(shuffled.n).index.tolist() == got.index.tolist()


def test_every_output_gets_rows_of_every_part() -> None:
    ddf = dd.from_pandas(frame(20_000), npartitions=10, sort=False)
    lengths = compute(ddf.exo.random_shuffle(seed=3).map_partitions(
        lambda part: pd.Series(np.bincount(part.n // 2000, minlength=10)), meta=(None, "i8")
    )).to_numpy().reshape(10, 10)  # fmt: skip
    assert lengths.sum() == 20_000
    # 2,000 rows into 10 outputs: 200 each, with a standard deviation of 13.4
    assert abs(lengths - 200).max() < 5 * 13.4


def test_neighbours_do_not_stay_together() -> None:
    got = compute(dd.from_pandas(frame(10_000), npartitions=5).exo.random_shuffle(seed=1)).n
    assert abs(np.corrcoef(got.to_numpy(), np.arange(10_000))[0, 1]) < 0.05
    assert (abs(np.diff(got)) < 5).sum() < 30


def test_rows_stay_in_their_window() -> None:
    ddf = dd.from_pandas(frame(700), npartitions=7, sort=False)
    windows = ddf.exo.random_shuffle(seed=5, window=3)
    assert windows.npartitions == 7
    for i in range(7):
        numbers = compute(windows.partitions[i]).n
        first = i // 3 * 300
        assert first <= numbers.min() <= numbers.max() < min(first + 300, 700)
    got = compute(windows)
    assert sorted(got.n) == list(range(700))
    assert not got.n.is_monotonic_increasing


def test_windows_have_their_share_of_the_outputs() -> None:
    ddf = dd.from_pandas(frame(700), npartitions=7, sort=False)
    windows = ddf.exo.random_shuffle(seed=5, window=3, npartitions=14)
    assert [windows.partitions[i].n.max().compute() < 300 for i in range(14)] == [True] * 6 + [
        False
    ] * 8
    assert ddf.exo.random_shuffle(window=3, npartitions=2).npartitions == 3
    assert sorted(compute(windows).n) == list(range(700))


def test_seeds_differ_and_each_is_an_exoshuffle() -> None:
    ddf = dd.from_pandas(frame(500), npartitions=5)
    with recording() as stats:
        orders = [tuple(compute(ddf.exo.random_shuffle(seed=seed)).n) for seed in range(3)]
    assert len(set(orders)) == 3
    assert [(s.maps, s.reducers, s.rows) for s in stats.shuffles] == [(5, 5, 500)] * 3


def test_labels_of_any_kind_and_another_number_of_partitions() -> None:
    source = pd.DataFrame({"_partitions": range(9), ("a", 1): 2, 5: 3.5})
    shuffled = dd.from_pandas(source, npartitions=3).exo.random_shuffle(seed=1, npartitions=4)
    assert shuffled.npartitions == 4
    pd.testing.assert_frame_equal(compute(shuffled).sort_index(), source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, r"seed=-1: need a number from 0"),
        ({"seed": None}, r"seed=None: need a number"),
        ({"window": 0}, r"window=0: need a number from 1"),
        ({"window": True}, r"window=True"),
        ({"npartitions": 0.5}, r"npartitions=0.5"),
    ],
)
def test_wrong_arguments_are_named(arguments, message) -> None:
    ddf = dd.from_pandas(frame(9), npartitions=3)
    with pytest.raises(ShuffleArgumentError, match=message):
        ddf.exo.random_shuffle(**arguments)
