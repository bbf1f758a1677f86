"""``ddf.exo.epochs`` on Dask's synchronous scheduler: batches, orders, and where it goes on."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_exo
from dask_exo.errors import ShuffleArgumentError
from dask_exo.execution import persisted
from dask_exo.training import epoch_shuffle, spread


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


def drawn(consumers, pick):
    """Take batches in the order that ``pick`` decides; those of each epoch and consumer."""
    seen: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    left = dict(enumerate(consumers))
    while left:
        i = pick(sorted(left))
        batch = next(left[i], None)
        if batch is None:
            del left[i]
        else:
            seen.setdefault((left[i].epoch, i), []).append(tuple(batch.n))
    return seen


@settings(max_examples=25)
@given(
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 9),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 3)),
    st.data(),
)
def test_consumers_share_each_epoch_whoever_is_slower(
    rows, parts, consumers, size, drop_last, window, data
) -> None:
    def split():
        frame = source(rows, parts)
        return frame.exo.epochs(
            5, size, seed=2, split=consumers, drop_last=drop_last, window=window
        )

    seen = drawn(split(), lambda left: data.draw(st.sampled_from(left)))
    assert seen == drawn(split(), lambda left: left[0])  # one after the other
    steps = {len(batches) for batches in seen.values()}
    assert len(steps) == 1 or rows < consumers * (size if drop_last else 1)
    for epoch in range(5):
        got = [n for (e, _), batches in seen.items() if e == epoch for b in batches for n in b]
        assert len(got) == len(set(got))
        assert set(got) <= set(range(rows))
        assert rows - len(got) < consumers * (size if drop_last else 1)


def test_windows_of_a_consumer_change_from_epoch_to_epoch() -> None:
    seen = drawn(source(80, 8).exo.epochs(2, 10, window=2, split=2), lambda left: left[0])
    first, second = ({n < 40 for b in seen[epoch, 0] for n in b} for epoch in (0, 1))
    assert (first, second) == ({True}, {False})


@pytest.mark.parametrize("stop", [0, 1, 3, 4, 7])
def test_a_consumer_goes_on_while_others_have_gone_ahead(stop: int) -> None:
    def split():
        return source(50).exo.epochs(3, 4, seed=1, split=3)

    whole = [[batch.n.tolist() for batch in one] for one in split()]
    consumers = split()
    first = [batch.n.tolist() for batch in itertools.islice(consumers[1], stop)]
    assert [batch.n.tolist() for batch in consumers[0]] == whole[0]
    resumed = split()[1]
    resumed.load_state_dict(json.loads(json.dumps(consumers[1].state_dict())))
    assert first + [batch.n.tolist() for batch in resumed] == whole[1]
    consumers[1].load_state_dict(consumers[1].state_dict())  # which has had this epoch
    assert first + [batch.n.tolist() for batch in consumers[1]] == whole[1]
    with pytest.raises(ShuffleArgumentError, match=r"consumer 1 of 3, .* consumer 2 of 3"):
        consumers[2].load_state_dict(consumers[1].state_dict())


@pytest.mark.parametrize("drop_last", [False, True])
def test_how_many_steps_there_are_and_how_many_are_done(drop_last: bool) -> None:
    for one in source(52).exo.epochs(2, 4, split=3, drop_last=drop_last):
        assert one.steps == 0
        done = [(one.epoch, one.batches, one.steps) for _ in one]
        steps = 4 if drop_last else 5
        assert done == [(epoch, i + 1, steps) for epoch in (0, 1) for i in range(steps)]


def test_the_state_after_an_epoch_starts_the_next_one() -> None:
    shuffled = []

    def counted(part, partition_info=None):
        shuffled.append(part)
        return part

    ddf = source(40, 2)
    frame = ddf.map_partitions(counted, meta=ddf._meta, token="counted")
    one = frame.exo.epochs(2, 10)
    first = list(itertools.islice(one, 4))
    other = frame.exo.epochs(2, 10)
    other.load_state_dict(one.state_dict())
    shuffles_ended()  # which make the second epoch of the first iterator
    shuffled.clear()
    second = list(other)
    assert sum(map(len, shuffled)) == 40
    assert sorted(pd.concat(first).n) == sorted(pd.concat(second).n) == list(range(40))


@pytest.fixture
def _local():
    local = {"exo.engine": "local", "exo.num-cpus": 2}
    with dask.config.set({"scheduler": dask_exo.get, **local}):
        yield


def numbered(partition: int) -> pd.DataFrame:
    return pd.DataFrame({"n": np.arange(100) + 100 * partition})


begun = threading.Event()


def late(partition: int) -> pd.DataFrame:
    assert partition < 3 or begun.wait(60), "nothing was consumed"
    return numbered(partition)


@pytest.mark.usefixtures("_local")
def test_rows_of_a_window_come_before_the_next_one_is_read() -> None:
    begun.clear()
    ddf = dd.from_map(late, range(4), meta=numbered(0))
    epochs = ddf.exo.epochs(1, 50, window=2)
    first = next(epochs)
    assert first.n.max() < 200
    assert epochs.steps == 0
    begun.set()
    rest = list(epochs)
    assert epochs.steps == epochs.batches == 8
    assert sorted(pd.concat([first, *rest]).n) == list(range(400))


def shuffles_ended() -> None:
    while any(thread.name == "dask_exo-epoch" for thread in threading.enumerate()):
        time.sleep(0.01)


read: list[int] = []


def noted(partition: int) -> pd.DataFrame:
    read.append(partition)
    return numbered(partition)


@pytest.mark.usefixtures("_local")
def test_a_slow_consumer_has_windows_read_when_it_comes_to_them() -> None:
    read.clear()
    epochs = dd.from_map(noted, range(40), meta=numbered(0)).exo.epochs(1, 50, window=4)
    got = [next(epochs)]
    shuffles_ended()
    assert set(read) == set(range(8))  # the window that is consumed, and the next one
    for _ in range(9):
        got.append(next(epochs))
        shuffles_ended()
    assert len(set(read)) <= 20
    got += epochs
    assert sorted(read) == list(range(40))
    assert sorted(pd.concat(got).n) == list(range(4000))


@pytest.mark.usefixtures("_local")
def test_what_windows_have_in_common_is_computed_once() -> None:
    read.clear()
    ddf = dd.from_map(noted, range(6), meta=numbered(0))
    epochs = (ddf - ddf.n.sum()).exo.epochs(1, 50, window=2)
    assert len(list(epochs)) == 12
    assert sorted(read) == sorted([*range(6), *range(6)])  # for the sum, and for the rows


def looked_up(part: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    return part.assign(n=part.n + table.n.min())


def table(_: int) -> pd.DataFrame:
    return noted(0)


@pytest.mark.usefixtures("_local")
def test_a_table_that_all_windows_read_is_made_once() -> None:
    ddf = dd.from_map(numbered, range(6), meta=numbered(0))
    one = dd.from_map(table, range(1), meta=numbered(0))
    frame = ddf.map_partitions(looked_up, one, meta=numbered(0))
    read.clear()
    assert len(list(frame.exo.epochs(1, 50, window=2))) == 12
    assert read == [0]


@pytest.mark.usefixtures("_local")
def test_windows_of_persisted_data_are_shuffled_when_they_are_wanted() -> None:
    ddf = dd.from_map(numbered, range(40), meta=numbered(0)).persist()
    epochs = ddf.exo.epochs(1, 50, window=4)
    next(epochs)
    shuffles_ended()
    assert epochs._source._epochs[0].added == 16
    assert len(list(epochs)) == 79


@pytest.mark.usefixtures("_local")
def test_the_end_of_an_epoch_is_no_wait_for_a_window() -> None:
    epochs = dd.from_map(numbered, range(16), meta=numbered(0)).exo.epochs(6, 50, window=8)
    before = epochs._source._lead
    for _ in epochs:
        shuffles_ended()
    assert epochs._source._lead == before


@pytest.mark.usefixtures("_local")
def test_a_consumer_that_goes_leaves_nothing_behind() -> None:
    gc.collect()
    before = len(persisted._promises)
    epochs = dd.from_map(numbered, range(20), meta=numbered(0)).exo.epochs(2, 50, window=2)
    next(epochs)
    del epochs
    shuffles_ended()
    gc.collect()
    assert len(persisted._promises) == before


@pytest.mark.usefixtures("_local")
def test_consumed_partitions_are_released_before_the_next_epoch_starts(monkeypatch) -> None:
    monkeypatch.setattr(epoch_shuffle, "MARGIN", 0.0)  # it starts with the end of this one
    gc.collect()
    before = len(persisted._promises)
    epochs = dd.from_map(numbered, range(10), meta=numbered(0)).exo.epochs(2, 50)
    held = [len(persisted._promises) - before for _ in epochs]
    assert len(held) == 40
    assert max(held) <= 20 + 4
    assert held[14] <= 8


def test_threads_share_each_epoch() -> None:
    consumers = source(300).exo.epochs(4, 10, split=5)
    with ThreadPoolExecutor(5) as pool:
        seen = list(pool.map(lambda one: [(one.epoch, *batch.n) for batch in one], consumers))
    assert len({len(batches) for batches in seen}) == 1
    rows = sorted(n for batches in seen for _, *numbers in batches for n in numbers)
    assert rows == sorted(list(range(300)) * 4)


def test_an_epoch_that_fails_fails_where_it_is_asked_for() -> None:
    def boom(part):
        raise ValueError("bad part")

    ddf = source(20)
    consumers = ddf.map_partitions(boom, meta=ddf._meta).exo.epochs(2, 5, split=2)
    for one in (*consumers, *consumers):
        with pytest.raises(ValueError, match="bad part"):
            next(one)


def test_whoever_ends_early_gets_no_more_batches() -> None:
    first, second = source(40).exo.epochs(3, 5, split=2)
    next(first)
    first.close()
    assert list(first) == []
    assert len(list(second)) == 12


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
        ((1, 5, "numpy", 0, 0), "split=0: need a number from 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message) -> None:
    count, size, form, seed, *split = arguments
    with pytest.raises(ShuffleArgumentError, match=message):
        source(9).exo.epochs(count, size, format=form, seed=seed, split=split[0] if split else None)
