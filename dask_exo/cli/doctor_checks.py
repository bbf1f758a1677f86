"""Checks of `dask exo doctor`: facts about machines and settings, and a finding for each; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dask.utils import format_bytes
from packaging.specifiers import SpecifierSet

FILES = 4096  # a worker process has some sixty
FULL = 0.95  # of a disk: Ray writes nothing beyond
SLOW = 100e6  # bytes per second, below which a shuffle only waits for its disk
SKEW = 1.0  # seconds
FOR_TASKS = 0.7  # of memory may be object store, so that something is left for the tasks
REMOTE = ("nfs", "cifs", "smb", "fuse.sshfs", "lustre", "ceph", "glusterfs", "9p", "afs")
IN_MEMORY = ("tmpfs", "ramfs")

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Speed:
    """Throughput of a directory: of one file, past the page cache."""

    path: str
    kind: str = ""  #: file system (``"ext4"``, ``"nfs4"``, ``"tmpfs"``), if known
    total: int = 0  #: bytes of the disk
    free: int = 0
    write: float = 0.0  #: bytes per second; 0 if not measured
    read: float = 0.0
    error: str = ""  #: reason why it cannot be used


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster; sizes are in bytes."""

    name: str
    versions: Mapping[str, str]  #: installed package (or ``"python"``) → version
    cores: int = 1  #: that a process there may use
    slots: int = 1  #: parallel tasks of Ray
    memory: int = 0
    store: int = 0  #: object store
    shared: int = 0  #: ``/dev/shm``
    spill: Speed | None = None  #: spill directory; None if unknown
    open_files: int = -1  #: limit of a process there; -1 for none
    huge_pages: str = ""  #: policy: ``always``, ``madvise``, ``never``, or empty
    lacks: tuple[str, ...] = ()  #: ``NAME=value`` that Ray should have been started with there
    gpus: int = 0  #: devices that Ray knows there
    cupy: bool = False  #: True if it can be imported
    devices: int = 0  #: that cupy sees; -1 if Ray hides them from tasks that request none
    skew: float = 0.0  #: seconds by which its clock is ahead of the driver's
    doubt: float = 0.0  #: seconds by which ``skew`` may be wrong


@dataclass(frozen=True)
class ProgramFacts:
    """Settings and packages of this process."""

    required: Mapping[str, str]  #: package (or ``"python"``) → needed versions (``">=2.56"``)
    versions: Mapping[str, str]  #: package → version here
    scheduler: str = ""  #: Dask's; empty if none is set
    method: str = ""  #: ``dataframe.shuffle.method``; empty if it is not set
    algorithm: str = "auto"  #: ``exo.shuffle.algorithm``
    algorithms: tuple[str, ...] = ()  #: its possible values besides ``auto``
    settings: Mapping[str, object] = field(default_factory=dict)  #: ``exo.*`` keys that are changed
    errors: tuple[str, ...] = ()  #: of the configuration


@dataclass(frozen=True)
class Facts:
    """Input of all checks."""

    program: ProgramFacts
    machines: tuple[Machine, ...]  #: of the cluster; this one alone, if there is no cluster
    address: str = ""  #: of the cluster, if there is one
    private: bool = True  #: True if this process started it
    token: Literal["off", "used", "missing"] = "off"  #: that protects the cluster
    unreachable: str = ""  #: reason why there is no cluster; empty if there is one


@dataclass(frozen=True)
class Finding:
    """Result of one check: what there is, with numbers, and what to do.

    Level ``warn``: it works, but slower or less safely than it could. ``fail``: something will not
    work.
    """

    level: Level
    name: str
    what: str
    remedy: str = ""


def _finding(name: str, what: str, remedy: str = "", level: Level = "warn") -> Finding:
    """Return a finding of a level if there is a remedy, else ``"ok"``."""
    return Finding(level if remedy else "ok", name, what, remedy)


def python_and_packages(facts: Facts) -> Iterator[Finding]:
    """Check that versions are those that dask_exo needs."""
    installed, required = facts.program.versions, facts.program.required
    mismatched = [
        name
        for name, wanted in required.items()
        if not SpecifierSet(wanted).contains(installed.get(name, "0"), prereleases=True)
    ]
    if not mismatched:
        what = ", ".join(f"{name} {number}" for name, number in installed.items())
        yield _finding("versions", what)
        return
    what = "; ".join(
        f"{name} {installed.get(name, 'is not installed')}, need {required[name]}"
        for name in mismatched
    )
    upgrade = " ".join(f'"{name}{required[name]}"' for name in mismatched)
    remedy = f"pip install {upgrade}" if mismatched != ["python"] else "use a newer Python"
    yield _finding("versions", what, remedy, "fail")


