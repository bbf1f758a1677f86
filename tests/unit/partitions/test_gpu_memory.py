"""The memory of a device: packed and copied, spilled where it is full, and batches in halves."""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_exo
from dask_exo import Scheduler
from dask_exo.cluster.ownership import isolated, size_of, writable
from dask_exo.errors import DeviceMemoryError
from dask_exo.partitions.batching import call_in_halves
from dask_exo.partitions.gpu import memory
from dask_exo.partitions.gpu.memory import Arena
from dask_exo.partitions.gpu.shuffle import start_copy, start_to_gpu
from dask_exo.partitions.gpu_frames import DeviceFrame, concat
from dask_exo.planning.partitioners import RowPartitioner
from dask_exo.testing import InlineFutures, strict_cupy
from tests._data import MODULE


class OutOfMemoryError(MemoryError):
    """As cupy's is called."""


class SmallDevice:
    """An allocator of a device with a few bytes, as cupy's pool is one."""

    def __init__(self, nbytes: int) -> None:
        self.free = nbytes
        self.most = nbytes

    def malloc(self, nbytes: int) -> int:
        if nbytes > self.free:
            raise OutOfMemoryError(f"need {nbytes}, have {self.free}")
        self.free -= nbytes
        return nbytes


@contextlib.contextmanager
def budget(nbytes: int) -> Iterator[Arena]:
    """So many bytes of device memory, and a quarter of them pinned, for arrays of numpy."""
    with dask.config.set({"exo.gpu.simulate": True, "exo.gpu.memory": nbytes}):
        memory.prepare("numpy")
        made = memory.arena_of(np.empty(0))
        assert made is not None
        yield made
    memory.prepare("numpy")
    assert memory.arena_of(np.empty(0)) is None


@pytest.fixture
def arena() -> Iterator[Arena]:
    with budget(4096) as made:
        yield made


def rows(n: int, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "i": random.integers(0, 9, n),
            "f": np.where(random.random(n) < 0.2, np.nan, random.random(n)),
            "s": pd.Series(random.choice(["a", "bb", "é"], n), dtype="str").mask(
                random.random(n) < 0.2
            ),
            "n": pd.array(random.choice([1, 2, None], n), dtype="Int64"),
            "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(random.integers(0, 99, n), "h"),
            "b": random.random(n) < 0.5,
        }
    )


