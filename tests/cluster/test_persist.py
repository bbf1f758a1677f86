"""`persist` on a real cluster: at once, kept, freed, usable by any scheduler."""

from __future__ import annotations

import gc
import itertools
import threading
import time

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo.cluster.on_ray import RayFutures
from dask_exo.errors import CancelledError
from dask_exo.report import recording
from dask_exo.training import epoch_shuffle

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FRAME = pd.DataFrame({"k": np.arange(200_000) % 97, "v": np.arange(200_000) * 1.0})


def counted(part, path):
    with path.open("a") as file:
        file.write("x")
    return part


def counting(tmp_path, npartitions=4):
    """A frame, and a file that gets a letter whenever a partition of it is made."""
    path = tmp_path / "made"
    path.touch()
    ddf = dd.from_pandas(FRAME, npartitions=npartitions)
    return ddf.map_partitions(counted, path, meta=ddf._meta), path


def test_it_returns_before_the_data_is_there(tmp_path) -> None:
    gate = tmp_path / "gate"

    def held(part):
        while not gate.exists():
            time.sleep(0.01)
        return part

    ddf = dd.from_pandas(FRAME, npartitions=2)
    kept = ddf.map_partitions(held, meta=ddf._meta).persist()  # would never return otherwise
    gate.touch()
    assert kept.v.sum().compute() == FRAME.v.sum()


def test_what_is_kept_is_not_made_again(tmp_path) -> None:
    ddf, path = counting(tmp_path)
    kept = ddf.persist()
    assert kept.v.sum().compute() == FRAME.v.sum()
    pd.testing.assert_series_equal(kept.groupby("k").v.sum().compute(), FRAME.groupby("k").v.sum())
    assert len(kept.set_index("v").compute()) == len(FRAME)
    assert path.read_text() == "xxxx"


def test_dropping_it_frees_the_store() -> None:
    before = RayFutures().store().used
    kept = dd.from_pandas(FRAME, npartitions=4).assign(w=1).persist()
    len(kept)
    assert RayFutures().store().used > before + FRAME.memory_usage().sum()
    made_of_it = kept.v + 1
    del kept
    gc.collect()
    assert made_of_it.sum().compute() == (FRAME.v + 1).sum()
    del made_of_it
    gc.collect()
    deadline = time.monotonic() + 10
    while RayFutures().store().used > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert RayFutures().store().used == before


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_any_other_scheduler_can_compute_it(scheduler) -> None:
    kept = dd.from_pandas(FRAME, npartitions=4).persist()
    assert kept.v.sum().compute(scheduler=scheduler) == FRAME.v.sum()
    pd.testing.assert_frame_equal(kept.compute(scheduler=scheduler), FRAME)


@pytest.mark.filterwarnings("ignore:Computing mixed collections")
def test_every_collection_and_several_at_once() -> None:
    ddf = dd.from_pandas(FRAME, npartitions=3)
    x = np.arange(250_000.0).reshape(500, 500)
    arr = da.from_array(x, chunks=(200, 300))
    bag = db.range(1000, npartitions=4)
    value = dask.delayed(np.arange)(100_000)
    kept = dask.persist(ddf, ddf.v, ddf.v.sum(), arr + 1, bag.map(str), value)
    frame, series, scalar, array, strings, delayed = kept
    assert [type(k) for k in kept] == [type(c) for c in (ddf, ddf.v, ddf.v.sum(), arr, bag, value)]
    assert frame.divisions == ddf.divisions
    pd.testing.assert_frame_equal(frame.compute(), FRAME)
    pd.testing.assert_series_equal(series.compute(), FRAME.v)
    assert scalar.compute() == FRAME.v.sum()
    np.testing.assert_array_equal((array[10:20] * 2).compute(), (x + 1)[10:20] * 2)
    np.testing.assert_array_equal(array.sum(axis=0).compute(), (x + 1).sum(axis=0))
    assert strings.compute() == [str(i) for i in range(1000)]
    assert delayed.sum().compute() == np.arange(100_000).sum()
    mixed = dask.delayed(lambda *values: [np.sum(v) for v in values])(array, delayed)
    assert mixed.compute() == [(x + 1).sum(), np.arange(100_000).sum()]