def same_versions(facts: Facts) -> Iterator[Finding]:
    """Check that all machines have the versions of this process: they exchange pickles."""
    installed, differences = facts.program.versions, []
    for machine in facts.machines:
        for name in sorted(installed.keys() | machine.versions.keys()):
            ours, theirs = installed.get(name, "none"), machine.versions.get(name, "none")
            if ours != theirs:
                differences.append(f"{machine.name} has {name} {theirs}, this process has {ours}")
    if differences:
        remedy = "install the same versions everywhere, and restart Ray there"
        yield _finding("same versions", "; ".join(differences), remedy, "fail")
    elif len(facts.machines) > 1:
        yield _finding("same versions", f"on {len(facts.machines)} machines and here")


def configuration(facts: Facts) -> Iterator[Finding]:
    """Check that keys of ``exo.*`` are known, allowed, and have an effect."""
    for error in facts.program.errors:
        remedy = "see docs/configuration.md for every key, unit and default"
        yield _finding("configuration", error, remedy, "fail")
    if not facts.program.errors:
        changed = [f"{key}={value!r}" for key, value in facts.program.settings.items()]
        yield _finding("configuration", ", ".join(changed) or "all keys at their defaults")


def scheduler(facts: Facts) -> Iterator[Finding]:
    """Check that Dask would run on dask_exo."""
    name = facts.program.scheduler
    if name == "exo":
        yield _finding("scheduler", "Dask computes on dask_exo")
    elif not name:
        what = "none is set: programs choose one, by dask_exo.enable() or scheduler=dask_exo.get"
        yield _finding("scheduler", what)
    else:
        remedy = 'call dask_exo.enable() after it is set, or set scheduler: "exo"'
        yield _finding("scheduler", f"Dask is set to {name!r}, not to 'exo'", remedy)


def shuffle(facts: Facts) -> Iterator[Finding]:
    """Check that the shuffle method and the algorithm exist."""
    method, algorithm = facts.program.method, facts.program.algorithm
    key = f"dataframe.shuffle.method={method!r}"
    remedy = "set dataframe.shuffle.method: tasks, or unset it"
    if method not in ("", "tasks", "disk", "p2p", "simple"):
        yield _finding("shuffle", f"{key} is no shuffle method", remedy, "fail")
    elif method in ("disk", "p2p"):
        what = (
            f"{key}: dask_exo replaces it too, but other schedulers use it, and disk loses rows on "
            f"several machines"
        )
        yield _finding("shuffle", what, remedy)
    elif algorithm not in ("auto", *facts.program.algorithms):
        what = f"exo.shuffle.algorithm={algorithm!r} is none of {facts.program.algorithms}"
        yield _finding("shuffle", what, "set exo.shuffle.algorithm: auto", "fail")
    else:
        yield _finding("shuffle", f"every shuffle is an Exoshuffle, algorithm {algorithm}")


def cluster(facts: Facts) -> Iterator[Finding]:
    """Check that there is a cluster to run on."""
    if facts.unreachable:
        remedy = "solve this first; docs/install.md has a table of symptoms and remedies"
        yield _finding("cluster", facts.unreachable, remedy, "fail")
        return
    kind = "a private Ray" if facts.private else f"the Ray cluster at {facts.address}"
    slots = sum(machine.slots for machine in facts.machines)
    store = format_bytes(sum(machine.store for machine in facts.machines))
    what = f"{kind}: {len(facts.machines)} machine(s), {slots} slots, {store} of object store"
    yield _finding("cluster", what)


def token(facts: Facts) -> Iterator[Finding]:
    """Check that no other user runs code on the cluster."""
    if facts.token == "missing":
        what = "RAY_AUTH_MODE=token, but there is no token in RAY_AUTH_TOKEN or in a file"
        remedy = "copy ~/.ray/auth_token from the head, or name a file in RAY_AUTH_TOKEN_PATH"
        yield _finding("token", what, remedy, "fail")
    elif facts.unreachable:
        return  # a cluster that does not answer may require one
    elif facts.token == "used":
        yield _finding("token", "the cluster requires a token, and it is here")
    elif facts.private:
        yield _finding("token", "none is required: a private Ray")
    else:
        what = "this process sends no token: whoever reaches the cluster's ports can run code on it"
        remedy = 'export RAY_AUTH_MODE=token everywhere, see "Start a cluster" in docs/install.md'
        yield _finding("token", what, remedy)


def shared_memory(machine: Machine) -> Finding:
    """Check that ``/dev/shm`` has room for the object store."""
    shared, store = format_bytes(machine.shared), format_bytes(machine.store)
    remedy = (
        "start the container with --shm-size, or `mount -o remount,size=… /dev/shm`; else the "
        "store is on disk: lower exo.object-store-memory"
    )
    what = f"/dev/shm has {shared}, the object store takes {store}"
    return _finding("/dev/shm", what, remedy if machine.shared < machine.store else "")


