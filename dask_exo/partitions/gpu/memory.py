"""Memory of a GPU: copies from and to the host, and a budget beyond which arrays spill there.

Copies run on a separate stream, through pinned host memory, concurrently with kernels. If numpy
simulates the GPU, the host gets the array itself.

The allocations of columns are counted. If they exceed the budget, or an allocation fails, the least
recently used ones are copied to the host, and copied back on their next use. The memory of a
spilled array is released only once nothing else refers to it, such as a running operation or a
view. Values between tasks are not counted: they are in the object store, which spills to disk.

References: CUDA C++ programming guide, asynchronous transfers; cupy, ``cupyx.empty_pinned``.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dask_exo.config import Config
from dask_exo.partitions.batching import is_out_of_memory
from dask_exo.partitions.gpu import arrays, resident
from dask_exo.partitions.gpu.resident import LEAST, Resident, Residents

ALIGNMENT = 256  # bytes, as cupy's allocations
CHUNK = 32 << 20  # bytes of pinned memory that are copied at once
_chunks_lock = threading.Lock()


class Place(NamedTuple):
    """Position of an array in a buffer: first byte, dtype and length."""

    start: int
    dtype: np.dtype
    length: int


def places_of(values: Sequence[Any]) -> tuple[tuple[Place, ...], int]:
    """Return where arrays are in one buffer, and its bytes."""
    places, size = [], 0
    for array in values:
        places.append(Place(size, array.dtype, len(array)))
        size += -(-int(array.nbytes) // ALIGNMENT) * ALIGNMENT
    return tuple(places), size


def pack_on_gpu(values: Sequence[Any]) -> tuple[Any, Resident | None]:
    """Copy arrays into one buffer that stays on the GPU; return it and its name.

    Return twice None if there is no room, or if it is not worth it.
    """
    places, size = places_of(values)
    made = allocate_resident((size,), np.dtype(np.uint8), values[0]) if values else None
    if made is None:
        return None, None
    buffer, stay = made
    for array, view in zip(values, unpack(buffer, places), strict=True):
        view[:] = array
    return buffer, stay()


def allocate_resident(
    shape: tuple[int, ...], dtype: np.dtype, like: Any
) -> tuple[Any, Callable[[], Resident]] | None:
    """Allocate an array that stays on the GPU of another one; None if there is no room for it.

    Also return a function that is called once the array is written, and returns its name.
    """
    arena = arena_of(like)
    if arena is None or not arena.has_room(math.prod(shape) * dtype.itemsize):
        return None
    array, allocation = resident.allocate(shape, dtype, arrays.of(like))
    return array, lambda: arena.residents.keep(array, allocation)


def residents(module: str) -> Residents:
    """Return the values and blocks that have stayed on the GPU of this process."""
    arena = _arenas.get(module)
    return Residents(0, module) if arena is None else arena.residents


def pack(
    values: Sequence[Any], *, pinned: bool = False
) -> tuple[Callable[[], np.ndarray], tuple[Place, ...]]:
    """Start to copy arrays into one buffer on the host; return a function that waits for it.

    The buffer is ``pinned`` if the arrays, or one of them, are on a GPU.

    Examples
    --------
    >>> wait, places = pack([np.arange(3), np.array([True, False])])
    >>> [array.tolist() for array in unpack(wait(), places)]
    [[0, 1, 2], [True, False]]
    """
    places, size = places_of(values)
    on_host = all(isinstance(array, np.ndarray) for array in values)
    allocate = _pinned_or_not if pinned or not on_host else np.empty
    buffer = allocate((size,), np.uint8)
    waits = [
        to_host(array, view) for array, view in zip(values, unpack(buffer, places), strict=True)
    ]

    def wait() -> np.ndarray:
        for each in waits:
            each()
        return buffer

    return wait, places


def unpack(buffer: Any, places: Sequence[Place]) -> list[Any]:
    """Return the arrays in a buffer, without a copy."""
    return [buffer[p.start : p.start + p.length * p.dtype.itemsize].view(p.dtype) for p in places]


def to_host(array: Any, out: np.ndarray | None = None) -> Callable[[], np.ndarray]:
    """Start to copy an array to the host; return a function that waits for the copy.

    The GPU continues with later kernels, which must not change the array before.
    """
    if isinstance(array, np.ndarray):
        if out is None:
            return lambda: array
        out[...] = array
        return lambda: out
    side, cuda = _side_stream(), arrays.module(arrays.DEVICE).cuda
    target = _pinned_or_not(array.shape, array.dtype) if out is None else out
    side.wait_event(cuda.get_current_stream().record())
    array.get(stream=side, out=target, blocking=False)
    end = side.record()

    def wait() -> np.ndarray:
        end.synchronize()
        _ = array  # its memory must not be reused before that
        return target

    return wait


def _pinned_or_not(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate pinned memory, or else pageable memory, of which copies are slower."""
    try:
        return arrays.pinned(shape, dtype)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return np.empty(shape, dtype)


