"""``ddf.exo.epochs`` on Dask's synchronous scheduler: batches, orders, and where it goes on."""

from __future__ import annotations

import itertools
import json

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.epochs import spread
from dask_exo.errors import ShuffleArgumentError


@pytest.fixture(autouse=True)
def _sync():
    with dask.config.set(scheduler="sync"):
        yield


def source(rows: int, npartitions: int = 4) -> dd.DataFrame:
    return dd.from_pandas(
        pd.DataFrame({"n": range(rows), "x": np.arange(rows) / 2}), npartitions=npartitions
    )


@settings(max_examples=30)
@given(
    st.integers(1, 50),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 60),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 3)),
)
def test_every_epoch_has_every_row_once(rows, parts, count, size, drop_last, window) -> None:
    epochs = source(rows, parts).exo.epochs(count, size, seed=3, drop_last=drop_last, window=window)
    seen: dict[int, list[int]] = {}
    for batch in epochs:
        assert len(batch) == size or not drop_last
        seen.setdefault(epochs.epoch, []).extend(batch.n)
    dropped = rows % size if drop_last else 0
    assert set(seen) == (set(range(count)) if rows - dropped else set())
    for got in seen.values():
        assert len(got) == len(set(got)) == rows - dropped


def test_each_epoch_is_the_random_shuffle_of_its_own_seed() -> None:
    first, second = (list(source(200).exo.epochs(2, 50, seed=seed)) for seed in (1, 1))
    for a, b in zip(first, second, strict=True):
        pd.testing.assert_frame_equal(a, b)
    orders = [tuple(pd.concat(first[i : i + 4]).n) for i in (0, 4)]
    assert orders[0] != orders[1]
    assert tuple(pd.concat(list(source(200).exo.epochs(1, 50, seed=2))).n) not in orders


@pytest.mark.parametrize("stop", range(12))
def test_it_goes_on_exactly_where_it_stopped(stop: int) -> None:
    whole = list(source(23).exo.epochs(3, 7, seed=5))
    epochs = source(23).exo.epochs(3, 7, seed=5)
    first = list(itertools.islice(epochs, stop))
    state = json.loads(json.dumps(epochs.state_dict()))
    other = source(23).exo.epochs(3, 7, seed=5)
    other.load_state_dict(state)
    for got, expected in zip([*first, *other], whole, strict=True):
        pd.testing.assert_frame_equal(got, expected)


def test_a_state_of_something_else_is_refused() -> None:
    state = source(23).exo.epochs(3, 7, seed=5).state_dict()
    for other in (source(23).exo.epochs(3, 7, seed=6), source(24).exo.epochs(3, 7, seed=5)):
        with pytest.raises(ShuffleArgumentError, match=r"the state is of seed 5, .* this is seed"):
            other.load_state_dict(state)


def test_formats() -> None:
    batch = next(source(10).exo.epochs(1, 4, format="numpy"))
    assert {name: (type(a), len(a)) for name, a in batch.items()} == {
        "n": (np.ndarray, 4),
        "x": (np.ndarray, 4),
    }
    torch = pytest.importorskip("torch")
    batch = next(source(10).exo.epochs(1, 4, format="torch"))
    assert batch["x"].dtype == torch.float64


def test_windows_mix_less_than_a_full_shuffle() -> None:
    full, windowed, none = (
        spread(pd.concat(list(frame)).n, 20)
        for frame in (
            source(2000, 20).exo.epochs(1, 20),
            source(2000, 20).exo.epochs(1, 20, window=2),
            [source(2000, 20).compute()],
        )
    )
    assert full > 0.9
    assert 0.05 < windowed < 0.15
    assert none < 0.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, "pandas", 0), "count=0: need a number from 1"),
        ((1, 0.5, "pandas", 0), "batch_size=0.5: need"),
        ((1, 5, "arrow", 0), "format='arrow': there are pandas, numpy, torch"),
        ((1, 5, "numpy", -1), "seed=-1: need a number from 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, message) -> None:
    count, size, form, seed = arguments
    with pytest.raises(ShuffleArgumentError, match=message):
        source(9).exo.epochs(count, size, format=form, seed=seed)
