"""CUDA IPC is tried in two processes, with a runtime whose device memory is files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from dask_exo.cli.doctor import gather, machine_facts
from dask_exo.cluster.futures import Node
from dask_exo.partitions.gpu import arrays
from dask_exo.testing import InlineFutures

RUNTIME = dedent(
    '''
    """What the probe uses of cupy.cuda.runtime."""
    import ctypes, mmap, os, tempfile

    FOLDER, FAULT = os.environ["FAKE_DEVICE"], os.environ.get("FAKE_FAULT")
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3
    held = {}

    class CUDARuntimeError(RuntimeError):
        pass

    def _mapped(path):
        with open(path, "r+b") as file:
            there = mmap.mmap(file.fileno(), 0)
        address = ctypes.addressof(ctypes.c_char.from_buffer(there))
        held[address] = there, path
        return address

    def getDeviceCount():
        return 1

    def malloc(nbytes):
        if FAULT == "full":
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        number, path = tempfile.mkstemp(dir=FOLDER)
        os.truncate(number, nbytes)
        return _mapped(path)

    def free(pointer):
        os.remove(held.pop(pointer)[1])

    def memcpy(to, source, nbytes, kind):
        assert (to in held, source in held) == {1: (1, 0), 2: (0, 1), 3: (1, 1)}[kind]
        ctypes.memmove(to, source, nbytes)

    def deviceSynchronize():
        pass

    def ipcGetMemHandle(pointer):
        return os.path.basename(held[pointer][1]).encode().ljust(64, b"\\0")

    def ipcOpenMemHandle(handle):
        assert len(handle) == 64
        path = os.path.join(FOLDER, handle.rstrip(b"\\0").decode())
        if FAULT == "refused":
            raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")
        if FAULT == "garbled":
            with open(path, "r+b") as file:
                file.write(b"xyz")
        return _mapped(path)

    def ipcCloseMemHandle(pointer):
        del held[pointer]
    '''
)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package cupy, here and in processes that this one starts."""
    package = tmp_path / "packages" / "cupy"
    (package / "cuda").mkdir(parents=True)
    (tmp_path / "device").mkdir()
    (package / "__init__.py").write_text("from . import cuda\n")
    (package / "cuda" / "__init__.py").write_text("from . import runtime\n")
    (package / "cuda" / "runtime.py").write_text(RUNTIME)
    monkeypatch.setenv("FAKE_DEVICE", str(tmp_path / "device"))
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    monkeypatch.syspath_prepend(package.parent)
    yield monkeypatch
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        del sys.modules[name]


def test_another_process_reads_the_same_bytes(fake: Any, tmp_path: Path) -> None:
    found = arrays.try_ipc(100_003, repeats=2)
    assert found.error == ""
    assert found.seconds > 0
    assert not sys.modules["cupy.cuda.runtime"].held
    (left,) = (tmp_path / "device").iterdir()  # of the other process: it ends with it
    assert left.stat().st_size == 100_003


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("refused", "invalid argument"),
        ("garbled", "3 of 1048576 bytes differ"),
        ("full", "out of memory"),
    ],
)
def test_why_memory_cannot_be_shared(fake: Any, fault: str, why: str) -> None:
    fake.setenv("FAKE_FAULT", fault)
    assert why in arrays.try_ipc().error


def test_the_other_process_has_a_time_limit(fake: Any) -> None:
    sleeper, quitter = "import time; time.sleep(60)", "import os; os._exit(7)"
    assert "timed out" in arrays.try_ipc(reader=sleeper, timeout=0.2).error
    assert arrays.try_ipc(reader=quitter).error == "the other process ended with 7"


def test_the_doctor_tries_it_where_there_is_a_device(fake: Any) -> None:
    fake.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = machine_facts(None, ())
    assert (machine.cupy, machine.devices, machine.ipc) == (True, 1, "")
    fake.setenv("CUDA_VISIBLE_DEVICES", "")
    machine = machine_facts(None, ())
    assert (machine.devices, machine.ipc) == (-1, None)


class Cluster(InlineFutures):
    """Takes note of what tasks ask for; `busy`, it has no GPU for them."""

    def __init__(self, *, busy: bool) -> None:
        super().__init__()
        self.busy, self.asked, self.cancelled = busy, list[Any](), list[Any]()

    def submit(self, fn: Any, *args: Any, node: Any = None, options: Any = None) -> Any:
        self.asked.append(options)
        return super().submit(fn, *args)

    def nodes(self) -> list[Node]:
        (node,) = super().nodes()
        return [replace(node, resources={"CPU": 1.0, "GPU": 2.0})]

    def wait(self, refs: Any, timeout: float | None = None) -> Any:
        return ([], list(refs)) if self.busy else super().wait(refs, timeout)

    def cancel(self, refs: Any) -> None:
        self.cancelled += refs


@pytest.mark.parametrize("busy", [False, True])
def test_the_doctor_asks_for_a_bit_of_a_gpu_where_ray_hides_them(fake: Any, busy: bool) -> None:
    fake.setenv("CUDA_VISIBLE_DEVICES", "")
    cluster = Cluster(busy=busy)
    (machine,) = gather(cluster).machines
    assert (machine.gpus, machine.devices) == (2, -1)
    assert machine.ipc == (None if busy else "")
    assert cluster.asked[-1] == {"num_cpus": 0, "num_gpus": 0.01}
    assert len(cluster.cancelled) == busy
