"""Array modules: the same code runs on numpy and on cupy, and only this module imports cupy.

Code uses only what both modules have. cupy's ``argsort`` is always stable, its ``bincount`` sums
float64 only, and its scattered minimum (`scatter_min`) takes uint64, but not int64.

References: cupy, ``cupy/_core/_routines_indexing.pyx``, ``cupy/_sorting/sort.py``,
``cupy.cuda.runtime``; CUDA C++ programming guide, interprocess communication.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

from dask_exo.config import Config
from dask_exo.errors import DeviceError
from dask_exo.partitions.kernels.argsort import stable_argsort

HOST, DEVICE = "numpy", "cupy"


def module(name: str) -> Any:
    """Return an array module by name: ``"numpy"`` or ``"cupy"``."""
    return np if name == HOST else importlib.import_module(DEVICE)


def of(array: Any) -> Any:
    """Return the array module of an array."""
    return np if isinstance(array, np.ndarray) else module(DEVICE)


def name_of(array: Any) -> str:
    """Return the name of the array module of an array."""
    return HOST if isinstance(array, np.ndarray) else DEVICE


def host(array: Any) -> np.ndarray:
    """Copy an array to host memory."""
    return array if isinstance(array, np.ndarray) else module(DEVICE).asnumpy(array)


def devices() -> int:
    """Return the number of GPUs that this process can use; 0 without cupy."""
    if not installed():
        return 0
    runtime = module(DEVICE).cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError:  # no driver, or no device
        return 0


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate an array in pinned host memory, which a GPU copies asynchronously."""
    array: np.ndarray = importlib.import_module("cupyx").empty_pinned(shape, dtype)
    return array


def here() -> str:
    """Return the array module of this process: "cupy", or "numpy" if GPUs are simulated."""
    if Config.current().gpu_simulate:
        return HOST
    if not devices():
        raise DeviceError(
            f"this process needs 1 GPU and cupy, and has {devices()} GPUs: request one "
            f"(num_gpus=), or set exo.gpu.simulate to try without one, on numpy"
        )
    return DEVICE


def installed() -> bool:
    """Return whether cupy is installed."""
    return importlib.util.find_spec(DEVICE) is not None


def argsort(codes: Any) -> Any:
    """Argsort integers in a stable way."""
    return stable_argsort(codes) if isinstance(codes, np.ndarray) else codes.argsort()


def scatter_min(out: Any, places: Any, values: Any) -> None:
    """Set ``out[places]`` to the minimum with ``values``, in place; places may repeat."""
    of(out).minimum.at(out, places, values)


def spread(counts: Any) -> tuple[Any, Any]:
    """Enumerate the units of (n,) counts: the count that each belongs to, and its number there.

    Examples
    --------
    >>> owner, place = spread(np.array([2, 0, 1]))
    >>> owner.tolist(), place.tolist()
    ([0, 0, 2], [0, 1, 0])
    """
    xp = of(counts)
    if not len(counts) or int(counts.max()) <= 1:  # each has one, as in a join with unique keys
        owner = xp.flatnonzero(counts)
        return owner, xp.zeros(len(owner), np.int64)
    ends = xp.cumsum(counts)
    units = xp.arange(int(ends[-1]))
    owner = xp.searchsorted(ends, units, side="right")
    return owner, units - (ends - counts)[owner]


_READER = """
import sys, time
import numpy as np
from cupy.cuda import runtime
handle, nbytes, repeats = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
there, own, best = runtime.ipcOpenMemHandle(handle), runtime.malloc(nbytes), float("inf")
for _ in range(repeats):
    start = time.perf_counter()
    runtime.memcpy(own, there, nbytes, runtime.memcpyDeviceToDevice)
    runtime.deviceSynchronize()
    best = min(best, time.perf_counter() - start)
runtime.ipcCloseMemHandle(there)
seen = np.empty(nbytes, np.uint8)
runtime.memcpy(seen.ctypes.data, own, nbytes, runtime.memcpyDeviceToHost)
expected = np.resize(np.arange(251, dtype=np.uint8), nbytes)
if not np.array_equal(seen, expected):
    sys.exit(f"{np.count_nonzero(seen != expected)} of {nbytes} bytes differ")
print(best)
"""


class IpcTrial(NamedTuple):
    """Result of `try_ipc`: why memory cannot be shared, or the shortest time of a copy."""

    error: str
    seconds: float = 0.0


def try_ipc(
    nbytes: int = 1 << 20, repeats: int = 1, *, reader: str = _READER, timeout: float = 60.0
) -> IpcTrial:
    """Let another process open GPU memory of this one (CUDA IPC), copy it and compare.

    Only `dask exo doctor` and a benchmark use this; partitions are sent between processes through
    pinned host memory, see docs/gpu.md. The memory stays until the other process has ended, which
    has ``timeout`` seconds.
    """
    try:
        runtime = module(DEVICE).cuda.runtime
    except ImportError as error:  # a CUDA library is missing
        return IpcTrial(str(error))
    try:
        pointer = runtime.malloc(nbytes)
        try:
            written = np.resize(np.arange(251, dtype=np.uint8), nbytes)
            runtime.memcpy(pointer, written.ctypes.data, nbytes, runtime.memcpyHostToDevice)
            handle = bytes(runtime.ipcGetMemHandle(pointer)).hex()
            command = [sys.executable, "-c", reader, handle, str(nbytes), str(repeats)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, check=False
            )
        finally:
            runtime.free(pointer)
    except (runtime.CUDARuntimeError, subprocess.TimeoutExpired) as error:
        return IpcTrial(str(error))
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return IpcTrial(lines[-1] if lines else f"the other process ended with {done.returncode}")
    return IpcTrial("", float(done.stdout))