def start_to_device(pinned: np.ndarray, xp: Any) -> Callable[[], Any]:
    """Start to copy pinned memory to the GPU; return a function that must be called.

    It returns the array, for which later kernels wait, as the memory's next owner does.
    """
    side, cuda = _side_stream(), arrays.module(arrays.DEVICE).cuda
    copy = xp.empty(pinned.shape, pinned.dtype)  # see `to_device`
    side.wait_event(cuda.get_current_stream().record())
    if pinned.size:
        copy.set(pinned, stream=side)
    end = side.record()

    def wait() -> Any:
        cuda.get_current_stream().wait_event(end)
        end.synchronize()  # the pinned memory must not be reused before that
        _ = pinned
        return copy

    return wait


def to_device(array: np.ndarray, xp: Any) -> Any:
    """Copy an array to the GPU; later kernels wait for the copy.

    While the GPU copies one chunk of pinned memory, the host fills the other one.
    """
    if xp is np:
        return array.copy()
    cuda = arrays.module(arrays.DEVICE).cuda
    # from the pool of the current stream: one of another stream hands memory out again while
    # kernels of this one still read it
    copy = xp.empty(array.shape, array.dtype)
    if not array.size:
        return copy
    source = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    target = copy.reshape(-1).view(np.uint8)
    with _chunks_lock:
        side, chunks = _side_stream(), _chunks()
        side.wait_event(cuda.get_current_stream().record())  # kernels may have had the memory
        for i, start in enumerate(range(0, len(source), CHUNK)):
            part = source[start : start + CHUNK]
            pinned, end = chunks[i % len(chunks)]
            if end is not None:
                end.synchronize()  # its last copy
            pinned[: len(part)] = part
            target[start : start + CHUNK].set(pinned[: len(part)], stream=side)
            chunks[i % len(chunks)] = pinned, side.record()
        cuda.get_current_stream().wait_event(side.record())
    return copy


@cache
def _side_stream() -> Any:
    return arrays.module(arrays.DEVICE).cuda.Stream(non_blocking=True)


@cache
def _chunks() -> list[tuple[np.ndarray, Any]]:
    """Return pinned memory, and the ends of the last copies from it."""
    return [(arrays.pinned((CHUNK,), np.uint8), None) for _ in range(2)]


SHARE = 0.8  # of the GPU memory of a worker; the rest is for temporary arrays
PINNED = 4  # budget divided by pinned memory, which all processes of the host share
RESIDENT = 4  # budget divided by the memory of values that the object store has, too


class GpuMemoryUse(NamedTuple):
    """GPU memory of a task: peak bytes of columns, and the budget of all processes."""

    peak: int
    room: int


class Buffer:
    """Allocation on a GPU that may be spilled to the host; arrays are views of it."""

    __slots__ = ("__weakref__", "exposed", "host", "nbytes", "root", "views")

    def __init__(self, root: Any) -> None:
        self.root: Any = root
        self.host: np.ndarray | None = None
        self.nbytes: int = int(root.nbytes)
        self.exposed: bool = False  # another library has the address: it is never spilled
        self.views: weakref.WeakSet[View] = weakref.WeakSet[View]()


