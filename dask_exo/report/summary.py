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
HOUR = 3600.0
TERABYTE = 1e12
VERSION = 2  # of the format of `as_json`


@dataclass
class TaskGroup:
    """Tasks of one group: their number, seconds of work, and bytes of results.

    ``first`` and ``last`` are the start of the first and the end of the last task, in seconds from
    the start of the report.
    """

    name: str
    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    first: float = float("inf")
    last: float = 0.0


@dataclass(frozen=True)
class TaskSummary:
    """One task: its seconds, and bytes of its result."""

    name: str
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class ShuffleSummary:
    """One shuffle: its algorithm and the reason for it, and what it moved.

    Maps (M), reducers (R), rounds of maps, merges between them, and calls of maps; rows and bytes
    that the maps sent; seconds until the last map or merge ended; bytes of the largest output,
    None if not recorded.
    """

    name: str
    algorithm: str
    reason: str
    maps: int
    reducers: int
    rounds: int
    merges: int
    calls: int
    rows: int
    nbytes: int
    seconds: float
    largest: int | None = None

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
    """A stage of a pipeline: outputs, their bytes, seconds of work, GPUs per task.

    ``waits`` has its bottlenecks, as shares of the samples.
    """

    name: str
    outputs: int
    nbytes: int
    seconds: float
    gpus: float
    waits: Mapping[str, float]


@dataclass(frozen=True)
class GpuShare:
    """Share of a GPU of actors that use more of it than they requested.

    The names of their stages, the requested share and the present one, and bytes: the peak of a
    task, and the memory of the GPU.
    """

    name: str
    asked: float
    share: float
    held: int
    device: int


@dataclass(frozen=True)
class Figures:
    """All numbers of a report.

    Attributes
    ----------
    runs, failed, here
        Computations, those that raised, and those that ran on Dask's threads.
    seconds
        From the start of the first to the end of the last.
    nodes, slots, store, gpus
        Of the cluster: machines, parallel tasks, bytes of object store, GPUs.
    calls, objects
        Tasks submitted to Ray, and refs that they returned.
    spilled, restored
        Bytes that the object stores wrote to disk, and read back.
    peak_store, peak_rss
        Highest number of bytes in the stores, and in the memory of all known workers.
    work, gpu_work
        Seconds of tasks; seconds of tasks times the GPUs that they requested.
    price
        Of a node for an hour; None if unknown.
    recovered
        Kind of recovered work → count.
    directories
        Spill directory → bytes.
    refused
        Collections that cannot be checkpointed → reason.
    """

    runs: int = 0
    failed: int = 0
    here: int = 0
    seconds: float = 0.0
    nodes: int = 0
    slots: int = 0
    store: int = 0
    gpus: float = 0.0
    calls: int = 0
    objects: int = 0
    spilled: int = 0
    restored: int = 0
    peak_store: int = 0
    peak_rss: int = 0
    work: float = 0.0
    gpu_work: float = 0.0
    price: float | None = None
    groups: tuple[TaskGroup, ...] = ()
    shuffles: tuple[ShuffleSummary, ...] = ()
    stages: tuple[StageSummary, ...] = ()
    slowest: tuple[TaskSummary, ...] = ()
    largest: tuple[TaskSummary, ...] = ()
    shares: tuple[GpuShare, ...] = ()
    recovered: Mapping[str, int] = field(default_factory=dict)
    directories: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

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
        return self.nodes * self.seconds / HOUR

    @property
    def cost(self) -> float | None:
        """Cost of the node hours; None without a price.

        Examples
        --------
        >>> round(Figures(nodes=10, seconds=360.0, price=2.5).cost, 6)
        2.5
        """
        return None if self.price is None else self.node_hours * self.price

    @property
    def cost_per_terabyte(self) -> float | None:
        """Cost per shuffled terabyte; None without a price or shuffle."""
        if self.cost is None or not self.shuffled:
            return None
        return self.cost / (self.shuffled / TERABYTE)


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
    """Restore figures from the values of `as_json`; raise `ValueError` for others.

    Examples
    --------
    >>> figures = Figures(nodes=2, groups=(TaskGroup("read", 8, 1.0, 800, 0.0, 1.0),))
    >>> from_json(as_json(figures)) == figures
    True
    """
    if values.get("version") != VERSION:
        raise ValueError(f"version {values.get('version')!r} is not {VERSION}")
    plain = {one.name: values[one.name] for one in fields(Figures)}
    try:
        lists = {name: tuple(kind(**one) for one in plain[name]) for name, kind in KINDS.items()}
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Figures(**{**plain, **lists})


def read_summary(path: Path) -> Figures:
    """Read the figures of a page of `performance_report`, or of a file of ``Report.to_json()``."""
    text = path.read_text(encoding="utf-8", errors="replace")
    found = IN_A_PAGE.search(text)
    try:
        return from_json(json.loads(text if found is None else found[1]))
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{str(path)!r} is no report of this version of dask_exo: give a page that "
            f"performance_report has written, or a file with what to_json() of a report returns"
        ) from error
