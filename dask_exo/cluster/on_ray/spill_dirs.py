"""The directory that a private Ray spills to.

Ray tells how many bytes its stores have written and read in all, and not where. What is in a
directory its files tell: one for each batch, which goes when the last object in it is not needed
any more. A file that comes and goes between two looks is not seen.

Of several directories for one node Ray takes the first (2.60): several disks have to be one file
system, or to belong to several nodes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from dask_exo.cluster.futures import Disk
from dask_exo.errors import SpillError

FULL = 0.95  # of a disk: Ray writes nothing beyond, whoever has filled it


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
    """Make a directory below a usable one that only this user can look into."""
    return Path(tempfile.mkdtemp(prefix="exo-spill-", dir=path))


class Directory:
    """The directory of one node.

    Parameters
    ----------
    path : Path
    node : str
        Its id.
    """

    def __init__(self, path: Path, node: str) -> None:
        self.path, self._folder = path, path / f"ray_spilled_objects_{node}"
        self._seen: dict[str, int] = {}
        self._gone = 0
        self._lock = threading.Lock()

    def look(self) -> Disk:
        """What is there now, and has been."""
        with self._lock:
            now = _files(self._folder)
            self._gone += sum(size for name, size in self._seen.items() if name not in now)
            self._seen = now
            used, disk = sum(now.values()), shutil.disk_usage(self.path)
            room = max(0, disk.free - int((1 - FULL) * disk.total))
            return Disk(str(self.path), used, used + self._gone, room)


def _files(folder: Path) -> dict[str, int]:
    """Name and size of each file; none where there is no such folder."""
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
