"""Checks of `dask exo doctor`: facts about machines and settings, and a finding for each; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dask.utils import format_bytes
from packaging.specifiers import SpecifierSet

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes
    ----------
    level : {"ok", "warn", "fail"}
        ``warn``: it works, but slower or less safely than it could. ``fail``: something will not
        work.
    name : str
        Of the check.
    what : str
        What there is, with numbers.
    remedy : str
        What to do; empty where nothing need be done.
    """

    level: Level
    name: str
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Speed:
    """Throughput of a directory.

    Attributes
    ----------
    path : str
    kind : str
        Of file system (``"ext4"``, ``"nfs4"``, ``"tmpfs"``), if known.
    total, free : int
        Bytes of the disk.
    write, read : float
        Bytes per second of one file, past the page cache; 0 where it was not measured.
    error : str
        Why it cannot be used; empty if it can.
    """

    path: str
    kind: str = ""
    total: int = 0
    free: int = 0
    write: float = 0.0
    read: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster.

    Attributes
    ----------
    name : str
    versions : mapping
        Package (or ``"python"``) → version; those that are not installed are missing.
    cores : int
        That a process there may use.
    slots : int
        Tasks that Ray runs there side by side.
    memory, store, shared : int
        Bytes of memory, of the object store, and of ``/dev/shm``.
    spill : Speed or None
        Where values go that do not fit the store; None if Ray does not tell.
    open_files : int
        How many files a process there may open; -1 for any number.
    huge_pages : str
        Policy of transparent huge pages: ``always``, ``madvise``, ``never``, or empty.
    allocator : mapping
        Environment variables of glibc's allocator, as workers have them.
    gpus : int
        Devices that Ray knows there.
    cupy : bool
        Whether cupy can be imported there.
    devices : int
        Devices that cupy sees there; -1 where Ray hides them from tasks that ask for none.
    ipc : str, optional
        Why one process cannot open memory of a device that another one has there; empty if a
        probe could, None where it was not tried.
    skew : float
        Seconds by which its clock is ahead of the driver's.
    doubt : float
        Seconds by which that may be wrong.
    """

    name: str
    versions: Mapping[str, str]
    cores: int = 1
    slots: int = 1
    memory: int = 0
    store: int = 0
    shared: int = 0
    spill: Speed | None = None
    open_files: int = -1
    huge_pages: str = ""
    allocator: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    cupy: bool = False
    devices: int = 0
    ipc: str | None = None
    skew: float = 0.0
    doubt: float = 0.0


@dataclass(frozen=True)
class ProgramFacts:
    """Settings and packages of this process.

    Attributes
    ----------
    required : mapping
        Package (or ``"python"``) → the versions of it that dask_exo needs, as in ``">=2.50"``.
    versions : mapping
        Package (or ``"python"``) → the version here.
    scheduler : str
        Name of the scheduler that Dask is set to; empty if none is set.
    method : str
        ``dataframe.shuffle.method``; empty if it is not set.
    algorithm : str
        ``exo.shuffle.algorithm``.
    algorithms : tuple of str
        Those that there are.
    settings : mapping
        Every ``exo.*`` key that is not at its default, and its value.
    errors : tuple of str
        What is wrong with the configuration.
    """

    required: Mapping[str, str]
    versions: Mapping[str, str]
    scheduler: str = ""
    method: str = ""
    algorithm: str = "auto"
    algorithms: tuple[str, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All that the checks see.

    Attributes
    ----------
    program : ProgramFacts
    machines : tuple of Machine
        Of the cluster; this machine alone, if there is none.
    address : str
        Of the cluster; empty if there is none.
    private : bool
        Whether this process started it.
    token : {"off", "used", "missing"}
        Whether the cluster is protected by a token, and it is there.
    unreachable : str
        Why there is no cluster; empty if there is.
    """

    program: ProgramFacts
    machines: tuple[Machine, ...]
    address: str = ""
    private: bool = True
    token: Literal["off", "used", "missing"] = "off"
    unreachable: str = ""


Check = Callable[[Facts], Iterator[Finding]]

FILES = 4096  # a worker process has some sixty
FULL = 0.95  # of a disk: Ray writes nothing beyond
SLOW = 100e6  # bytes per second: below it a shuffle waits for its disk and for nothing else
SKEW = 1.0  # seconds
FOR_TASKS = 0.7  # of memory may be object store, so that something is left for the tasks
REMOTE = ("nfs", "cifs", "smb", "fuse.sshfs", "lustre", "ceph", "glusterfs", "9p", "afs")
IN_MEMORY = ("tmpfs", "ramfs")


