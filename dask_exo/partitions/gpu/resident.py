"""Values in the object store of which the process that made them keeps a copy on its GPU.

The store has every value: copies on a GPU may be dropped at any time, and die with their process. A
task that reads such a value copies it on the GPU, instead of from the host. Each reader has a copy
of its own, into which it may write. Least recently used copies are dropped first, when columns need
their memory. Those of a shuffle block are dropped once their own process has read all its rows.

Other processes of the machine read arrays of at least `SHARED` bytes by a handle of CUDA: on the
same GPU, or on another one that reaches it. If numpy simulates GPUs, they are files in memory. Each
owner has another file, with a byte for each of its values: 1 while others may read it. A reader
locks that byte, looks at it, copies, and releases it. The owner locks it before it drops the value.
Linux releases the locks of a process that dies, and removes its files.

References: CUDA C++ programming guide, interprocess communication; Linux, ``fcntl(2)``, advisory
record locks, and ``memfd_create(2)``.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import sys
import threading
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_exo.partitions.gpu import arrays

if sys.platform != "win32":
    import fcntl

LEAST = 1 << 16  # bytes of a value that is worth it
SHARED = 1 << 20  # bytes of an array that others read: a handle takes time to open
_ALIVE = 1 << 40  # the byte that an owner locks while it lives
_HAS_FILES = hasattr(os, "memfd_create")  # Linux


class Owner(NamedTuple):
    """Process that has values, and its file of leases."""

    process: int
    file: int
    token: str


class Resident(NamedTuple):
    """Name of a value on a GPU.

    Attributes
    ----------
    owner : Owner
    number : int
        Of the value, in its owner.
    allocation : bytes or str, optional
        Handle of CUDA, or the path of a file in memory; None if others cannot read it.
    shape : tuple of int
    dtype : dtype
    """

    owner: Owner
    number: int
    allocation: bytes | str | None
    shape: tuple[int, ...]
    dtype: np.dtype


class Residents:
    """Packed values on one GPU, at most ``limit`` bytes of them.

    Attributes
    ----------
    nbytes : int
        Bytes of all values.
    hits : int
        Values, or ranges of rows, that were read.
    borrowed : int
        Those that were read from other processes.
    """

    nbytes: int
    hits: int
    borrowed: int

    def __init__(self, limit: int, module: str = arrays.HOST) -> None:
        self._limit, self._module = limit, module
        self.nbytes = self.hits = self.borrowed = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[int, Any] = OrderedDict()  # the least recently used one is first
        self._unread: dict[int, int] = {}  # columns, by number

    def keep(self, value: Any, allocation: bytes | str | None = None) -> Resident:
        """Keep a value that nobody changes; ``allocation`` is that of `allocate`."""
        with self._lock:
            number = _begin()
            self._values[number], self._unread[number] = value, value.shape[-1]
            self.nbytes += int(value.nbytes)
        self.drop(self.nbytes - self._limit)
        return Resident(_own(), number, allocation, value.shape, value.dtype)

    def reaches(self, name: Resident | None) -> bool:
        """Return whether a value is on this GPU, or where it can be read from another process."""
        if name is None or name.owner == _own():
            return name is not None and name.number in self._values
        return is_near(name)

    def get(self, name: Resident | None) -> Any:
        """Return a copy of a value; None if it is not there."""
        if name is None or not self.reaches(name):
            return None
        out = arrays.module(self._module).empty(name.shape, name.dtype)
        return out if self.copy(name, out) else None

    def copy(self, name: Resident, out: Any, start: int = 0, stop: int | None = None) -> bool:
        """Copy columns of a value that `reaches` finds; return False if it is not there any more.

        A (k, n) block of this process is dropped once n columns were copied.
        """
        if name.owner != _own():
            is_copied = read(name, out, slice(start, stop))
            self.borrowed += is_copied
            return is_copied
        with self._lock:
            value = self._values.get(name.number)
            if value is None:
                return False
            self.hits += 1
            self._values.move_to_end(name.number)
            out[...] = value[..., start:stop]
            if value.ndim > 1:
                self._unread[name.number] -= out.shape[1]
                if self._unread[name.number] <= 0:
                    self._forget(name.number)
            return True

    def drop(self, nbytes: int) -> int:
        """Drop values of at least ``nbytes``, or all that nobody reads; return their bytes."""
        dropped = 0
        with self._lock:
            for number in list(self._values):
                if dropped >= nbytes:
                    break
                dropped += self._forget(number)
        return dropped

    def _forget(self, number: int) -> int:
        if not _end(number):
            return 0  # another process reads it
        del self._unread[number]
        nbytes = int(self._values.pop(number).nbytes)
        self.nbytes -= nbytes
        return nbytes


@cache
def _own() -> Owner:
    """Return this process as an owner, with a file that it has open as long as it lives."""
    token, file = uuid.uuid4().hex, -1
    if _HAS_FILES:
        file = os.memfd_create(token)
        _lock(file, fcntl.LOCK_EX, _ALIVE)
    return Owner(os.getpid(), file, token)


def _begin() -> int:
    """Let others read a value from now on; return its number."""
    number = next(_numbers)
    if _HAS_FILES:
        os.pwrite(_own().file, b"\1", number)
    return number


def _end(number: int) -> bool:
    """Let nobody read a value from now on; return False if somebody does just now."""
    if _HAS_FILES:
        file = _own().file
        if not _lock(file, fcntl.LOCK_EX, number):
            return False
        os.pwrite(file, b"\0", number)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number)
    return True


def _lock(file: int, kind: int, place: int) -> bool:
    """Lock a byte; return False if another process has a lock against it."""
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):
        return False
    return True


_numbers = count()
_reading = threading.Lock()  # locks of files belong to processes, not to threads
_files: dict[str, int] = {}  # of owners, by token
_unreachable: set[str] = set()  # owners whose memory cannot be opened here, by token


def is_near(name: Resident) -> bool:
    """Return whether a value is in another process of this machine, and was not out of reach."""
    if name.allocation is None or name.owner.token in _unreachable:
        return False
    with _reading:
        return _open(name.owner) is not None


def read(name: Resident, out: Any, columns: slice) -> bool:
    """Copy columns of a value that is near; return False if it is not there any more."""
    if name.owner.token in _unreachable:  # since then
        return False
    with leased(name) as there:
        if not there:
            return False
        copied = (_copy_file if isinstance(out, np.ndarray) else _copy_memory)(name, out, columns)
    if not copied:
        _unreachable.add(name.owner.token)
    return copied


@contextlib.contextmanager
def leased(name: Resident) -> Iterator[bool]:
    """Let a value of another process stay until the block ends; tell whether it is there."""
    with _reading:
        file = _open(name.owner)
        if file is None or not _lock(file, fcntl.LOCK_SH, name.number):
            yield False
            return
        try:
            yield os.pread(file, 1, name.number) == b"\1"
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, name.number)


def _open(owner: Owner) -> int | None:
    """Return the file of an owner; None if it is dead, or on another machine."""
    path = Path(f"/proc/{owner.process}/fd/{owner.file}")
    file = _files.get(owner.token)
    with contextlib.suppress(OSError):
        if file is None and owner.token in str(path.readlink()):
            file = _files[owner.token] = os.open(path, os.O_RDWR)
    if file is not None and _lock(file, fcntl.LOCK_SH, _ALIVE):
        os.close(_files.pop(owner.token))  # which releases the lock
        return None
    return file


def allocate(shape: tuple[int, ...], dtype: np.dtype, xp: Any) -> tuple[Any, bytes | str | None]:
    """Allocate an array, and return where others find it, if they can and it is worth it."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= SHARED and _HAS_FILES:
        with contextlib.suppress(RuntimeError, MemoryError, OSError):  # no room, or no handles
            return (_in_file if xp is np else _with_handle)(nbytes, shape, dtype)
    return xp.empty(shape, dtype), None