@given(
    st.lists(st.sampled_from(["i1", "i8", "f4", "?", "u2"])), st.integers(0, 400), st.integers(0)
)
def test_unpack_inverts_pack(dtypes: list[str], n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    several = [random.integers(0, 2, n).astype(dtype) for dtype in dtypes]
    wait, places = memory.pack(several)
    for mine, theirs in zip(memory.unpack(wait(), places), several, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


@pytest.mark.parametrize("n", [0, 1, 30])
@pytest.mark.parametrize("index", [None, "i", ["i", "s"]])
def test_a_frame_travels_as_one_buffer(n: int, index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    to_device = memory.to_device
    monkeypatch.setattr(memory, "to_device", lambda a, xp: (copies.append(a), to_device(a, xp))[1])
    frame = rows(n)
    there = DeviceFrame.from_pandas(frame if index is None else frame.set_index(index), "numpy")
    found = pickle.loads(pickle.dumps(there, protocol=5))  # noqa: S301  our own
    assert len(copies) == 1
    pd.testing.assert_frame_equal(found.to_pandas(), there.to_pandas())
    pd.testing.assert_frame_equal(start_copy(there)().frame("numpy").to_pandas(), there.to_pandas())


def test_least_recently_used_arrays_spill_first(arena: Arena) -> None:
    a, b, c = (arena.hold(np.full(n, n)) for n in (256, 200, 56))  # 2048, 1600 and 448 bytes
    assert (arena.used, arena.spilled) == (4096, 0)
    a.get()
    d = arena.hold(np.zeros(10))
    assert (b.array, arena.used, arena.on_pinned, arena.on_host) == (None, 2576, 0, 1600)
    e = arena.hold(np.ones(240))
    assert c.array is None
    assert (arena.on_pinned, arena.on_host) == (448, 1600)
    assert b.get().tolist() == [200] * 200
    del a, b, c, d, e
    gc.collect()
    assert (arena.used, arena.on_pinned, arena.on_host) == (0, 0, 0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 99))
@settings(max_examples=20)
def test_spilled_frames_give_the_same_results(steps: list[int], seed: int) -> None:
    expected = frame = rows(40, seed)
    with budget(2000) as small:
        held = [DeviceFrame.from_pandas(rows(40, s), "numpy") for s in range(3)]
        there = DeviceFrame.from_pandas(frame, "numpy")
        for step in steps:
            if step == 0:
                there, expected = there.sort_values(["i", "f"]), expected.sort_values(["i", "f"])
            elif step == 1:
                there, expected = there[there.i > 2], expected[expected.i > 2]
            elif step == 2:
                there, expected = there.assign(f=there.f * 2), expected.assign(f=expected.f * 2)
            else:
                there = concat([there.head(20), held[step - 2].head(5)])
                expected = pd.concat([expected.head(20), rows(40, step - 2).head(5)])
            assert small.used <= max(small.limit, 8 * len(there))
        pd.testing.assert_frame_equal(there.to_pandas(), expected)
        for s, one in enumerate(held):
            pd.testing.assert_frame_equal(one.to_pandas(), rows(40, s))
        assert small.spilled
        assert small.restored
        del there, held, one
        gc.collect()
        assert small.used == small.on_pinned == small.on_host == 0


def test_a_budget_does_not_change_a_computation() -> None:
    frame = rows(400)[["i", "f", "n"]]
    with budget(900) as small, dask.config.set(scheduler=Scheduler(InlineFutures())):
        there = dd.from_pandas(frame, npartitions=4).exo.to_gpu()
        found = there.groupby("i").f.sum(split_out=2).exo.to_pandas().compute()
        assert small.spilled > 900
    pd.testing.assert_series_equal(found.sort_index(), frame.groupby("i").f.sum())


def test_a_failed_allocation_spills_and_is_retried() -> None:
    device, trimmed = SmallDevice(1000), []
    arena = Arena(10_000, 0, np, lambda: trimmed.append(device.free))

    def spill_frees(nbytes: int) -> int:
        freed = Arena.spill(arena, nbytes)
        device.free += freed
        return freed

    arena.spill = spill_frees  # type: ignore[method-assign]
    allocate = arena.allocating(device.malloc)
    held = [arena.hold(np.zeros(allocate(800) // 8))]
    assert allocate(600) == 600
    assert held[0].array is None
    assert trimmed
    with pytest.raises(OutOfMemoryError):
        allocate(5000)


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_batch_that_does_not_fit_is_halved(n: int, room: int) -> None:
    sizes: list[int] = []

    def call(batch: pd.DataFrame) -> pd.DataFrame:
        if len(batch) > room:
            raise OutOfMemoryError
        sizes.append(len(batch))
        return batch * 2

    frame = pd.DataFrame({"a": range(n)})
    found = pd.concat(call_in_halves(call, frame, "double"))
    pd.testing.assert_frame_equal(found, frame * 2)
    assert max(sizes) <= room
    assert len(sizes) <= 2 * -(-n // room)


def test_a_row_that_does_not_fit_raises_an_error() -> None:
    def model(_: Any) -> None:
        raise OutOfMemoryError("allocating 8 bytes, 4 free")

    with pytest.raises(DeviceMemoryError, match=r"model needs more .* 1 row .* 4 free.*num_gpus="):
        call_in_halves(model, np.arange(4), "model")
    with pytest.raises(KeyError):
        call_in_halves(lambda batch: {}[len(batch)], np.arange(4), "model")


def test_batches_of_options_are_halved() -> None:
    @dask_exo.options(batch_size=8)
    def model(batch: pd.DataFrame) -> pd.DataFrame:
        if len(batch) > 3:
            raise OutOfMemoryError
        return batch.assign(rows=len(batch))

    frame = pd.DataFrame({"a": range(10)})
    ddf = dd.from_pandas(frame, npartitions=1)
    found = ddf.map_partitions(model, meta={"a": int, "rows": int}).compute(scheduler="sync")
    assert found.rows.tolist() == [2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    assert found.a.tolist() == frame.a.tolist()


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The strict stand-in, for one test."""
    if MODULE == "cupy" and sys.modules["cupy"].__version__ != strict_cupy.VERSION:
        pytest.skip("a GPU is there")
    for name in ("cupy", "cupy.cuda", "cupyx"):
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name, pytest))
    strict_cupy.install()
    strict_cupy.counters.reset()
    monkeypatch.setattr(memory, "CHUNK", 64)
    monkeypatch.setattr(memory, "_arenas", {})
    for cached in (memory._chunks, memory._side_stream):
        cached.cache_clear()
    yield sys.modules["cupy"]
    for cached in (memory._chunks, memory._side_stream):
        cached.cache_clear()


def test_copies_wait_for_kernels_and_kernels_for_copies(cupy: Any) -> None:
    for n in (3, 100, 0):
        there = memory.to_device(np.arange(n), cupy)
        doubled = there + there
        del there
        back = memory.to_host(doubled)
        assert back().tolist() == (2 * np.arange(n)).tolist()
        del doubled, back
    wait, places = memory.pack([cupy.arange(30), cupy.zeros(7, "i1")])
    assert [len(each) for each in memory.unpack(wait(), places)] == [30, 7]
    gc.collect()
    assert not strict_cupy.counters.races


def test_a_frame_may_be_on_its_way_while_kernels_run(cupy: Any) -> None:
    host = pd.DataFrame({"a": range(50), "b": pd.array([1, None] * 25, "Int64")}).assign(c="x")
    there = [start_to_gpu(host, "cupy") for _ in range(2)]
    _ = cupy.arange(9) + 1
    for wait in there:
        frame = wait()
        pd.testing.assert_frame_equal((frame[["a", "b"]] + 1).to_pandas(), host[["a", "b"]] + 1)
        pd.testing.assert_frame_equal(frame.to_pandas(), host)
    del frame, wait, there
    gc.collect()
    assert not strict_cupy.counters.races


def test_the_stand_in_sees_what_nobody_waits_for(cupy: Any) -> None:
    side = cupy.cuda.Stream(non_blocking=True)
    with side:  # memory of its pool, which is handed out again while kernels here still read it
        there = cupy.empty(3, np.int64)
        there.set(np.arange(3), stream=side)
    cupy.cuda.get_current_stream().wait_event(side.record())
    _ = there + there
    assert not strict_cupy.counters.races
    del there
    gc.collect()
    assert strict_cupy.counters.races == ["memory is freed while another stream works on it"]
    there = cupy.arange(3)
    there.get(stream=side, out=np.empty(3, np.int64), blocking=False)
    assert strict_cupy.counters.races[1:] == ["memory is used while another stream works on it"]


def test_where_no_memory_can_be_pinned_a_copy_is_pageable(cupy: Any, monkeypatch: Any) -> None:
    def full(*_: Any) -> None:
        raise cupy.cuda.runtime.CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(memory.arrays, "pinned", full)
    assert memory.to_host(cupy.arange(2))().tolist() == [0, 1]


def test_views_are_counted_once_and_spilled_together() -> None:
    with budget(10**6) as made:
        frame = DeviceFrame.from_pandas(rows(30), "numpy")
        again = pickle.loads(pickle.dumps(frame))  # noqa: S301
        del frame
        gc.collect()
        used = made.used
        halves = [again.iloc[:10], again.iloc[10:]]
        assert made.used == used
        expected = [half.to_pandas() for half in halves]
        assert made.spill(1) == used
        assert made.used == 0
        for half, host in zip(halves, expected, strict=True):
            pd.testing.assert_frame_equal(half.to_pandas(), host)
        assert made.used == made.restored == used


def test_an_array_that_cannot_be_spilled_stays_counted() -> None:
    made = Arena(100, 0, np)
    buffer = made.hold(np.arange(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "_copy_to_host", lambda buffer: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.spill(1)
    assert buffer.get().tolist() == [0, 1]
    del buffer
    gc.collect()
    assert made.used == 0


def test_what_another_library_reads_is_never_spilled() -> None:
    with budget(10**6) as made:
        frame = DeviceFrame.from_pandas(pd.DataFrame({"a": [1, 2], "b": [3, 4]}), "numpy")
        values = frame["a"].column.expose()
        made.spill(10**6)
        assert frame["a"].column.values is values
        assert made.spilled == frame["b"].column.nbytes


@pytest.mark.parametrize("limit", [10**9, 10**6, 3 * 10**5])
def test_a_value_of_the_store_is_also_on_the_gpu_while_there_is_room(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Any] = []
    to_device = memory.to_device
    monkeypatch.setattr(memory, "to_device", lambda a, xp: (copies.append(a), to_device(a, xp))[1])
    numbers = rows(3000).drop(columns="s")
    with budget(limit) as made:
        there = DeviceFrame.from_pandas(numbers, "numpy")
        stored = pickle.dumps(there)
        first = pickle.loads(stored)  # noqa: S301
        first["f"].values[:] = 7.0  # its own memory
        pd.testing.assert_frame_equal(pickle.loads(stored).to_pandas(), numbers)  # noqa: S301
        hits = made.residents.hits
        assert (hits, len(copies)) == ((2, 0) if limit > 3 * 10**5 else (0, 2))
        kept = [DeviceFrame.from_pandas(numbers, "numpy") for _ in range(3)]
        assert made.used + made.residents.nbytes <= max(limit, made.used)
        others = [pickle.dumps(frame) for frame in kept]
        made.residents.drop(2**60)
        for each in (stored, *others):
            pd.testing.assert_frame_equal(pickle.loads(each).to_pandas(), numbers)  # noqa: S301
    with budget(limit):  # another process has none of it
        pd.testing.assert_frame_equal(pickle.loads(stored).to_pandas(), numbers)  # noqa: S301


def test_a_task_gets_a_copy_of_its_own_without_a_way_through_the_host(cupy: Any) -> None:
    host = pd.DataFrame({"a": [1, 2, 3], "b": pd.array([1, None, 3], "Int64")})
    frame = DeviceFrame.from_pandas(host, "cupy")
    strict_cupy.counters.reset()
    copies = [isolated(frame), isolated(frame["a"]), isolated(frame.index)]
    assert [writable(copy) for copy in copies] == copies
    assert size_of(frame["a"], most=100) == frame["a"].nbytes
    counters = strict_cupy.counters
    assert (counters.to_host, counters.to_device, counters.waits) == (0, 0, 0)
    copies[0]["a"].values[:] = 0
    copies[1].values[:] = 0
    pd.testing.assert_frame_equal(frame.to_pandas(), host)
    assert copies[0].to_pandas().a.tolist() == copies[1].to_pandas().tolist() == [0, 0, 0]


def test_a_reducer_reads_the_blocks_of_its_own_process_on_the_gpu(cupy: Any) -> None:
    maps = [rows(70_000, seed).drop(columns="s") for seed in range(3)]  # a mask is worth it
    shuffle = RowPartitioner(count=4, column="i", keys=("i",))
    packed = [shuffle.cut([DeviceFrame.from_pandas(part, "cupy")], [range(4)])[0] for part in maps]
    residents = memory._arenas["cupy"].residents
    counters = strict_cupy.counters

    def outputs() -> tuple[list[pd.DataFrame], int]:
        counters.reset()
        blocks = [pickle.loads(pickle.dumps(each)) for (each,) in packed]  # noqa: S301
        frames = [shuffle.assemble(blocks, slot, slot)[0] for slot in range(4)]
        return [frame.to_pandas() for frame in frames], counters.to_device

    kept = residents.nbytes
    assert kept == sum(each.nbytes for (each,) in packed)
    here, copied = outputs()
    assert (copied, residents.nbytes) == (0, 0)  # each row is read once
    again, copied = outputs()  # as in another process
    assert copied == kept
    packed[1] = shuffle.cut([DeviceFrame.from_pandas(maps[1], "cupy")], [range(4)])[0]
    mixed, copied = outputs()
    assert copied == kept - packed[1][0].nbytes
    expected = shuffle(*maps)
    for frames in (here, again, mixed):
        for mine, theirs in zip(frames, expected, strict=True):
            pd.testing.assert_frame_equal(mine, theirs)
    gc.collect()
    assert not counters.races


def test_sums_of_floats_do_not_depend_on_the_order_of_threads(cupy: Any) -> None:
    frame = DeviceFrame.from_pandas(
        pd.DataFrame({"k": [1, 2, 1] * 9, "f": np.arange(27.0)}), "cupy"
    )
    assert frame.groupby("k").f.sum().to_pandas().tolist() == [234.0, 117.0]
    assert frame.f.sum() == 351.0
    assert strict_cupy.counters.unordered_sums == 0


def test_blocks_stay_on_the_gpu_only_while_there_is_room() -> None:
    numbers = rows(30_000).drop(columns="s")
    for limit, stay in ((10**9, True), (2 * 10**5, False)):
        with budget(limit) as made:
            there = dd.from_pandas(numbers, npartitions=3, sort=False).exo.to_gpu()
            scheduler = Scheduler(futures=InlineFutures())
            found = there.shuffle("i").exo.to_pandas().compute(scheduler=scheduler)
            assert (made.residents.hits > 0) is stay
        pd.testing.assert_frame_equal(found.sort_index(), numbers)
