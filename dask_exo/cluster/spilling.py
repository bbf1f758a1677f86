"""Values of this process in memory up to a limit, the others in files; spill directories.

A value belongs to its ref and is freed with it. Beyond the limit the values that were used least
recently are written to files, one each, in a directory that only this user can read.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import sys
import tempfile
import threading
import weakref
from collections import OrderedDict, deque
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from dask.sizeof import sizeof
from dask.utils import format_bytes

from dask_exo.cluster.futures import DiskUsage, StoreUsage
from dask_exo.errors import SpillError

FULL = 0.95  # of a disk: beyond it nothing is written
TRIMS = 8  # times that freed memory is returned for each ``limit`` of bytes spilled or restored
SMALL = 10_000  # bytes of a value that is never written to a file

_numbers = count()  # of refs


class StoredRef:
    """Ref of a value of this process, or of the exception in its place."""

    __slots__ = ("__weakref__", "dependents", "done", "error", "number", "value")

    def __init__(self) -> None:
        self.number: int = next(_numbers)
        self.done: bool = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.dependents: list[Any] = []  # tasks that wait for the value


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
        self._limit, self._parent = limit, directory
        self._directory: Path | None = None
        self._lock = threading.RLock()
        self._refs: dict[int, weakref.ref[StoredRef]] = {}  # by number, but those of small values
        self._recent: OrderedDict[int, int] = OrderedDict()  # number → bytes, oldest first
        self._files: dict[int, tuple[Path, int]] = {}  # number → file of a value, its bytes
        self._dropped: deque[int] = deque()  # numbers of refs that are no more
        self._used = self._spilled = self._restored = 0
        self._process = psutil.Process()
        self._before = int(self._process.memory_info().rss)
        self._trimmed = 0  # bytes spilled and restored when freed memory was last returned

    def put(self, ref: StoredRef, value: Any) -> None:
        """Set the value of a ref; spill others if they take too much memory.

        Raises
        ------
        SpillError
            The disk is full, or the directory cannot be written.
        """
        nbytes = _size(value)
        with self._lock:
            self._forget_dropped()
            ref.value = value
            if nbytes < SMALL:
                return
            # the callback runs at any moment, also while this thread holds the lock
            number, dropped = ref.number, self._dropped
            self._refs[number] = weakref.ref(ref, lambda _: dropped.append(number))
            self._recent[number] = nbytes
            self._used += nbytes
            self._spill()

    def get(self, ref: StoredRef) -> Any:
        """Return the value of a ref; read it back into memory if it was spilled."""
        with self._lock:
            if ref.number in self._recent:
                self._recent.move_to_end(ref.number)
                return ref.value
            if ref.number not in self._files:
                return ref.value
            file, nbytes = self._files[ref.number]
            self._restored += nbytes
        value = _read(file)
        with self._lock:
            if ref.number not in self._recent:
                ref.value = value
                self._recent[ref.number] = nbytes
                self._used += nbytes
                self._spill()
        return value

    def usage(self) -> StoreUsage:
        """Return the bytes in memory, and spilled and restored since the store began."""
        with self._lock:
            self._forget_dropped()
            return StoreUsage(self._used, self._spilled, self._restored)

    def disks(self) -> list[DiskUsage]:
        """Return the directory for spilled values, once there is one."""
        if self._directory is None:
            return []
        used = sum(nbytes for _, nbytes in self._files.copy().values())
        return [DiskUsage(str(self._directory), used, room(self._directory))]

    def _forget_dropped(self) -> None:
        """Subtract the values whose refs have been dropped; remove their files."""
        while self._dropped:
            number = self._dropped.popleft()
            del self._refs[number]
            self._used -= self._recent.pop(number, 0)
            if number in self._files:
                self._files.pop(number)[0].unlink(missing_ok=True)

    def _spill(self) -> None:
        """Write the values that were used least recently, until the others fit."""
        while self._recent and self._used > self._limit - self._working():
            number, nbytes = self._recent.popitem(last=False)
            self._used -= nbytes
            ref = self._refs[number]()
            if ref is None:  # dropped a moment ago
                continue
            if number not in self._files:
                file = self._write(ref.value, f"{number}.value")
                if file is None:  # not data, such as a lock: it stays in memory
                    continue
                self._files[number] = file, nbytes
                self._spilled += nbytes
            ref.value = None
        moved = self._spilled + self._restored
        if moved - self._trimmed > self._limit // TRIMS:
            self._trimmed = moved
            _return_freed_memory()

    def _working(self) -> int:
        """Return the bytes that running tasks take beside the values, at most 3/4 of the limit."""
        if self._used < self._limit // 4:
            return 0
        grown = int(self._process.memory_info().rss) - self._before
        return min(max(0, grown - self._used), 3 * self._limit // 4)

    def _write(self, value: Any, name: str) -> Path | None:
        """Write a value to a file; return None if it cannot be pickled."""
        from distributed.protocol.serialize import serialize_bytelist  # 0.3 s, few spill

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


def _return_freed_memory() -> None:
    """Return memory that was freed to the system: allocators keep it for the next values."""
    if pyarrow := sys.modules.get("pyarrow"):
        pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _size(value: Any) -> int:
    """Return the bytes of a value; blocks of a shuffle know their own."""
    nbytes = getattr(value, "nbytes", 0)
    return max(int(sizeof(value)), nbytes if isinstance(nbytes, int) else 0)


def _read(file: Path) -> Any:
    from distributed.protocol.serialize import deserialize_bytes

    return deserialize_bytes(file.read_bytes())


def room(directory: Path) -> int:
    """Return the bytes that may be written to a directory before its disk counts as full."""
    disk = shutil.disk_usage(directory)
    return max(0, disk.free - int((1 - FULL) * disk.total))


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


_CONTAINER = Path("/sys/fs/cgroup")  # of a container, as it sees itself


def used_share(group: Path = _CONTAINER) -> float:
    """Return the used share of memory of the machine, or of a container with a limit."""
    machine = psutil.virtual_memory()
    shares = [1 - machine.available / machine.total]
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit and used is not None:
        # pages of files that can be dropped at any time count as used there
        shares.append(max(0, used - _inactive(group / "memory.stat")) / limit)
    return float(max(shares))


def memory_limit(group: Path = _CONTAINER) -> int:
    """Return the bytes of memory of the machine, or of a container with a limit."""
    limit = _number(group / "memory.max")
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(limit, total)


def _number(file: Path) -> int | None:
    """Read a number; None if there is no file, or no limit."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _inactive(file: Path) -> int:
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = dict(line.split(maxsplit=1) for line in lines)
    return int(found.get("inactive_file", 0))
