"""Array modules: the same code runs on numpy and on cupy, and only this module imports cupy.

Code uses only what both modules have. cupy's ``argsort`` is always stable.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
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


def root(array: Any) -> Any:
    """Return the array that owns the memory of a view."""
    while isinstance(array.base, type(array)):
        array = array.base
    return array


def address(array: Any) -> int:
    """Return the address of the first value."""
    data = array.__array_interface__["data"] if isinstance(array, np.ndarray) else None
    return int(array.data.ptr if data is None else data[0])


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


def bounds(*codes: Any) -> list[int]:
    """Return the least and the greatest integer of each array; on a GPU, wait once."""
    return of(codes[0]).stack([f for each in codes for f in (each.min(), each.max())]).tolist()


def narrow(codes: Any) -> Any:
    """Return integers of a GPU in the same order, in the fewest bytes: sorts take less passes."""
    if isinstance(codes, np.ndarray) or not len(codes):
        return codes
    low, high = bounds(codes)
    dtype = np.min_scalar_type(high - low)
    if dtype.itemsize == codes.dtype.itemsize:
        return codes
    return of(codes).subtract(codes, low, out=of(codes).empty(len(codes), dtype), casting="unsafe")


def argsort(codes: Any, *, is_narrow: bool = False) -> Any:
    """Argsort integers in a stable way; ``is_narrow``: they come from `narrow`."""
    if isinstance(codes, np.ndarray):
        return stable_argsort(codes)
    return (codes if is_narrow else narrow(codes)).argsort()


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run elementwise code of arrays in one kernel on a GPU."""

    @functools.cache
    def kernel() -> Callable[..., Any]:
        return module(DEVICE).fuse(kernel_name=function.__name__.strip("_"))(function)

    @functools.wraps(function)
    def run(*operands: Any) -> Any:
        return (function if isinstance(operands[-1], np.ndarray) else kernel())(*operands)

    return run


def spread(counts: Any) -> tuple[Any, Any]:
    """Enumerate the units of (n,) counts: the count that each belongs to, and its number there.

    Examples
    --------
    >>> owner, place = spread(np.array([2, 0, 1]))
    >>> owner.tolist(), place.tolist()
    ([0, 0, 2], [0, 1, 0])
    """
    xp = of(counts)
    most, total = xp.stack([counts.max(), counts.sum()]).tolist() if len(counts) else (0, 0)
    if most <= 1:  # each has one, as in a join with unique keys
        owner = xp.arange(total) if total == len(counts) else xp.flatnonzero(counts)
        return owner, xp.zeros(total, np.int64)
    ends = xp.cumsum(counts)
    units = xp.arange(total)
    owner = xp.searchsorted(ends, units, side="right")
    return owner, units - (ends - counts)[owner]