def python_and_packages(facts: Facts) -> Iterator[Finding]:
    """Versions here are those that dask_exo needs."""
    have = facts.program.versions
    wrong = [
        f"{name} {have.get(name, 'is not installed')}, need {wanted}"
        for name, wanted in facts.program.required.items()
        if not SpecifierSet(wanted).contains(have.get(name, "0"), prereleases=True)
    ]
    if wrong:
        names = [one.partition(" ")[0] for one in wrong]
        upgrade = " ".join(f'"{name}{facts.program.required[name]}"' for name in names)
        remedy = f"pip install {upgrade}" if names != ["python"] else "use a newer Python"
        yield Finding("fail", "versions", "; ".join(wrong), remedy)
    else:
        what = ", ".join(f"{name} {number}" for name, number in have.items())
        yield Finding("ok", "versions", what)


def same_versions(facts: Facts) -> Iterator[Finding]:
    """Every machine has the versions of this process: values are pickled between them."""
    here, wrong = facts.program.versions, []
    for machine in facts.machines:
        for name in sorted(here.keys() | machine.versions.keys()):
            mine, other = here.get(name, "none"), machine.versions.get(name, "none")
            if mine != other:
                wrong.append(f"{machine.name} has {name} {other}, this process has {mine}")
    if wrong:
        remedy = "install the same versions everywhere, and start Ray there anew"
        yield Finding("fail", "same versions", "; ".join(wrong), remedy)
    elif len(facts.machines) > 1:
        yield Finding("ok", "same versions", f"on {len(facts.machines)} machines and here")


def configuration(facts: Facts) -> Iterator[Finding]:
    """Keys of ``exo.*`` are known, allowed, and have an effect."""
    for error in facts.program.errors:
        remedy = "see docs/configuration.md for every key, unit and default"
        yield Finding("fail", "configuration", error, remedy)
    if not facts.program.errors:
        changed = [f"{key}={value!r}" for key, value in facts.program.settings.items()]
        yield Finding("ok", "configuration", ", ".join(changed) or "all keys at their defaults")


def scheduler(facts: Facts) -> Iterator[Finding]:
    """Dask would run on dask_exo."""
    name = facts.program.scheduler
    if name == "exo":
        yield Finding("ok", "scheduler", "Dask computes on dask_exo")
    elif not name:
        what = "none is set: programs choose one, by dask_exo.enable() or scheduler=dask_exo.get"
        yield Finding("ok", "scheduler", what)
    else:
        remedy = 'call dask_exo.enable() after it is set, or set scheduler: "exo"'
        yield Finding("warn", "scheduler", f"Dask is set to {name!r}, not to 'exo'", remedy)


def shuffle(facts: Facts) -> Iterator[Finding]:
    """Shuffles are lowered to one that there is, and run by an algorithm that there is."""
    method, algorithm = facts.program.method, facts.program.algorithm
    known = ("", "tasks", "disk", "p2p", "simple")
    if method not in known:
        what = f"dataframe.shuffle.method={method!r} is no shuffle method"
        yield Finding("fail", "shuffle", what, "set dataframe.shuffle.method: tasks, or unset it")
    elif method in ("disk", "p2p"):
        what = (
            f"dataframe.shuffle.method={method!r}: dask_exo replaces it too, but what runs on "
            f"another scheduler uses it, and disk loses rows on several machines"
        )
        yield Finding("warn", "shuffle", what, "set dataframe.shuffle.method: tasks, or unset it")
    elif algorithm not in ("auto", *facts.program.algorithms):
        what = f"exo.shuffle.algorithm={algorithm!r} is none of {facts.program.algorithms}"
        yield Finding("fail", "shuffle", what, "set exo.shuffle.algorithm: auto")
    else:
        yield Finding("ok", "shuffle", f"every shuffle is an Exoshuffle, algorithm {algorithm}")


def cluster(facts: Facts) -> Iterator[Finding]:
    """There is a cluster to run on."""
    if facts.unreachable:
        remedy = "mend what it names; docs/install.md has a table of what you see and what helps"
        yield Finding("fail", "cluster", facts.unreachable, remedy)
        return
    kind = "a private Ray" if facts.private else f"the Ray cluster at {facts.address}"
    slots = sum(machine.slots for machine in facts.machines)
    store = format_bytes(sum(machine.store for machine in facts.machines))
    what = f"{kind}: {len(facts.machines)} machine(s), {slots} slots, {store} of object store"
    yield Finding("ok", "cluster", what)


