"""One budget for the memory of a device: device → pinned host memory → host memory.

The arrays of columns are counted. Where they exceed the budget, or an allocation fails, those that
nobody has looked at for longest are copied to the host, and copied back when somebody does. What is
on disk is the object store's: values between tasks lie there, not here.

An array that something else still refers to (an operation under way, another column that is a view
of the same memory) is copied, but its memory is free only when that lets go of it.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dask_exo.config import Config
from dask_exo.partitions.gpu import arrays, staging
from dask_exo.partitions.oom_split import is_out_of_memory

SHARE = 0.8  # of what a worker may take of its GPU: the rest is for what operations need meanwhile
PINNED = 4  # a quarter of the budget: pinned memory is taken from all processes of the host


class Held(NamedTuple):
    """What a piece of work has held of a device.

    Attributes
    ----------
    peak : int
        The most bytes that arrays of columns have had there at once.
    room : int
        Bytes that such arrays of all processes may have there.
    """

    peak: int
    room: int


class Buffer:
    """An array of a device that may have to lie on the host for a while.

    Attributes
    ----------
    nbytes : int
    """

    __slots__ = ("__weakref__", "_arena", "array", "host", "nbytes")

    def __init__(self, array: Any, arena: Arena) -> None:
        self.array: Any = array
        self.host: np.ndarray | None = None
        self.nbytes, self._arena = int(array.nbytes), arena

    def get(self) -> Any:
        """The array on the device, brought back if need be."""
        return self._arena.use(self)


class Arena:
    """The arrays of a device's columns, and how many bytes they may have there.

    Parameters
    ----------
    limit : int
        Bytes on the device.
    pinned : int
        Bytes of the host that may be pinned for what does not fit; more is kept unpinned, since
        pinned memory is taken from all processes.
    xp : module
        Of the arrays.
    trim : callable, optional
        Gives back what the module keeps of memory that is free.
    room : int, optional
        Bytes of the device that the arrays of all processes may have; by default those of this one.

    Attributes
    ----------
    used, on_pinned, on_host : int
        Bytes of arrays on the device, in pinned and in other memory of the host.
    spilled, restored : int
        Bytes that were copied to the host, and back, so far.
    peak : int
        The most that ``used`` has been since `begin`.

    Examples
    --------
    >>> arena = Arena(16, 0, np)
    >>> old, new = (arena.hold(np.arange(n, n + 2)) for n in (0, 10))
    >>> arena.used, arena.on_host, old.get().tolist()
    (16, 16, [0, 1])
    """

    def __init__(
        self,
        limit: int,
        pinned: int,
        xp: Any,
        trim: Callable[[], None] = lambda: None,
        room: int | None = None,
    ) -> None:
        self.limit, self._most_pinned = limit, pinned
        self._xp, self._trim = xp, trim
        self.room = limit if room is None else room
        self.peak = self.used = self.on_pinned = self.on_host = self.spilled = self.restored = 0
        self._lock = threading.RLock()
        self._device: OrderedDict[int, weakref.ref[Buffer]] = OrderedDict()  # least used first
        self._spilled: dict[int, bool] = {}  # whether in pinned memory

    def hold(self, array: Any) -> Buffer:
        """Count an array."""
        with self._lock:
            buffer = Buffer(array, self)
            weakref.finalize(buffer, self._gone, id(buffer), buffer.nbytes).atexit = False
            self._arrived(buffer)
            return buffer

    def use(self, buffer: Buffer) -> Any:
        """The array of a buffer, on the device; from now on it is the one that was used last."""
        with self._lock:
            array = buffer.array
            if array is not None:
                self._device.move_to_end(id(buffer))
                return array
            assert buffer.host is not None
            array = staging.to_device(buffer.host, self._xp)
            buffer.array = array
            self._leave_host(id(buffer), buffer.nbytes)
            buffer.host = None
            self.restored += buffer.nbytes
            self._arrived(buffer)
            return array

    def spill(self, nbytes: int) -> int:
        """Copy so many bytes to the host, or all there are; return how many that were."""
        with self._lock:
            before = self.spilled
            for key, known in list(self._device.items()):
                if self.spilled - before >= nbytes:
                    break
                if (buffer := known()) is not None:
                    del self._device[key]
                    self._put_on_host(buffer)
            freed = self.spilled - before
        if freed:
            self._trim()
        return freed

    def allocating(self, malloc: Callable[[int], Any]) -> Callable[[int], Any]:
        """An allocator that makes room and tries again where another one finds none."""

        def allocate(nbytes: int) -> Any:
            try:
                return malloc(nbytes)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            self.spill(nbytes)
            self._trim()
            return malloc(nbytes)

        return allocate

    def _arrived(self, buffer: Buffer) -> None:
        self._device[id(buffer)] = weakref.ref(buffer)
        self.used += buffer.nbytes
        if self.used > self.limit:
            others = self.used - buffer.nbytes  # it is the last one to be spilled
            self.spill(min(self.used - self.limit, others))
        self.peak = max(self.peak, self.used)

    def _put_on_host(self, buffer: Buffer) -> None:
        host = staging.to_host(buffer.array)()
        pinned = self.on_pinned + buffer.nbytes <= self._most_pinned
        buffer.host = host if pinned else np.array(host)
        buffer.array = None
        self.used -= buffer.nbytes
        self.spilled += buffer.nbytes
        self._spilled[id(buffer)] = pinned
        if pinned:
            self.on_pinned += buffer.nbytes
        else:
            self.on_host += buffer.nbytes

    def _leave_host(self, key: int, nbytes: int) -> None:
        if self._spilled.pop(key):
            self.on_pinned -= nbytes
        else:
            self.on_host -= nbytes

    def _gone(self, key: int, nbytes: int) -> None:
        """Nobody has it any more."""
        with self._lock:
            if self._device.pop(key, None) is not None:
                self.used -= nbytes
            else:
                self._leave_host(key, nbytes)


_arenas: dict[str, Arena] = {}
_guard = threading.Lock()


def prepare(name: str) -> None:
    """Count the arrays of numpy, where they stand for a device whose ``exo.gpu.memory`` is said."""
    if name != arrays.HOST:
        return
    config, arena = Config.current(), _arenas.get(name)
    limit = config.gpu_memory
    if limit is None or not config.gpu_simulate:
        _arenas.pop(name, None)
        return
    room = int(limit / config.gpu_per_task)
    if arena is None or (arena.limit, arena.room) != (limit, room):
        _arenas[name] = Arena(limit, limit // PINNED, np, room=room)


def arena_of(array: Any) -> Arena | None:
    """Where an array is counted; those of cupy always are, with a budget of this process."""
    name = arrays.name_of(array)
    if name == arrays.DEVICE and name not in _arenas:
        with _guard:
            if name not in _arenas:
                _arenas[name] = _of_gpu()
    return _arenas.get(name)


def begin() -> None:
    """Some work begins whose share of the device is to be known; see `held`."""
    for arena in list(_arenas.values()):
        arena.peak = arena.used


def held() -> Held | None:
    """What this process has held of its device since `begin`; None if it has none."""
    arenas = list(_arenas.values())
    return Held(arenas[-1].peak, arenas[-1].room) if arenas else None


def _of_gpu() -> Arena:
    """An arena of the GPU of this process, whose failing allocations make room there."""
    cupy, config = arrays.module(arrays.DEVICE), Config.current()
    room = int(SHARE * cupy.cuda.runtime.memGetInfo()[1])
    limit = config.gpu_memory
    if limit is None:
        limit = int(config.gpu_per_task * room)
    trim = cupy.get_default_memory_pool().free_all_blocks
    arena = Arena(limit, limit // PINNED, cupy, trim, room)
    cupy.cuda.set_allocator(arena.allocating(cupy.cuda.get_allocator()))
    return arena
