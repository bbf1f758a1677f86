"""The figures of a report: times in seconds, sizes in bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dask_exo.errors import InputError

IN_A_PAGE = re.compile(r"<script type='application/json' id='figures'>(.*?)</script>", re.DOTALL)
VERSION = 3  # of the format of `as_json`


@dataclass
class TaskGroup:
    """Tasks of one group."""

    name: str
    count: int = 0
    seconds: float = 0.0  #: of work
    nbytes: int = 0  #: of results
    first: float = float("inf")  #: start of the first task, from the start of the report
    last: float = 0.0  #: end of the last task


@dataclass(frozen=True)
class TaskSummary:
    """One task: its seconds, and bytes of its result."""

    name: str
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class ShuffleSummary:
    """One shuffle: its algorithm and the reason for it, and the rows that it moved."""

    name: str
    algorithm: str
    reason: str
    maps: int
    reducers: int
    rounds: int  #: of maps
    merges: int  #: between them
    calls: int  #: of maps
    rows: int  #: that the maps sent
    nbytes: int
    seconds: float  #: until the last map or merge ended
    largest: int | None = None  #: bytes of the largest output; None if not recorded

    @property
    def skew(self) -> float:
        """Largest output relative to the mean; 1.0 if unknown.

        Examples
        --------
        >>> ShuffleSummary("s", "push", "", 4, 4, 1, 0, 4, 40, 400, 1.0, largest=300).skew
        3.0
        """
        mean = self.nbytes / max(self.reducers, 1)
        return 1.0 if self.largest is None or not mean else self.largest / mean


@dataclass(frozen=True)
class StageSummary:
    """A stage of a pipeline."""

    name: str
    outputs: int
    nbytes: int  #: of outputs
    seconds: float  #: of work
    gpus: float  #: of each task
    waits: Mapping[str, float]  #: bottleneck → share of the samples


@dataclass(frozen=True)
class GpuShare:
    """Share of a GPU of actors that use more of it than they requested."""

    name: str  #: of their stage
    requested: float  #: requested share
    share: float  #: present share
    held: int  #: bytes, the peak of a task
    device: int  #: bytes of the GPU


@dataclass(frozen=True)
class Figures:
    """All numbers of a report."""

    runs: int = 0  #: computations
    failed: int = 0  #: computations that raised
    engines: Mapping[str, str] = field(default_factory=dict)  #: "local" or "ray" → why, at last
    seconds: float = 0.0  #: from the start of the first to the end of the last
    nodes: int = 0  #: machines of the cluster
    slots: int = 0  #: parallel tasks
    store: int = 0  #: bytes of all object stores
    gpus: float = 0.0
    calls: int = 0  #: tasks submitted to Ray
    objects: int = 0  #: refs that they returned
    spilled: int = 0  #: bytes that the object stores wrote to disk
    restored: int = 0  #: bytes that they read back
    peak_store: int = 0  #: most bytes in the stores
    peak_rss: int = 0  #: most bytes in the memory of all known workers
    work: float = 0.0  #: seconds of tasks
    gpu_work: float = 0.0  #: seconds of tasks times the GPUs that they requested
    price: float | None = None  #: of a node for an hour; None if unknown
    groups: tuple[TaskGroup, ...] = ()
    shuffles: tuple[ShuffleSummary, ...] = ()
    stages: tuple[StageSummary, ...] = ()
    slowest: tuple[TaskSummary, ...] = ()
    largest: tuple[TaskSummary, ...] = ()
    shares: tuple[GpuShare, ...] = ()
    recovered: Mapping[str, int] = field(default_factory=dict)  #: kind of recovered work → count
    directories: Mapping[str, int] = field(default_factory=dict)  #: spill directory → bytes
    refused: Mapping[str, str] = field(default_factory=dict)  #: not checkpointed → reason

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(group.count for group in self.groups)

    @property
    def shuffled(self) -> int:
        """Bytes of all shuffles."""
        return sum(shuffle.nbytes for shuffle in self.shuffles)

    @property
    def busy(self) -> float:
        """Share of the slots' time in which tasks ran; merges do not count."""
        return min(1.0, self.work / (self.slots * self.seconds)) if self.slots else 0.0

    @property
    def gpu_busy(self) -> float | None:
        """Share of the GPUs' time in which tasks that requested them ran; None without GPUs."""
        whole = self.gpus * self.seconds
        return min(1.0, self.gpu_work / whole) if whole else None

    @property
    def node_hours(self) -> float:
        """Machines times hours."""
        return self.nodes * self.seconds / 3600

    @property
    def cost(self) -> float | None:
        """Cost of the node hours; None without a price."""
        return None if self.price is None else self.node_hours * self.price

    @property
    def cost_per_terabyte(self) -> float | None:
        """Cost per shuffled terabyte; None without a price or shuffle."""
        if self.cost is None or not self.shuffled:
            return None
        return self.cost / (self.shuffled / 1e12)


DERIVED = ("tasks", "shuffled", "busy", "gpu_busy", "node_hours", "cost", "cost_per_terabyte")
KINDS = {
    "groups": TaskGroup,
    "shuffles": ShuffleSummary,
    "stages": StageSummary,
    "slowest": TaskSummary,
    "largest": TaskSummary,
    "shares": GpuShare,
}
UNITS = {"seconds": "s", "nbytes": "bytes", "price": "$ per node and hour", "cost": "$"}


def as_json(figures: Figures) -> dict[str, Any]:
    """Return plain values for `json`."""
    derived = {name: getattr(figures, name) for name in DERIVED}
    return {"version": VERSION, "units": UNITS, **asdict(figures), **derived}


def from_json(values: Mapping[str, Any]) -> Figures:
    """Restore figures from the values of `as_json`; raise `ValueError` for others."""
    if values.get("version") != VERSION:
        raise ValueError(f"version {values.get('version')!r} is not {VERSION}")
    plain = {item.name: values[item.name] for item in fields(Figures)}
    try:
        lists = {name: tuple(kind(**item) for item in plain[name]) for name, kind in KINDS.items()}
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Figures(**{**plain, **lists})


def read_summary(path: Path) -> Figures:
    """Read the figures of a page of `performance_report`, or of a file of ``Report.to_json()``."""
    text = path.read_text(encoding="utf-8", errors="replace")
    match = IN_A_PAGE.search(text)
    try:
        return from_json(json.loads(text if match is None else match[1]))
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{str(path)!r} is no report of this version of dask_exo: give a page that "
            f"performance_report has written, or a file with what to_json() of a report returns"
        ) from error
