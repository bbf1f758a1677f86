"""Test whether a process can open GPU memory of another process (CUDA IPC).

Only `dask exo doctor` and a benchmark use this. Partitions are sent between processes through
pinned host memory; see docs/gpu.md.

References: CUDA C++ programming guide, interprocess communication; cupy, ``cupy.cuda.runtime``.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

from dask_exo.partitions.gpu import arrays

TRIED = 1 << 20  # bytes
PATIENCE = 60.0  # seconds for another process to begin with CUDA, and copy

_OTHER = """
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
    sys.exit(f"{np.count_nonzero(seen != expected)} of {nbytes} bytes came differently")
print(best)
"""


class Trial(NamedTuple):
    """Result of a test of CUDA IPC.

    Attributes
    ----------
    error : str
        Why memory cannot be shared; empty if the other process has read the values.
    seconds : float
        Shortest time of a copy in the other process.
    """

    error: str
    seconds: float = 0.0


def trial(nbytes: int = TRIED, repeats: int = 1) -> Trial:
    """Write to the GPU, and let another process open the memory, copy it and compare.

    The memory stays until the other process has ended.

    Parameters
    ----------
    nbytes : int
        That are shared.
    repeats : int
        Copies; the quickest counts.
    """
    try:
        runtime = arrays.module(arrays.DEVICE).cuda.runtime
    except ImportError as error:  # of a library of CUDA that it needs
        return Trial(str(error))
    try:
        pointer = runtime.malloc(nbytes)
        try:
            return _tried(runtime, pointer, nbytes, repeats)
        finally:
            runtime.free(pointer)
    except (runtime.CUDARuntimeError, subprocess.TimeoutExpired) as error:
        return Trial(str(error))


def _tried(runtime: Any, pointer: int, nbytes: int, repeats: int) -> Trial:
    written = np.resize(np.arange(251, dtype=np.uint8), nbytes)
    runtime.memcpy(pointer, written.ctypes.data, nbytes, runtime.memcpyHostToDevice)
    handle = bytes(runtime.ipcGetMemHandle(pointer)).hex()
    command = [sys.executable, "-c", _OTHER, handle, str(nbytes), str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return Trial(lines[-1] if lines else f"the other process ended with {done.returncode}")
    return Trial("", float(done.stdout))
