"""Array modules: the same code runs on numpy and on cupy, and only this module imports cupy.

Code uses only what both modules have. cupy's ``argsort`` is always stable, its ``bincount`` sums
float64 only, and its ``minimum.at`` takes uint64, but not int64.

References: cupy, ``cupy/_core/_routines_indexing.pyx``, ``cupy/_sorting/sort.py``.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

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
    return importlib.import_module("cupyx").empty_pinned(shape, dtype)


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