def _in_file(nbytes: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, str]:
    file = os.memfd_create("dask_exo")
    os.ftruncate(file, nbytes)
    memory = mmap.mmap(file, nbytes)
    weakref.finalize(memory, os.close, file).atexit = False
    return np.frombuffer(memory, dtype).reshape(shape), f"/proc/{os.getpid()}/fd/{file}"


def _copy_file(name: Resident, out: Any, columns: slice) -> bool:
    whole = np.memmap(str(name.allocation), name.dtype, "r", shape=name.shape)
    out[...] = whole[..., columns]
    return True


def _with_handle(nbytes: int, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Any, bytes]:
    cupy = arrays.module(arrays.DEVICE)
    memory = cupy.cuda.Memory(nbytes)  # not of a pool: a handle is one of a whole allocation
    handle = cupy.cuda.runtime.ipcGetMemHandle(memory.ptr)
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0)), handle


def _copy_memory(name: Resident, out: Any, columns: slice) -> bool:
    """Copy columns of an array; return False if its GPU cannot be reached from this one."""
    cupy = arrays.module(arrays.DEVICE)
    cuda, runtime = cupy.cuda, cupy.cuda.runtime
    try:
        address = runtime.ipcOpenMemHandle(name.allocation)
    except runtime.CUDARuntimeError:
        return False
    try:
        nbytes = math.prod(name.shape) * name.dtype.itemsize
        memory = cuda.UnownedMemory(address, nbytes, None, cuda.Device().id)
        whole = cupy.ndarray(name.shape, name.dtype, cuda.MemoryPointer(memory, 0))
        out[...] = whole[..., columns]
        cuda.get_current_stream().synchronize()
        return True
    finally:
        runtime.ipcCloseMemHandle(address)