def memory(machine: Machine) -> Finding:
    """Check that the object store leaves enough memory for tasks."""
    total, store = format_bytes(machine.memory), format_bytes(machine.store)
    remedy = f"lower exo.object-store-memory to {format_bytes(machine.memory // 2)} or less"
    crowded = machine.store > FOR_TASKS * machine.memory
    what = f"{total}, of which the object store takes {store}"
    return _finding("memory", what, remedy if crowded else "")


def slots(machine: Machine) -> Finding:
    """Check that there are not more slots than cores."""
    remedy = f"set exo.num-cpus: {machine.cores}, or --num-cpus of `ray start`"
    what = f"{machine.slots} slots on {machine.cores} cores"
    return _finding("slots", what, remedy if machine.slots > machine.cores else "")


def spilling(machine: Machine) -> Finding:
    """Check that the spill directory is writable, large enough and fast."""
    disk, remedy = machine.spill, ""
    level: Level = "warn"
    if disk is None:
        return _finding("spilling", "the spill directory of this cluster is unknown")
    if disk.error:
        remedy = "set exo.spill-directory to a directory that can be written"
        return _finding("spilling", f"{disk.path} cannot be written: {disk.error}", remedy, "fail")
    if disk.free <= (1 - FULL) * disk.total:
        level, remedy = "fail", "free space there: Ray writes nothing to a disk that is 95 % full"
    elif disk.kind in IN_MEMORY:
        remedy = "this is memory: set exo.spill-directory to a directory on a disk"
    elif disk.kind.startswith(REMOTE):
        remedy = "this is a network file system: set exo.spill-directory to a local disk"
    elif disk.free < machine.store:
        remedy = "it is full before the store has been written once: set exo.spill-directory"
    elif disk.write < SLOW:
        remedy = "this is slow: set exo.spill-directory to a directory on a quicker disk"
    speeds = f"writes {format_bytes(int(disk.write))}/s, reads {format_bytes(int(disk.read))}/s"
    free = f"{format_bytes(disk.free)} of {format_bytes(disk.total)} free"
    what = f"{disk.path} ({disk.kind or 'unknown file system'}): {free}, {speeds}"
    return _finding("spilling", what, remedy, level)


def open_files(machine: Machine) -> Finding:
    """Check that enough files may be open."""
    limit = machine.open_files
    if 0 <= limit < FILES:
        remedy = "`ulimit -n 65536` in the shell that starts the program, or `ray start`"
        return _finding("open files", f"{limit} at most, need {FILES}", remedy)
    return _finding("open files", "no limit" if limit < 0 else f"{limit} at most")


def huge_pages(machine: Machine) -> Finding:
    """Check that freed memory returns to the system."""
    what = f"transparent huge pages: {machine.huge_pages or 'unknown'}"
    if machine.huge_pages != "always":
        return _finding("huge pages", what)
    what += ", so that a process takes 2 MB where it uses a few kB"
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return _finding("huge pages", what, remedy)


def environment(machine: Machine) -> Finding:
    """Check the variables that Ray was started with: of its spilling, and of its workers."""
    if not machine.lacks:
        return _finding("environment", "Ray was started with all variables that it needs")
    names = ", ".join(variable.partition("=")[0] for variable in machine.lacks)
    remedy = f"export {' '.join(machine.lacks)} before `ray start`: dask_exo is slower without"
    return _finding("environment", f"Ray was started without {names}", remedy)


def gpu(machine: Machine) -> Finding:
    """Check that Ray knows all GPUs, and that cupy can use them."""
    what = f"Ray knows {machine.gpus}, cupy sees {machine.devices}"
    if not machine.gpus and machine.devices <= 0:
        return _finding("GPU", "none")
    if not machine.cupy:
        return _finding("GPU", f"{what}: it is not installed", 'pip install "dask-exo[gpu]"')
    if machine.devices < 0:
        what = f"Ray knows {machine.gpus}, and hides them from tasks that request none"
    elif machine.gpus > machine.devices:
        remedy = "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or lower exo.num-gpus"
        return _finding("GPU", what, remedy)
    return _finding("GPU", f"{what}; values go through host memory")


def clocks(machine: Machine) -> Finding:
    """Check that clocks agree, so that times in logs, tokens and files do."""
    what = f"{machine.skew:+.2f} s (± {machine.doubt:.2f} s) from this one's"
    ahead = abs(machine.skew) - machine.doubt > SKEW
    return _finding("clock", what, "let it run chrony or systemd-timesyncd" if ahead else "")


OF_ALL: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    python_and_packages,
    same_versions,
    configuration,
    scheduler,
    shuffle,
    cluster,
    token,
)
OF_EACH: tuple[Callable[[Machine], Finding], ...] = (
    slots,
    memory,
    shared_memory,
    spilling,
    open_files,
    huge_pages,
    environment,
    gpu,
    clocks,
)