class View:
    """Array in a `Buffer`, as a column has it."""

    __slots__ = ("__weakref__", "_arena", "_place", "array", "buffer")

    buffer: Buffer

    def __init__(self, array: Any, place: Place, buffer: Buffer, arena: Arena) -> None:
        self.array: Any = array
        self.buffer, self._place, self._arena = buffer, place, arena

    def get(self) -> Any:
        """Return the array on the GPU; copy its buffer back if that was spilled."""
        with self._arena.lock:
            root = self._arena.use(self.buffer)
            if self.array is None:
                (self.array,) = unpack(root.reshape(-1).view(np.uint8), [self._place])
            return self.array

    def expose(self) -> Any:
        """Return the array for another library, which may use its memory from now on."""
        self.buffer.exposed = True
        return self.get()


class Arena:
    """Arrays of columns on one GPU, and their budget in bytes.

    Parameters
    ----------
    limit : int
        Budget in GPU memory.
    pinned : int
        Budget in pinned host memory, which all processes share; further spilled arrays are in
        pageable memory.
    xp : module
    trim : callable, optional
        Releases memory that the array module caches.
    room : int, optional
        Budget in GPU memory of all processes; by default that of this one.

    Attributes
    ----------
    used, on_pinned, on_host : int
        Bytes of arrays in GPU memory, and in pinned and pageable host memory.
    spilled, restored : int
        Total bytes copied to the host, and back.
    peak : int
        Maximum of ``used`` since `begin`.

    Examples
    --------
    >>> arena = Arena(16, 0, np)
    >>> old, new = (arena.hold(np.arange(n, n + 2)) for n in (0, 10))
    >>> arena.used, arena.on_host, old.get().tolist()
    (16, 16, [0, 1])
    """

    limit: int
    used: int
    on_pinned: int
    on_host: int
    spilled: int
    restored: int
    peak: int

    def __init__(
        self,
        limit: int,
        pinned: int,
        xp: Any,
        trim: Callable[[], None] = lambda: None,
        room: int | None = None,
    ) -> None:
        self.limit, self._pinned_limit = limit, pinned
        self._xp, self._trim = xp, trim
        self.room: int = limit if room is None else room
        self.peak = self.used = self.on_pinned = self.on_host = self.spilled = self.restored = 0
        self.lock: threading.RLock = threading.RLock()
        self._device: OrderedDict[int, weakref.ref[Buffer]] = OrderedDict()  # least used first
        self._spilled: dict[int, bool] = {}  # whether in pinned memory
        self._roots: dict[int, weakref.ref[Buffer]] = {}  # by the identity of the root
        self._root_of: dict[int, int] = {}  # by the identity of the buffer
        self.residents: Residents = Residents(limit // RESIDENT, xp.__name__)

    def hold(self, array: Any) -> View:
        """Count the allocation that an array is a view of in the budget."""
        with self.lock:
            root = arrays.root(array)
            if not (array.flags.c_contiguous and root.flags.c_contiguous):
                root = array = self._xp.ascontiguousarray(array).copy()
            ref = self._roots.get(id(root))
            buffer = None if ref is None else ref()
            if buffer is None or buffer.root is not root:
                buffer = Buffer(root)
                weakref.finalize(buffer, self._release, id(buffer), buffer.nbytes).atexit = False
                self._count(buffer)
            start = arrays.address(array) - arrays.address(root)
            view = View(array, Place(start, array.dtype, len(array)), buffer, self)
            buffer.views.add(view)
            return view

    def use(self, buffer: Buffer) -> Any:
        """Return the allocation of a buffer, and mark it as most recently used."""
        with self.lock:
            if buffer.root is not None:
                self._device.move_to_end(id(buffer))
                return buffer.root
            assert buffer.host is not None
            buffer.root = to_device(buffer.host, self._xp)
            self._uncount_host(id(buffer), buffer.nbytes)
            buffer.host = None
            self.restored += buffer.nbytes
            self._count(buffer)
            return buffer.root

    def spill(self, nbytes: int) -> int:
        """Spill at least ``nbytes``, or all; return the bytes that were spilled."""
        with self.lock:
            before = self.spilled
            for key, ref in list(self._device.items()):
                if self.spilled - before >= nbytes:
                    break
                buffer = ref()
                if buffer is not None and not buffer.exposed:
                    self._copy_to_host(buffer)
                    del self._device[key]
            return self.spilled - before

    def has_room(self, nbytes: int) -> bool:
        """Return whether a value of the object store may stay, too."""
        room = self.limit - self.used - self.residents.nbytes
        return LEAST <= nbytes <= min(room, self.limit // RESIDENT)

    def allocating(self, malloc: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return an allocator that spills and retries if another one is out of memory."""

        def allocate(nbytes: int) -> Any:
            try:
                return malloc(nbytes)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            if self.residents.drop(nbytes) < nbytes:
                self.spill(nbytes)
            self._trim()
            return malloc(nbytes)

        return allocate

    def _count(self, buffer: Buffer) -> None:
        ref = weakref.ref(buffer)
        self._device[id(buffer)] = self._roots[id(buffer.root)] = ref
        self._root_of[id(buffer)] = id(buffer.root)
        self.used += buffer.nbytes
        self.residents.drop(self.used + self.residents.nbytes - self.limit)
        if self.used > self.limit:
            others = self.used - buffer.nbytes  # it is the last one to be spilled
            self.spill(min(self.used - self.limit, others))
        self.peak = max(self.peak, self.used)

    def _copy_to_host(self, buffer: Buffer) -> None:
        host = to_host(buffer.root)()
        pinned = self.on_pinned + buffer.nbytes <= self._pinned_limit
        buffer.host = host if pinned else np.array(host)
        self._forget_root(id(buffer))
        buffer.root = None
        for view in buffer.views:
            view.array = None
        self.used -= buffer.nbytes
        self.spilled += buffer.nbytes
        self._spilled[id(buffer)] = pinned
        if pinned:
            self.on_pinned += buffer.nbytes
        else:
            self.on_host += buffer.nbytes

    def _uncount_host(self, key: int, nbytes: int) -> None:
        if self._spilled.pop(key):
            self.on_pinned -= nbytes
        else:
            self.on_host -= nbytes

    def _release(self, key: int, nbytes: int) -> None:
        """Release an array that is no longer referenced."""
        with self.lock:
            if self._device.pop(key, None) is not None:
                self.used -= nbytes
                self._forget_root(key)
            else:
                self._uncount_host(key, nbytes)

    def _forget_root(self, key: int) -> None:
        self._roots.pop(self._root_of.pop(key), None)


_arenas: dict[str, Arena] = {}
_arenas_lock = threading.Lock()


def prepare(name: str) -> None:
    """Count arrays of numpy if they simulate a GPU and ``exo.gpu.memory`` is set."""
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
    """Return the arena that counts an array; arrays of cupy always have one."""
    name = arrays.name_of(array)
    if name == arrays.DEVICE and name not in _arenas:
        with _arenas_lock:
            if name not in _arenas:
                _arenas[name] = _of_gpu()
    return _arenas.get(name)


def begin() -> None:
    """Start to record the GPU memory of a task; see `held`."""
    for arena in list(_arenas.values()):
        arena.peak = arena.used


def held() -> GpuMemoryUse | None:
    """Return the GPU memory held since `begin`; None without a GPU."""
    arenas = list(_arenas.values())
    return GpuMemoryUse(arenas[-1].peak, arenas[-1].room) if arenas else None


def _of_gpu() -> Arena:
    """Create the arena of the GPU of this process, which spills if an allocation fails."""
    cupy, config = arrays.module(arrays.DEVICE), Config.current()
    room = int(SHARE * cupy.cuda.runtime.memGetInfo()[1])
    limit = config.gpu_memory
    if limit is None:
        limit = int(config.gpu_per_task * room)
    pool = cupy.get_default_memory_pool()
    if config.gpu_per_task < 1:  # what one process caches the others could not use
        pool.set_limit(size=int(limit / SHARE))
    arena = Arena(limit, limit // PINNED, cupy, pool.free_all_blocks, room)
    cupy.cuda.set_allocator(arena.allocating(cupy.cuda.get_allocator()))
    return arena
