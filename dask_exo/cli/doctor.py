"""Examine where dask_exo runs: collect facts of machines, settings and cluster, and check them."""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass, replace
from pathlib import Path

import dask.config
import psutil
from packaging.requirements import Requirement

from dask_exo.cli.doctor_checks import (
    OF_ALL,
    OF_EACH,
    Facts,
    Finding,
    Machine,
    ProgramFacts,
    Speed,
)
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Futures, current_node, default
from dask_exo.config import Config, settings
from dask_exo.errors import ConfigError, ExoError
from dask_exo.events import wall_time
from dask_exo.partitions.gpu import arrays
from dask_exo.shuffle import algorithms

SHARED = Path("/dev/shm")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROBE = 64 * 2**20  # bytes
CHUNK = 4 * 2**20
CLOCK_PROBES = 3  # the quickest answer is the most accurate
NO_SLOT = {"num_cpus": 0}  # so that a busy cluster is examined as well
MARKS = {"ok": "  ok", "warn": "WARN", "fail": "FAIL"}


def examine() -> Diagnosis:
    """Examine this process, and the Ray cluster that Dask's code would run on.

    The cluster is joined, or a private one is started, as a computation would do it. On each of
    its machines one task collects facts, writes a file of 64 MB to the spill directory, and
    reads it back.
    """
    return diagnose(gather())


@dataclass(frozen=True)
class Diagnosis:
    """Findings of this process and the cluster as a whole, and of each machine, by name."""

    program: tuple[Finding, ...]
    machines: tuple[tuple[str, tuple[Finding, ...]], ...]

    @property
    def findings(self) -> list[Finding]:
        """Findings of the program and of all machines."""
        return [*self.program, *(finding for _, findings in self.machines for finding in findings)]

    @property
    def failed(self) -> bool:
        """True if a check failed."""
        return any(finding.level == "fail" for finding in self.findings)

    def __str__(self) -> str:
        """Return a line for each finding, and counts."""
        lines = list(_lines(self.program))
        for name, findings in self.machines:
            lines += ["", name, *_lines(findings)]
        count = {mark: sum(finding.level == mark for finding in self.findings) for mark in MARKS}
        lines += ["", f"{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed"]
        return "\n".join(lines)

    __repr__ = __str__


def _lines(findings: tuple[Finding, ...]) -> Iterator[str]:
    for finding in findings:
        yield f"{MARKS[finding.level]}  {finding.name:<13} {finding.what}"
        if finding.remedy:
            yield f"{'':<20}→ {finding.remedy}"


def diagnose(facts: Facts) -> Diagnosis:
    """Check facts."""
    program = tuple(finding for check in OF_ALL for finding in check(facts))
    machines = [(m.name, tuple(check(m) for check in OF_EACH)) for m in facts.machines]
    return Diagnosis(program, tuple(machines))


def gather(futures: Futures | None = None) -> Facts:
    """Collect facts of a cluster, by default the one that Dask's code would run on.

    That cluster is started if necessary. Without one, the facts are of this machine alone.
    """
    process, token = program(), on_ray.token()
    address, private, unreachable = "", True, ""
    spill: str | None = None
    packages = ("dask-exo", *process.required)
    try:
        config = Config.current()
        spill = config.spill_directory if config.address is None else None
        if futures is None:
            futures = default()
            cluster, _ = on_ray.connect(config)
            address, private = cluster.address, cluster.private
        machines = tuple(_machines(futures, packages))
    except ConfigError as error:
        process = replace(process, errors=(str(error),))
        unreachable = "not tried with this configuration"
        machines = (machine_facts(spill, packages),)
    except ExoError as error:
        unreachable, machines = str(error), (machine_facts(spill, packages),)
    return Facts(process, machines, address, private, token, unreachable)


