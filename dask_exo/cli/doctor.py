"""Examine where dask_exo runs: collect facts of machines, settings and cluster, and check them."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import dask.config
import psutil
from packaging.requirements import Requirement

from dask_exo.cli.doctor_checks import (
    Diagnosis,
    Facts,
    Machine,
    ProgramFacts,
    Speed,
    diagnose,
)
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Futures, default
from dask_exo.config import Config, settings
from dask_exo.errors import ConfigError, ExoError
from dask_exo.partitions.gpu import arrays, ipc
from dask_exo.shuffle import algorithms

ALLOCATOR = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
SHARED = Path("/dev/shm")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROBE = 64 * 2**20  # bytes
CHUNK = 4 * 2**20


def examine() -> Diagnosis:
    """Examine this process, and the Ray cluster that Dask's code would run on.

    The cluster is joined, or a private one is started, as a computation would do it. On each of
    its machines one task collects facts, writes a file of 64 MB to the spill directory, and
    reads it back.

    Examples
    --------
    >>> from dask_exo.cli.doctor import examine
    >>> print(examine())  # doctest: +SKIP
    """
    return diagnose(gather())


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


ASKED = 3  # times for a clock: the quickest answer tells most
NO_SLOT = {"num_cpus": 0}  # a cluster that is busy is looked at all the same
BIT = {"num_cpus": 0, "num_gpus": 0.01}  # Ray shows a device to who asks for some of it
FREE = 30.0  # seconds for a GPU to have that bit left, and for the probe


def gather(futures: Futures | None = None) -> Facts:
    """Find what there is.

    Parameters
    ----------
    futures : Futures, optional
        The cluster; by default the one that Dask's code would run on, which is started if need be.

    Returns
    -------
    Facts
        Of this machine alone, where there is no cluster.
    """
    here, token = program(), on_ray.token()
    address, private, unreachable = "", True, ""
    spill: str | None = None
    packages = ("dask-exo", *(name for name in here.required if name != "python"))
    try:
        config = Config.current()
        spill = config.spill_directory if config.address is None else None
        if futures is None:
            futures = default()
            joined, _ = on_ray.connect(config)
            address, private = joined.address, joined.private
        machines = tuple(_machines(futures, packages))
    except ConfigError as error:
        here = replace(here, errors=(str(error),))
        unreachable, machines = (
            "not tried with this configuration",
            (look(spill, packages),),
        )
    except ExoError as error:
        unreachable, machines = str(error), (look(spill, packages),)
    return Facts(here, machines, address, private, token, unreachable)


def program() -> ProgramFacts:
    """Collect the facts of this process."""
    required = _required()
    return ProgramFacts(
        required,
        versions(("dask-exo", *(name for name in required if name != "python"))),
        scheduler=_scheduler(dask.config.get("scheduler", None)),
        method=str(dask.config.get("dataframe.shuffle.method", None) or ""),
        algorithm=str(dask.config.get("exo.shuffle.algorithm")),
        algorithms=tuple(algorithms.names()),
        settings=settings(),
    )


def _required() -> dict[str, str]:
    """Versions that the package itself says it needs."""
    about = importlib.metadata.metadata("dask-exo")
    needs = [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    found = {need.name: str(need.specifier) for need in needs if need.marker is None}
    return {"python": about["Requires-Python"], **found}


def _scheduler(value: object) -> str:
    """Name of a scheduler: one that Dask knows, something that is called, or a client."""
    if value is None or isinstance(value, str):
        return value or ""
    return "exo" if type(value).__module__.startswith("dask_exo.") else repr(value)


def _machines(futures: Futures, packages: Sequence[str]) -> Iterator[Machine]:
    """Look around on each machine of the cluster."""
    disks = futures.disks()
    spill = disks[0].path if disks else None
    for node in futures.nodes():
        ref = futures.submit(look, spill, packages, node=node.id, needs=NO_SLOT)
        (found,) = futures.get([ref])
        skew, doubt = _skew(futures, node.id)
        gpus = int((node.resources or {}).get("GPU", 0))
        if gpus and found.devices < 0:
            found = replace(found, ipc=_shared(futures, node.id))
        yield replace(
            found,
            slots=node.slots,
            store=node.store,
            gpus=gpus,
            skew=skew,
            doubt=doubt,
        )


def _shared(futures: Futures, node: str) -> str | None:
    """Why processes of a node cannot share memory of its GPU; None where all GPUs are taken."""
    ref = futures.submit(shared, node=node, needs=BIT)
    done, _ = futures.wait([ref], FREE)
    if not done:
        futures.cancel([ref])
        return None
    (why,) = futures.get([ref])
    return str(why)


def _skew(futures: Futures, node: str) -> tuple[float, float]:
    """Seconds by which a node's clock is ahead, and by which that may be wrong."""
    best = 0.0, math.inf
    for _ in range(ASKED):
        before = clock()
        (there,) = futures.get([futures.submit(clock, node=node, needs=NO_SLOT)])
        after = clock()
        if (after - before) / 2 < best[1]:
            best = there - (before + after) / 2, (after - before) / 2
    return best
