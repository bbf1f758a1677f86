"""GPU memory that processes of a machine read from each other."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from dask_exo.partitions.gpu import memory, resident
from dask_exo.partitions.gpu.resident import Resident, Residents
from dask_exo.partitions.gpu_frames import DeviceFrame
from dask_exo.planning.partitioners import RowPartitioner
from dask_exo.testing import strict_cupy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs files in memory of Linux")
spawn = multiprocessing.get_context("spawn")
SETTINGS = {"exo.gpu.simulate": True, "exo.gpu.memory": 10**9}


def numbers() -> pd.DataFrame:
    """Columns of more than a megabyte."""
    random = np.random.default_rng(0)
    return pd.DataFrame({"k": random.permutation(600_000), "f": random.random(600_000)})


def cut(frame: DeviceFrame) -> Any:
    (packed,) = RowPartitioner(count=2, column="k", keys=("k",)).cut([frame], [range(2)])[0]
    return packed


def own(pipe: Connection, module: str) -> None:
    """Be a process that keeps values on a simulated GPU."""
    if module == "cupy":
        strict_cupy.install()
    with dask.config.set(SETTINGS if module == "numpy" else {}):
        memory.prepare(module)
        frame = DeviceFrame.from_pandas(numbers(), module)
        kept = [pickle.dumps(frame), pickle.dumps(cut(frame))]
        pipe.send(kept)
        for nbytes in iter(pipe.recv, None):
            pipe.send(memory.residents(module).drop(nbytes))


class Process:
    """Another process, and what it has put into the store."""

    def __init__(self, module: str) -> None:
        self._pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=own, args=(other, module), daemon=True)
        self.process.start()
        self.frame, self.block = self._pipe.recv()

    def drop(self) -> int:
        """Let it drop all that it may; return the bytes."""
        self._pipe.send(2**60)
        return int(self._pipe.recv())

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@pytest.fixture(params=["numpy", "cupy"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "cupy":
        for name in ("cupy", "cupy.cuda", "cupyx"):
            monkeypatch.setitem(sys.modules, name, sys.modules.get(name, pytest))
        strict_cupy.install()
        strict_cupy.counters.reset()
    monkeypatch.setattr(memory, "_arenas", {})
    caches = (memory._chunks, memory._side_stream)
    for cached in caches:
        cached.cache_clear()
    with dask.config.set(SETTINGS if request.param == "numpy" else {}):
        memory.prepare(request.param)
        DeviceFrame.from_pandas(pd.DataFrame({"a": [1]}), request.param)  # the arena is made
        yield request.param
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def other(module: str) -> Iterator[Process]:
    made = Process(module)
    yield made
    made.kill()


def opened(other: Process) -> list[Path]:
    """Return this process's open files of the leases of another one."""
    token = name_of(other.frame).owner.token
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed by another thread
            found += [file] if token in str(file.readlink()) else []
    return found


def load(stored: bytes) -> Any:
    return pickle.loads(stored)  # noqa: S301


def rows_of(block: bytes) -> pd.DataFrame:
    shuffle = RowPartitioner(count=2, column="k", keys=("k",))
    frames = [shuffle.assemble([load(block)], slot, slot)[0].to_pandas() for slot in range(2)]
    return pd.concat(frames).sort_index()


def test_values_and_blocks_are_read_from_the_gpu_of_their_process(
    module: str, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(array: np.ndarray, xp: Any) -> Any:
        raise AssertionError("it was copied from the host")

    with monkeypatch.context() as patch:
        patch.setattr(memory, "to_device", refuse)
        there = load(other.frame)
        strict_cupy.counters.reset()
        shuffled = rows_of(other.block)
    # the columns and labels once, and words and squares of the checksum of a key
    assert strict_cupy.counters.allocated <= 600_000 * (3 + 2) * 8 + 100
    pd.testing.assert_frame_equal(there.to_pandas(), numbers())
    pd.testing.assert_frame_equal(shuffled, numbers())
    assert memory.residents(module).borrowed == 1 + 2 * 2  # integers and floats, for two reducers
    there["f"].values[:] = 0  # it is a copy
    pd.testing.assert_frame_equal(load(other.frame).to_pandas(), numbers())
    assert not strict_cupy.counters.races


def test_what_was_dropped_is_read_from_the_host(module: str, other: Process) -> None:
    assert other.drop() > 2**20
    pd.testing.assert_frame_equal(load(other.frame).to_pandas(), numbers())
    pd.testing.assert_frame_equal(rows_of(other.block), numbers())
    assert memory.residents(module).borrowed == 0


def test_what_a_dead_process_had_is_read_from_the_host(module: str, other: Process) -> None:
    load(other.frame)
    assert memory.residents(module).borrowed == 1
    assert len(opened(other)) == 1
    other.kill()
    pd.testing.assert_frame_equal(load(other.frame).to_pandas(), numbers())
    pd.testing.assert_frame_equal(rows_of(other.block), numbers())
    assert memory.residents(module).borrowed == 1
    assert not opened(other)


def test_a_value_stays_while_another_process_reads_it(other: Process) -> None:
    name = name_of(other.frame)
    with resident.leased(name) as there:
        assert there
        assert other.drop() > 0  # the block
    with resident.leased(name) as there:
        assert there
    assert other.drop() > 0
    with resident.leased(name) as there:
        assert not there


def name_of(stored: bytes) -> Resident:
    """Return the name in a pickled frame."""
    found: list[Resident] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Residents, "get", lambda _, name: found.append(name))
        load(stored)
    return found[0]


def hold(pipe: Connection, name: Resident) -> None:
    with resident.leased(name) as there:
        pipe.send(there)
        signal.pause()


@pytest.mark.parametrize("module", ["numpy"], indirect=True)
def test_a_reader_that_dies_holds_nothing(module: str) -> None:
    residents = Residents(10**9)
    name = residents.keep(np.zeros(100, np.uint8))
    pipe, end = spawn.Pipe()
    reader = spawn.Process(target=hold, args=(end, name), daemon=True)
    reader.start()
    assert pipe.recv() is True
    assert residents.drop(1) == 0
    assert residents.nbytes == 100
    reader.kill()
    reader.join()
    assert residents.drop(1) == 100


@pytest.mark.parametrize("module", ["cupy"], indirect=True)
def test_a_gpu_that_cannot_be_reached_is_not_tried_again(
    module: str, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, tried = sys.modules["cupy"].cuda.runtime, []

    def refuse(handle: bytes, flags: int = 1) -> int:
        tried.append(handle)
        raise runtime.CUDARuntimeError("peer access is not supported")

    monkeypatch.setattr(runtime, "ipcOpenMemHandle", refuse)
    for _ in range(2):
        pd.testing.assert_frame_equal(load(other.frame).to_pandas(), numbers())
    assert len(tried) == 1


@pytest.mark.parametrize("module", ["cupy"], indirect=True)
def test_a_gpu_without_handles_shares_nothing(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = sys.modules["cupy"].cuda.runtime

    def refuse(address: int) -> bytes:
        raise runtime.CUDARuntimeError("operation not supported")

    monkeypatch.setattr(runtime, "ipcGetMemHandle", refuse)
    stored = pickle.dumps(DeviceFrame.from_pandas(numbers(), module))
    assert name_of(stored).allocation is None
    pd.testing.assert_frame_equal(load(stored).to_pandas(), numbers())


def test_another_process_with_the_same_number_is_not_asked() -> None:
    name = Residents(10**9).keep(np.zeros(100, np.uint8))
    stranger = name.owner._replace(token="0" * 32)
    with resident.leased(name._replace(owner=stranger)) as there:
        assert not there
