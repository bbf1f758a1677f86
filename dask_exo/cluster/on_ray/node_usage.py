"""Use of a node's resources: bytes in its spill directory, and its share of memory in use.

Ray reports how many bytes its stores have written and read in total, but not where. The files in a
spill directory show that: Ray writes one file per batch, and removes it with the last object in it.
A file that appears and disappears between two measurements is not counted.

Ray uses only the first of several spill directories of a node (2.60). To use several disks, combine
them into one file system, or run several nodes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

import psutil

from dask_exo.cluster.futures import DiskUsage
from dask_exo.errors import SpillError

FULL = 0.95  # of a disk: beyond it Ray writes nothing


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


class Directory:
    """Spill directory of one node.

    Parameters
    ----------
    path : Path
    node : str
        Id of the node.
    """

    def __init__(self, path: Path, node: str) -> None:
        self.path, self._folder = path, path / f"ray_spilled_objects_{node}"
        self._seen: dict[str, int] = {}
        self._gone = 0
        self._lock = threading.Lock()

    def look(self) -> DiskUsage:
        """Return the bytes in the directory now, and written in total."""
        with self._lock:
            now = _files(self._folder)
            self._gone += sum(size for name, size in self._seen.items() if name not in now)
            self._seen = now
            used, disk = sum(now.values()), shutil.disk_usage(self.path)
            room = max(0, disk.free - int((1 - FULL) * disk.total))
            return DiskUsage(str(self.path), used, used + self._gone, room)


def _files(folder: Path) -> dict[str, int]:
    """Return the size of each file, by name; empty if there is no such folder."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found[entry.name] = entry.stat().st_size
                except FileNotFoundError:  # read for the last time meanwhile
                    continue
    except FileNotFoundError:
        pass
    return found


_CONTAINER = Path("/sys/fs/cgroup")  # of a container, as it sees itself


def used_share(group: Path = _CONTAINER) -> float:
    """Return the used share of memory of the machine, or of a container with a limit."""
    machine = psutil.virtual_memory()
    shares = [1 - machine.available / machine.total]
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit and used is not None:
        # pages of files that can be dropped at any time count as used there
        shares.append(max(0, used - _inactive(group / "memory.stat")) / limit)
    return max(shares)


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
