"""Facts about a program, its cluster and its machines; findings of the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