def token(facts: Facts) -> Iterator[Finding]:
    """Nobody else runs code on the cluster."""
    if facts.token == "missing":
        what = "RAY_AUTH_MODE=token, and there is no token in RAY_AUTH_TOKEN, nor in a file"
        remedy = "copy ~/.ray/auth_token from the head, or name a file in RAY_AUTH_TOKEN_PATH"
        yield Finding("fail", "token", what, remedy)
    elif facts.unreachable:
        return  # whether the cluster asks for one is not known
    elif facts.token == "used":
        yield Finding("ok", "token", "the cluster asks for a token, and it is here")
    elif facts.private:
        yield Finding("ok", "token", "none is asked for: a private Ray")
    else:
        what = "this process sends no token: whoever reaches the cluster's ports can run code on it"
        remedy = 'export RAY_AUTH_MODE=token everywhere, see "Start a cluster" in docs/install.md'
        yield Finding("warn", "token", what, remedy)


def shared_memory(machine: Machine) -> Finding:
    """``/dev/shm`` holds the object store."""
    what = f"/dev/shm has {format_bytes(machine.shared)}, the object store takes "
    what += format_bytes(machine.store)
    if machine.shared < machine.store:
        remedy = (
            "start the container with --shm-size, or `mount -o remount,size=… /dev/shm`; else the "
            "store lies on disk: lower exo.object-store-memory"
        )
        return Finding("warn", "/dev/shm", what, remedy)
    return Finding("ok", "/dev/shm", what)


def memory(machine: Machine) -> Finding:
    """Check that the object store leaves enough memory for tasks."""
    what = f"{format_bytes(machine.memory)}, of which the object store takes "
    what += format_bytes(machine.store)
    if machine.store > FOR_TASKS * machine.memory:
        remedy = f"lower exo.object-store-memory to {format_bytes(machine.memory // 2)} or less"
        return Finding("warn", "memory", what, remedy)
    return Finding("ok", "memory", what)


def slots(machine: Machine) -> Finding:
    """There are not more slots than cores."""
    what = f"{machine.slots} slots on {machine.cores} cores"
    if machine.slots > machine.cores:
        remedy = f"set exo.num-cpus: {machine.cores}, or --num-cpus of `ray start`"
        return Finding("warn", "slots", what, remedy)
    return Finding("ok", "slots", what)


def spilling(machine: Machine) -> Finding:
    """Check that the spill directory is writable, large enough and fast."""
    disk, name = machine.spill, "spilling"
    if disk is None:
        return Finding("ok", name, "Ray does not tell where this cluster spills to")
    if disk.error:
        remedy = "set exo.spill-directory to a directory that can be written"
        return Finding("fail", name, f"{disk.path} cannot be written: {disk.error}", remedy)
    speeds = f"writes {format_bytes(int(disk.write))}/s, reads {format_bytes(int(disk.read))}/s"
    free = f"{format_bytes(disk.free)} of {format_bytes(disk.total)} free"
    what = f"{disk.path} ({disk.kind or 'unknown file system'}): {free}, {speeds}"
    level: Level = "warn"
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
    else:
        return Finding("ok", name, what)
    return Finding(level, name, what, remedy)


def open_files(machine: Machine) -> Finding:
    """Enough files may be open."""
    most = machine.open_files
    if 0 <= most < FILES:
        remedy = "`ulimit -n 65536` in the shell that starts the program, or `ray start`"
        return Finding("warn", "open files", f"{most} at most, need {FILES}", remedy)
    return Finding("ok", "open files", "no limit" if most < 0 else f"{most} at most")


def huge_pages(machine: Machine) -> Finding:
    """Memory that is given back is really free."""
    what = f"transparent huge pages: {machine.huge_pages or 'unknown'}"
    if machine.huge_pages == "always":
        what += ", so that a process keeps 2 MB where it uses a few kB"
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        return Finding("warn", "huge pages", what, remedy)
    return Finding("ok", "huge pages", what)


