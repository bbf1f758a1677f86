"""Find the facts of one machine: this is what runs on each."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from dask_exo.cli.doctor.facts import Machine, Speed
from dask_exo.partitions.gpu import arrays, ipc

ALLOCATOR = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
SHARED = Path("/dev/shm")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROBE = 64 * 2**20  # bytes
CHUNK = 4 * 2**20


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def look(spill: str | None, packages: Iterable[str]) -> Machine:
    """Look around on this machine.

    Parameters
    ----------
    spill : str, optional
        Directory for values that do not fit the store.
    packages : iterable of str
        Whose versions are asked for.
    """
    cupy, devices = _gpus()
    return Machine(
        socket.gethostname(),
        versions(packages),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        shared=shutil.disk_usage(SHARED).total if SHARED.is_dir() else 0,
        spill=None if spill is None else speed(spill),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        huge_pages=huge_pages(),
        allocator={name: os.environ[name] for name in ALLOCATOR if name in os.environ},
        cupy=cupy,
        devices=devices,
        ipc=shared() if devices > 0 else None,
    )


def clock() -> float:
    """Seconds of this machine's clock since 1970."""
    return time.time()


def huge_pages(path: Path = HUGE_PAGES) -> str:
    """Policy of transparent huge pages; empty if the system does not tell."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


def speed(directory: str, nbytes: int = PROBE) -> Speed:
    """Write a file in a directory, and read it back from the disk.

    Parameters
    ----------
    directory : str
        Made, if it is not there.
    nbytes : int
        Of the file.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        disk, kind = shutil.disk_usage(directory), _file_system(directory)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            write = _written(file.fileno(), nbytes)
            read = _read(file.fileno(), nbytes)
    except OSError as error:
        return Speed(directory, error=error.strerror or str(error))
    return Speed(directory, kind, disk.total, disk.free, nbytes / write, nbytes / read)


def _written(file: int, nbytes: int) -> float:
    """Seconds that it takes to write bytes that cannot be compressed, down to the disk."""
    chunk, begin = os.urandom(CHUNK), time.perf_counter()
    for _ in range(nbytes // CHUNK):
        os.write(file, chunk)
    os.fsync(file)
    return time.perf_counter() - begin


def _read(file: int, nbytes: int) -> float:
    """Seconds that it takes to read them, after the system was told to forget them."""
    os.posix_fadvise(file, 0, nbytes, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)
    begin = time.perf_counter()
    while os.read(file, CHUNK):
        pass
    return time.perf_counter() - begin


def _file_system(directory: str) -> str:
    """Kind of file system that a directory is on."""
    place = Path(directory).resolve()
    above = [str(path) for path in (place, *place.parents)]
    mounted = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounted[path] for path in above if path in mounted), "")


def shared() -> str:
    """Why another process cannot open memory of a device that this one has there; or nothing."""
    return ipc.trial().error


def _gpus() -> tuple[bool, int]:
    """Return whether cupy is installed, and the number of devices it sees."""
    if not arrays.installed():
        return False, 0
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # what Ray sets where a task asks for none
        return True, -1
    return True, arrays.devices()
