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
VERSION = 2  # of what `as_json` makes
UNITS = {"seconds": "s", "nbytes": "bytes", "price": "$ per node and hour", "cost": "$"}


@dataclass(frozen=True)
class TaskGroup:
    """Tasks of one group.

    Their number, seconds of work, bytes of results; start of the first and end of the last, in
    seconds from the start of the report.
    """

    name: str
    count: int
    seconds: float
    nbytes: int
    first: float
    last: float


@dataclass(frozen=True)
class TaskSummary:
    """One task."""

    name: str
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class ShuffleSummary:
    """One shuffle.

    Attributes
    ----------
    name, algorithm, reason : str
        Name, algorithm, and reason of the choice.
    maps, reducers, rounds, merges, calls : int
        M, R, rounds of maps, merges between them, and calls of maps.
    rows, nbytes : int
        What the maps sent.
    seconds : float
        Until the last map or merge had ended.
    largest : int or None
        Bytes of the largest output; None where that was not recorded.
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

    Attributes
    ----------
    name : str
        The stages.
    asked, share : float
        Of a GPU.
    held, device : int
        Bytes: the most that a task has held there, and those that the GPU has for all.
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
    runs, failed, here : int
        Computations, those that raised, and those that were left to Dask's threads.
    seconds : float
        From the start of the first to the end of the last.
    nodes, slots, store, gpus
        Of the cluster: machines, tasks side by side, bytes of object store, GPUs.
    calls, objects : int
        Tasks submitted to Ray, and refs that they returned.
    spilled, restored : int
        Bytes that the object stores wrote to disk, and read back.
    peak_store, peak_rss : int
        The most bytes seen in the stores, and as memory of all workers that had been heard of.
    work, gpu_work : float
        Seconds of tasks; seconds of tasks times the GPUs that they asked for.
    price : float or None
        Of a node for an hour.
    groups, shuffles, stages, slowest, largest, shares : tuple
    recovered : mapping
        Kind of recovered work → count.
    directories : mapping
        Spill directory → bytes.
    refused : mapping
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
        """Share of the slots' time in which tasks were seen to run; merges are not seen."""
        return min(1.0, self.work / (self.slots * self.seconds)) if self.slots else 0.0

    @property
    def gpu_busy(self) -> float | None:
        """Share of the GPUs' time in which tasks ran that asked for them; None without GPUs."""
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


def as_json(figures: Figures) -> dict[str, Any]:
    """Return plain values for `json`.

    Examples
    --------
    >>> as_json(Figures(nodes=2, seconds=1800.0))["node_hours"]
    1.0
    """
    derived = {
        "tasks": figures.tasks,
        "shuffled": figures.shuffled,
        "busy": figures.busy,
        "gpu_busy": figures.gpu_busy,
        "node_hours": figures.node_hours,
        "cost": figures.cost,
        "cost_per_terabyte": figures.cost_per_terabyte,
    }
    return {"version": VERSION, "units": UNITS, **asdict(figures), **derived}


def from_json(found: Mapping[str, Any]) -> Figures:
    """Restore figures from the values of `as_json`.

    Raises
    ------
    ValueError
        The values have another form or version.

    Examples
    --------
    >>> figures = Figures(nodes=2, groups=(TaskGroup("read", 8, 1.0, 800, 0.0, 1.0),))
    >>> from_json(as_json(figures)) == figures
    True
    """
    if found.get("version") != VERSION:
        raise ValueError(f"version {found.get('version')!r} is not {VERSION}")
    kinds = {
        "groups": TaskGroup,
        "shuffles": ShuffleSummary,
        "stages": StageSummary,
        "slowest": TaskSummary,
        "largest": TaskSummary,
        "shares": GpuShare,
    }
    plain = {one.name: found[one.name] for one in fields(Figures)}
    try:
        lists = {name: tuple(kind(**one) for one in plain[name]) for name, kind in kinds.items()}
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Figures(**{**plain, **lists})


def read_summary(path: Path) -> Figures:
    """Read the figures of a page of `performance_report`, or of a file of ``Report.to_json()``.

    Raises
    ------
    InputError
        The file is neither.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    found = IN_A_PAGE.search(text)
    try:
        return from_json(json.loads(text if found is None else found[1]))
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{str(path)!r} is no report of this version of dask_exo: give a page that "
            f"performance_report has written, or a file with what to_json() of a report returns"
        ) from error
