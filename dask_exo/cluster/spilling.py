"""Values of this process in memory up to a limit, the others in files; spill directories.

A value belongs to its ref and is freed with it. Beyond the limit the values that were used least
recently are written to files, one each, in a directory that only this user can read.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict, deque
from itertools import count
from pathlib import Path
from typing import Any

from dask.sizeof import sizeof
from dask.utils import format_bytes

from dask_exo.cluster.futures import DiskUsage, StoreUsage
from dask_exo.errors import SpillError

FULL = 0.95  # of a disk: beyond it nothing is written
SMALL = 10_000  # bytes of a value that is never written to a file

_numbers = count()  # of refs


class StoredRef:
    """Ref of a value of this process, or of the exception in its place."""

    __slots__ = ("__weakref__", "dependents", "done", "error", "file", "nbytes", "number", "value")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = False
        self.dependents: list[Any] = []  # tasks that wait for the value
        self.nbytes = 0
        self.file: Path | None = None  # that has the value, if it was spilled


class SpillingStore:
    """The values of refs, of which about ``limit`` bytes stay in memory.

    Parameters
    ----------
    limit : int
        Bytes of values in memory.
    directory : str, optional
        Parent of the directory for spilled values; by default that of temporary files.
    """

    def __init__(self, limit: int, directory: str | None = None) -> None:
        self.limit, self._parent = limit, directory
        self._lock = threading.RLock()
        self._in_memory: OrderedDict[int, weakref.ref[StoredRef]] = OrderedDict()  # oldest first
        self._sizes: dict[int, tuple[int, Path | None]] = {}  # bytes and file of each
        self._dropped: deque[tuple[int, weakref.ref[StoredRef]]] = deque()
        self._directory: Path | None = None
        self._used = self._on_disk = self._spilled = self._restored = 0

    def put(self, ref: StoredRef, value: Any) -> None:
        """Set the value of a ref; spill others if they take too much memory.

        Raises
        ------
        SpillError
            The disk is full, or the directory cannot be written.
        """
        nbytes = sizeof(value)
        with self._lock:
            self._forget_dropped()
            ref.value, ref.nbytes = value, nbytes
            if nbytes < SMALL:
                return
            key = ref.number
            self._in_memory[key] = weakref.ref(ref, lambda gone: self._dropped.append((key, gone)))
            self._sizes[key] = nbytes, None
            self._used += nbytes
            self._spill()

    def get(self, ref: StoredRef) -> Any:
        """Return the value of a ref, from its file if it was spilled."""
        with self._lock:
            if ref.file is None:
                if ref.number in self._in_memory:
                    self._in_memory.move_to_end(ref.number)
                return ref.value
            file = ref.file
            self._restored += ref.nbytes
        return _read(file)

    def usage(self) -> StoreUsage:
        """Return the bytes in memory, and spilled and restored since the store began."""
        with self._lock:
            self._forget_dropped()
            return StoreUsage(self._used, self._spilled, self._restored)

    def disks(self) -> list[DiskUsage]:
        """Return the directory for spilled values, once there is one."""
        if self._directory is None:
            return []
        disk = shutil.disk_usage(self._directory)
        room = max(0, disk.free - int((1 - FULL) * disk.total))
        return [DiskUsage(str(self._directory), self._on_disk, self._spilled, room)]

    def is_spilled(self, ref: StoredRef) -> bool:
        """Return whether the value of a ref is in a file."""
        return ref.file is not None

    def _forget_dropped(self) -> None:
        """Subtract the values whose refs have been dropped; remove their files."""
        while self._dropped:
            key, gone = self._dropped.popleft()
            if self._in_memory.get(key) is gone:
                del self._in_memory[key]
            nbytes, file = self._sizes.pop(key)
            if file is None:
                self._used -= nbytes
            else:
                self._on_disk -= nbytes
                file.unlink(missing_ok=True)

    def _spill(self) -> None:
        """Write the values that were used least recently, until the others fit."""
        while self._used > self.limit and self._in_memory:
            key, weak = self._in_memory.popitem(last=False)
            ref = weak()
            if ref is None:  # dropped a moment ago
                self._forget_dropped()
                continue
            file = self._write(ref.value, f"{key}.value")
            if file is None:  # not data, such as a lock: it stays in memory
                continue
            ref.file, ref.value = file, None
            self._sizes[key] = ref.nbytes, file
            self._used -= ref.nbytes
            self._on_disk += ref.nbytes
            self._spilled += ref.nbytes

    def _write(self, value: Any, name: str) -> Path | None:
        """Write a value to a file; return None if it cannot be pickled."""
        from distributed.protocol.serialize import (
            serialize_bytelist,  # takes 0.3 s, and few programs spill
        )

        try:
            frames = serialize_bytelist(value, on_error="raise")
        except Exception:  # noqa: BLE001  whatever a class raises in its own methods
            return None
        if self._directory is None:
            self._directory = own(usable(self._parent or tempfile.gettempdir()))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        file = self._directory / name
        try:
            with file.open("wb") as out:
                out.writelines(frames)
        except OSError as error:
            file.unlink(missing_ok=True)
            raise SpillError(
                f"{format_bytes(sum(map(len, frames)))} could not be written to "
                f"{str(self._directory)!r}: {error.strerror}. Free space there, or set "
                f"exo.spill-directory to a larger disk"
            ) from error
        return file


def _read(file: Path) -> Any:
    from distributed.protocol.serialize import deserialize_bytes

    return deserialize_bytes(file.read_bytes())


def usable(path: str) -> Path:
    """Make a directory to spill to; raise `SpillError` if it cannot be written."""
    directory = Path(path)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"exo")
    except OSError as error:
        raise SpillError(
            f"exo.spill-directory={path!r} cannot be written: {error.strerror}. Name a directory "
            f"on a disk with room for the data"
        ) from error
    return directory


def own(path: Path) -> Path:
    """Make a directory in a usable one that only this user can read."""
    return Path(tempfile.mkdtemp(prefix="exo-spill-", dir=path))