def test_what_is_already_kept_is_kept_again_without_a_task() -> None:
    kept = dd.from_pandas(FRAME, npartitions=4).persist()
    len(kept)
    with recording() as stats:
        again = kept.persist()
        lengths = dask.compute(*again.to_delayed())
    assert stats.calls == 0
    assert sum(map(len, lengths)) == len(FRAME)
    del kept
    pd.testing.assert_frame_equal(again.compute(), FRAME)


def test_an_error_is_raised_where_the_data_is_asked_for() -> None:
    def boom(part, partition_info=None):
        if partition_info and partition_info["number"] == 1:
            raise KeyError("no such user")
        return part

    ddf = dd.from_pandas(FRAME, npartitions=4)
    kept = ddf.map_partitions(boom, meta=ddf._meta).persist()
    with pytest.raises(KeyError, match="no such user"):
        kept.compute()
    assert len(kept.partitions[0].compute()) == len(ddf.partitions[0])  # the others are there


def test_a_shuffle_that_fails_fails_all_that_is_made_of_it() -> None:
    def boom(part):
        raise ValueError("bad part")

    ddf = dd.from_pandas(FRAME, npartitions=4)
    kept = ddf.map_partitions(boom, meta=ddf._meta).shuffle("k").persist()
    with pytest.raises(ValueError, match="bad part"):
        kept.compute()


def test_nobody_waits_for_what_nobody_has_any_more(tmp_path) -> None:
    ddf, path = counting(tmp_path, npartitions=40)

    def slow(part):
        time.sleep(0.2)
        return part

    kept = ddf.map_partitions(slow, meta=ddf._meta).persist()
    del kept
    gc.collect()
    deadline = time.monotonic() + 20
    while any(t.name == "dask_exo-run" for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(path.read_text()) < 40


def test_two_computations_share_what_is_being_made(tmp_path) -> None:
    ddf, path = counting(tmp_path)
    kept = ddf.persist()
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(kept.v.sum().compute())) for _ in range(3)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [FRAME.v.sum()] * 3
    assert path.read_text() == "xxxx"


class Box:
    """Dask does not look for collections in it."""

    def __init__(self, inside):
        self.inside = inside


def test_a_kept_value_inside_the_arguments_of_a_task() -> None:
    box = Box(dask.delayed(np.arange)(100_000).persist())
    total = dask.delayed(lambda box: box.inside.sum().compute())(box)
    assert total.compute() == np.arange(100_000).sum()


def test_stopping_ray_breaks_the_promise() -> None:
    promise = dask_exo.get.start({"x": (time.sleep, 60)}, "x")["x"]
    from dask_exo.execution.background import stop_all

    stop_all()
    with pytest.raises(CancelledError):
        promise.result(timeout=20)


def test_the_next_epoch_is_shuffled_while_this_one_is_consumed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(epoch_shuffle, "MARGIN", 1e9)  # as soon as this one is shuffled
    ddf, path = counting(tmp_path)
    epochs = ddf.exo.epochs(3, 10_000, seed=1, format="numpy")
    total = sum(batch["v"].sum() for batch in itertools.islice(epochs, 17))
    deadline = time.monotonic() + 60
    while path.read_text() != "x" * 8:  # four partitions, twice
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert epochs.state_dict()["epoch"] == 0
    total += sum(batch["v"].sum() for batch in epochs)
    assert total == 3 * FRAME.v.sum()
    assert path.read_text() == "x" * 12


def test_an_epoch_that_goes_on_elsewhere_has_the_same_rows(tmp_path) -> None:
    ddf, _ = counting(tmp_path)
    first, second = (ddf.exo.epochs(1, 7_000, seed=4) for _ in range(2))
    seen = [next(first) for _ in range(3)]
    second.load_state_dict(first.state_dict())
    del first
    seen += list(second)
    got = pd.concat(seen)
    assert [len(batch) for batch in seen] == [7_000] * 28 + [4_000]
    pd.testing.assert_frame_equal(got.sort_index(), FRAME)