def program() -> ProgramFacts:
    """Collect the facts of this process."""
    metadata = importlib.metadata.metadata("dask-exo")
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]
    required = {r.name: str(r.specifier) for r in requirements if r.marker is None}
    return ProgramFacts(
        {"python": metadata["Requires-Python"], **required},
        versions(["dask-exo", *required]),
        scheduler=_scheduler(dask.config.get("scheduler", None)),
        method=str(dask.config.get("dataframe.shuffle.method", None) or ""),
        algorithm=str(dask.config.get("exo.shuffle.algorithm")),
        algorithms=tuple(algorithms.names()),
        settings=settings(),
    )


def _scheduler(value: object) -> str:
    """Return the name of a scheduler, or the repr of a function or client."""
    if value is None or isinstance(value, str):
        return value or ""
    return "exo" if type(value).__module__.startswith("dask_exo.") else repr(value)


def _machines(futures: Futures, packages: Sequence[str]) -> Iterator[Machine]:
    """Collect the facts of each machine of the cluster."""
    spills = {disk.node: disk.path for disk in futures.disks()}
    for node in futures.nodes():
        spill = spills.get(node.address)
        ref = futures.submit(machine_facts, spill, packages, node=node.id, options=NO_SLOT)
        (machine,) = futures.get([ref])
        skew, doubt = _clock_skew(futures, node.id)
        gpus = int((node.resources or {}).get("GPU", 0))
        capacity = {"slots": node.slots, "store": node.store, "gpus": gpus}
        yield replace(machine, **capacity, skew=skew, doubt=doubt)


def _clock_skew(futures: Futures, node: str) -> tuple[float, float]:
    """Return the seconds by which a node's clock is ahead, and the uncertainty of that."""
    best = 0.0, math.inf
    for _ in range(CLOCK_PROBES):
        before = wall_time()
        (remote,) = futures.get([futures.submit(wall_time, node=node, options=NO_SLOT)])
        after = wall_time()
        if (after - before) / 2 < best[1]:
            best = remote - (before + after) / 2, (after - before) / 2
    return best


def machine_facts(spill: str | None, packages: Iterable[str]) -> Machine:
    """Collect the facts of this machine; ``spill`` is the spill directory."""
    cupy, devices = arrays.installed(), 0
    if cupy:  # an empty list is Ray's way to hide devices from tasks that request none
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
        devices = -1 if hidden else arrays.devices()
    return Machine(
        socket.gethostname(),
        versions(packages),
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
        shared=shutil.disk_usage(SHARED).total if SHARED.is_dir() else 0,
        spill=None if spill is None else speed(spill),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        huge_pages=huge_pages(),
        lacks=on_ray.lacking() if current_node() else (),
        cupy=cupy,
        devices=devices,
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of packages that are installed."""
    installed = {"python": platform.python_version()}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def huge_pages(path: Path = HUGE_PAGES) -> str:
    """Return the policy of transparent huge pages; empty if unknown."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return ""
    return text.partition("[")[2].partition("]")[0]


def speed(directory: str, nbytes: int = PROBE) -> Speed:
    """Write a file in a directory, which is created if necessary, and read it from the disk."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        disk, kind = shutil.disk_usage(directory), _file_system(directory)
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            write = _write(file.fileno(), nbytes)
            read = _read(file.fileno(), nbytes)
    except OSError as error:
        return Speed(directory, error=error.strerror or str(error))
    return Speed(directory, kind, disk.total, disk.free, nbytes / write, nbytes / read)


def _write(file: int, nbytes: int) -> float:
    """Write bytes that cannot be compressed to the disk; return the seconds."""
    chunk, begin = os.urandom(CHUNK), time.perf_counter()
    for _ in range(nbytes // CHUNK):
        os.write(file, chunk)
    os.fsync(file)
    return time.perf_counter() - begin


def _read(file: int, nbytes: int) -> float:
    """Drop the bytes from the page cache and read them; return the seconds."""
    os.posix_fadvise(file, 0, nbytes, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)
    begin = time.perf_counter()
    while os.read(file, CHUNK):
        pass
    return time.perf_counter() - begin


def _file_system(directory: str) -> str:
    """Return the kind of file system that a directory is on."""
    place = Path(directory).resolve()
    parents = [str(path) for path in (place, *place.parents)]
    mounted = {part.mountpoint: part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounted[path] for path in parents if path in mounted), "")
