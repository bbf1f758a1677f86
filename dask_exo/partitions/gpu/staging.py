"""Between a device and the host: one packed buffer and one copy each way.

Copies run on a stream of their own, through pinned host memory, beside what is computed. Where
numpy stands for the device, the same is done, and what comes to the host is the array itself.

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
    """Where an array lies in a buffer: its first byte, its dtype, and its length."""

    start: int
    dtype: np.dtype
    length: int


Coming = Callable[[], np.ndarray]
"""Waits for a copy that has been begun, and returns it."""


def pack(several: Sequence[Any], xp: Any) -> tuple[Any, tuple[Place, ...]]:
    """Put arrays behind one another, in one buffer of the device.

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
    """The arrays in a buffer, without a copy."""
    return [buffer[p.start : p.start + p.length * p.dtype.itemsize].view(p.dtype) for p in places]


def to_host(array: Any) -> Coming:
    """Begin to copy an array to the host.

    The device goes on with what it is told next; the array must not be changed before the copy is
    there.
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
    """Copy an array to the device; what is computed there next waits for it."""
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
