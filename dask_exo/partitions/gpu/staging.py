"""Copies between a GPU and the host, as one packed buffer each way.

Copies run on a separate stream, through pinned host memory, concurrently with kernels. If numpy
simulates the GPU, the host gets the array itself.

References: CUDA C++ programming guide, asynchronous transfers; cupy, ``cupyx.empty_pinned``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dask_exo.partitions.gpu import arrays

ALIGNED = 256  # bytes: where cupy's own allocations begin


class Place(NamedTuple):
    """Position of an array in a buffer: first byte, dtype and length."""

    start: int
    dtype: np.dtype
    length: int


Coming = Callable[[], np.ndarray]
"""Waits for a copy that has been begun, and returns it."""


def pack(several: Sequence[Any], xp: Any) -> tuple[Any, tuple[Place, ...]]:
    """Pack arrays into one buffer on the GPU.

    Examples
    --------
    >>> buffer, places = pack([np.arange(3), np.array([True, False])], np)
    >>> [array.tolist() for array in unpack(buffer, places)]
    [[0, 1, 2], [True, False]]
    """
    places, size = [], 0
    for array in several:
        places.append(Place(size, array.dtype, len(array)))
        size += -(-int(array.nbytes) // ALIGNED) * ALIGNED
    buffer = xp.empty(size, np.uint8)
    for array, room in zip(several, unpack(buffer, places), strict=True):
        room[:] = array
    return buffer, tuple(places)


def unpack(buffer: Any, places: Sequence[Place]) -> list[Any]:
    """Return the arrays in a buffer, without a copy."""
    return [buffer[p.start : p.start + p.length * p.dtype.itemsize].view(p.dtype) for p in places]


def to_host(array: Any) -> Coming:
    """Start to copy an array to the host.

    The GPU continues with later kernels; do not change the array before the copy is done.
    """
    if isinstance(array, np.ndarray):
        return lambda: array
    side, cuda = _side_stream(), arrays.module(arrays.DEVICE).cuda
    pinned = arrays.pinned(array.shape, array.dtype)
    side.wait_event(cuda.get_current_stream().record())
    array.get(stream=side, out=pinned, blocking=False)
    end = side.record()

    def wait() -> np.ndarray:
        end.synchronize()
        _ = array  # its memory is not given to others before that
        return pinned

    return wait


def to_device(array: np.ndarray, xp: Any) -> Any:
    """Copy an array to the GPU; later kernels wait for the copy."""
    if xp is np:
        return array.copy()
    side, cuda = _side_stream(), arrays.module(arrays.DEVICE).cuda
    pinned = arrays.pinned(array.shape, array.dtype)
    pinned[...] = array
    with side:
        there = xp.empty(array.shape, array.dtype)
        there.set(pinned, stream=side)
    end = side.record()
    cuda.get_current_stream().wait_event(end)
    end.synchronize()  # the pinned memory is given to others after that
    return there


@cache
def _side_stream() -> Any:
    return arrays.module(arrays.DEVICE).cuda.Stream(non_blocking=True)