def allocator(machine: Machine) -> Finding:
    """Workers take big arrays from memory that they have already."""
    if machine.allocator:
        known = ", ".join(f"{name}={value}" for name, value in machine.allocator.items())
        return Finding("ok", "allocator", known)
    remedy = (
        "export MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824 before "
        "`ray start`: large copies take up to a third of the time"
    )
    return Finding("warn", "allocator", "glibc's defaults: fresh pages for each array", remedy)


def gpu(machine: Machine) -> Finding:
    """GPUs that Ray knows can be used, and those that there are are known."""
    what = f"Ray knows {machine.gpus}, cupy sees {machine.devices}"
    if not machine.gpus and machine.devices <= 0:
        return Finding("ok", "GPU", "none")
    if not machine.cupy:
        return Finding("warn", "GPU", f"{what}: it is not installed", 'pip install "dask-exo[gpu]"')
    if machine.devices < 0:
        what = f"Ray knows {machine.gpus}, and hides them from tasks that ask for none"
        return Finding("ok", "GPU", f"{what}; {_ipc(machine)}")
    if machine.gpus > machine.devices:
        remedy = "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or lower exo.num-gpus"
        return Finding("warn", "GPU", what, remedy)
    return Finding("ok", "GPU", f"{what}; {_ipc(machine)}")


def _ipc(machine: Machine) -> str:
    """Report the probe of CUDA IPC; nothing depends on it."""
    through = "values go through host memory"
    if machine.ipc is None:
        return f"{through}; CUDA IPC was not tried: no GPU was free in time"
    if machine.ipc:
        return f"{through}; a probe says that CUDA IPC does not work here: {machine.ipc}"
    return f"{through}, though a probe says that CUDA IPC would work here"


def clocks(machine: Machine) -> Finding:
    """Clocks agree, so that times in logs, tokens and files do."""
    what = f"{machine.skew:+.2f} s (± {machine.doubt:.2f} s) from this one's"
    if abs(machine.skew) - machine.doubt > SKEW:
        return Finding("warn", "clock", what, "let the machine run chrony or systemd-timesyncd")
    return Finding("ok", "clock", what)


OF_ALL: tuple[Check, ...] = (
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
    allocator,
    gpu,
    clocks,
)


MARKS = {"ok": "  ok", "warn": "WARN", "fail": "FAIL"}


@dataclass(frozen=True)
class Diagnosis:
    """All findings; the text has a line for each, and one more for each remedy.

    Attributes
    ----------
    program : tuple of Finding
        Of this process and the cluster as a whole.
    machines : tuple of (str, tuple of Finding)
        Of each machine, by name.
    """

    program: tuple[Finding, ...]
    machines: tuple[tuple[str, tuple[Finding, ...]], ...]

    @property
    def findings(self) -> list[Finding]:
        """All of them."""
        return [*self.program, *(one for _, found in self.machines for one in found)]

    @property
    def failed(self) -> bool:
        """True if a check failed."""
        return any(one.level == "fail" for one in self.findings)

    def __str__(self) -> str:
        """Lines for people."""
        lines = list(_lines(self.program))
        for name, found in self.machines:
            lines += ["", name, *_lines(found)]
        count = {mark: sum(one.level == mark for one in self.findings) for mark in MARKS}
        lines += ["", f"{count['ok']} ok, {count['warn']} to look at, {count['fail']} failed"]
        return "\n".join(lines)

    __repr__ = __str__


def diagnose(facts: Facts) -> Diagnosis:
    """Check facts.

    Examples
    --------
    >>> from dask_exo.cli.doctor_checks import Machine, ProgramFacts
    >>> sizes = {"memory": 8 * 2**30, "store": 2**30, "shared": 2**26}
    >>> machine = Machine("n1", {}, **sizes, allocator={"MALLOC_TRIM_THRESHOLD_": "1000000000"})
    >>> found = diagnose(Facts(ProgramFacts({}, {}), (machine,)))
    >>> [one.name for one in found.findings if one.level != "ok"]
    ['/dev/shm']
    """
    program = tuple(one for check in OF_ALL for one in check(facts))
    machines = [(m.name, tuple(check(m) for check in OF_EACH)) for m in facts.machines]
    return Diagnosis(program, tuple(machines))


def _lines(found: tuple[Finding, ...]) -> Iterator[str]:
    for one in found:
        yield f"{MARKS[one.level]}  {one.name:<13} {one.what}"
        if one.remedy:
            yield f"{'':<20}→ {one.remedy}"
