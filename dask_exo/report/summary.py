"""The figures of a report, and bounded data of its plots: times in seconds, sizes in bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_exo.errors import InputError

IN_A_PAGE = re.compile(r"<script type='application/json' id='figures'>(.*?)</script>", re.DOTALL)
VERSION = 3  # of the format of `as_json`
MOST_SPANS = 5_000  # a page with more is slow to draw
CELLS = 64  # along each side of a matrix
MOST_LOADS = 1_000  # of one machine
LOAD_INTERVAL = 0.4  # seconds, at least, between two of them


MARKS = ("retried", "throttled")  # counted among requests to object storage; no operations

# dollars for a thousand requests of the standard class; all others cost as much as GET
PRICES = {
    **dict.fromkeys(("PutObject", "CopyObject", "UploadPart", "UploadPartCopy"), 0.005),
    **dict.fromkeys(("CreateMultipartUpload", "CompleteMultipartUpload"), 0.005),
    **dict.fromkeys(("ListObjects", "ListObjectsV2", "ListBuckets"), 0.005),
    **dict.fromkeys(("DeleteObject", "DeleteObjects", "AbortMultipartUpload"), 0.0),
}
GET_PRICE = 0.0004


def cost(counts: Mapping[str, int]) -> float:
    """Return the price of requests in dollars.

    Examples
    --------
    >>> round(cost({"GetObject": 1000, "PutObject": 100, "retried": 3}), 6)
    0.0009
    """
    operations = {name: n for name, n in counts.items() if name not in MARKS}
    return sum(n * PRICES.get(name, GET_PRICE) for name, n in operations.items()) / 1000


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
class TaskFailure:
    """A task that failed: its traceback, and the last lines that its worker printed."""

    name: str
    traceback: str
    printed: str = ""

    @property
    def reason(self) -> str:
        """Last line of the traceback."""
        return self.traceback.strip().splitlines()[-1]


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
    left_out: int = 0  #: rows that the maps did not send: a join finds no partner for them
    divided: int = 0  #: large reducers that were divided among others
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
    gpus_used: float | None = None  #: GPUs that ran kernels, at a time; None if not sampled
    price: float | None = None  #: of a node for an hour; None if unknown
    compiled: int = 0  #: blockwise operations that ran as queries of Polars
    blockwise: int = 0  #: all of those in expressions over Parquet files
    groups: tuple[TaskGroup, ...] = ()
    shuffles: tuple[ShuffleSummary, ...] = ()
    stages: tuple[StageSummary, ...] = ()
    slowest: tuple[TaskSummary, ...] = ()
    largest: tuple[TaskSummary, ...] = ()
    failures: tuple[TaskFailure, ...] = ()  #: the last ones
    shares: tuple[GpuShare, ...] = ()
    #: requests to object storage by operation; "retried" and "throttled" ones are among them
    requests: Mapping[str, int] = field(default_factory=dict)
    recovered: Mapping[str, int] = field(default_factory=dict)  #: kind of recovered work → count
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
        """Share of the GPUs' time in which they ran kernels; None without GPUs.

        If that was not sampled: in which tasks that requested them ran.
        """
        whole = self.gpus * self.seconds
        if not whole:
            return None
        used = self.gpu_work / self.seconds if self.gpus_used is None else self.gpus_used
        return min(1.0, used / self.gpus)

    @property
    def node_hours(self) -> float:
        """Machines times hours."""
        return self.nodes * self.seconds / 3600

    @property
    def cost(self) -> float | None:
        """Cost of the node hours; None without a price."""
        return None if self.price is None else self.node_hours * self.price

    @property
    def request_cost(self) -> float:
        """Cost of the requests to object storage, by the list price of S3."""
        return cost(self.requests)

    @property
    def cost_per_terabyte(self) -> float | None:
        """Cost per shuffled terabyte; None without a price or shuffle."""
        if self.cost is None or not self.shuffled:
            return None
        return self.cost / (self.shuffled / 1e12)


DERIVED = (
    *("tasks", "shuffled", "busy", "gpu_busy"),
    *("node_hours", "cost", "cost_per_terabyte", "request_cost"),
)
KINDS = {
    "groups": TaskGroup,
    "shuffles": ShuffleSummary,
    "stages": StageSummary,
    "slowest": TaskSummary,
    "largest": TaskSummary,
    "failures": TaskFailure,
    "shares": GpuShare,
}
UNITS = {"seconds": "s", "nbytes": "bytes", "price": "$ per node and hour", "cost": "$"}


def as_json(figures: Figures) -> dict[str, Any]:
    """Return plain values for `json`."""
    derived = {name: getattr(figures, name) for name in DERIVED}
    return {"version": VERSION, "units": UNITS, **asdict(figures), **derived}


def from_json(values: Mapping[str, Any]) -> Figures:
    """Restore figures from the values of `as_json`; raise `ValueError` for others.

    Values that were not recorded yet when a report was written are the defaults.
    """
    if values.get("version") != VERSION or "runs" not in values:
        raise ValueError(f"version {values.get('version')!r} is not {VERSION}")
    plain = {item.name: values[item.name] for item in fields(Figures) if item.name in values}
    known = {name: kind for name, kind in KINDS.items() if name in plain}
    try:
        lists = {name: tuple(kind(**item) for item in plain[name]) for name, kind in known.items()}
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


class TaskSpan(NamedTuple):
    """Consecutive tasks of one group on one worker."""

    node: str
    process: int
    group: str
    start: float  # seconds since 1970
    stop: float
    tasks: int
    nbytes: int  # of results


class Spans:
    """At most ``most`` spans; of more, those with short pauses between them are merged."""

    def __init__(self, most: int = MOST_SPANS) -> None:
        self._most = most
        self._gap = 0.001
        self.all: list[TaskSpan] = []

    def add(self, span: TaskSpan) -> None:
        """Add a span."""
        self.all.append(span)
        while len(self.all) > self._most:
            self.all = merge_spans(self.all, self._gap)
            self._gap *= 2


def merge_spans(spans: Iterable[TaskSpan], gap: float) -> list[TaskSpan]:
    """Merge spans of one worker and group with no more than ``gap`` seconds between.

    Spans of one worker that are shorter than ``gap`` are merged whatever their group is, under the
    group of the longer one: a plot could not show them apart.

    Examples
    --------
    >>> spans = [
    ...     TaskSpan("n", 1, g, t, t + 1.0, 1, 5) for g, t in (("a", 0.0), ("a", 1.1), ("b", 2.2))
    ... ]
    >>> [(span.group, span.start, span.stop, span.tasks) for span in merge_spans(spans, 0.5)]
    [('a', 0.0, 2.1, 2), ('b', 2.2, 3.2, 1)]
    """
    merged: list[TaskSpan] = []
    for span in sorted(spans, key=lambda span: (span.node, span.process, span.start)):
        last = merged[-1] if merged else None
        if last is None or not _can_merge(last, span, gap):
            merged.append(span)
            continue
        longer = max(last, span, key=lambda span: span.stop - span.start)
        merged[-1] = last._replace(
            group=longer.group,
            stop=max(last.stop, span.stop),
            tasks=last.tasks + span.tasks,
            nbytes=last.nbytes + span.nbytes,
        )
    return merged


def _can_merge(last: TaskSpan, span: TaskSpan, gap: float) -> bool:
    if (last.node, last.process) != (span.node, span.process) or span.start - last.stop > gap:
        return False
    return last.group == span.group or span.stop - last.start < gap


class Sample(NamedTuple):
    """State of the cluster at a time: bytes stored, spilled, and of workers; tasks in flight."""

    time: float
    used: int
    spilled: int
    rss: int
    in_flight: int


class LoadSample(NamedTuple):
    """Load of a machine over some time that ends at ``time``.

    Processors in use, bytes a second of its disks and network, and GPUs in use at the end.
    """

    time: float
    processors: float
    disk: float
    network: float
    gpus: float | None = None


class Loads:
    """The load of each machine over time, at most ``most`` samples of each."""

    def __init__(self, most: int = MOST_LOADS) -> None:
        self._most = most
        self._last: dict[str, tuple[float, Sequence[float]]] = {}
        self._gpus: dict[str, tuple[float, int]] = {}  # sum and number of readings
        self.all: dict[str, list[LoadSample]] = {}

    @property
    def gpus(self) -> float | None:
        """Mean number of GPUs in use on all machines; None if it is not known."""
        return sum(total / count for total, count in self._gpus.values()) if self._gpus else None

    def add(self, node: str, time: float, load: Sequence[Any]) -> None:
        """Add a reading of a machine: its counters, in the order of the fields of a sample."""
        *counters, gpus = load
        if gpus is not None:
            total, count = self._gpus.get(node, (0.0, 0))
            self._gpus[node] = total + gpus, count + 1
        before, old = self._last.setdefault(node, (time, counters))
        if time - before < LOAD_INTERVAL:
            return
        self._last[node] = time, counters
        samples = self.all.setdefault(node, [])
        rates: list[float] = (np.subtract(counters, old) / (time - before)).tolist()
        samples.append(LoadSample._make([time, *rates, gpus]))
        if len(samples) > self._most:
            del samples[1::2]


class ShuffleMatrix:
    """Bytes from each of M parts to each of R outputs.

    ``cells`` is (min(M, CELLS), min(R, CELLS)): neighbours share a cell, and parts of one call are
    spread evenly over its rows. ``totals`` is (R,) the bytes of each output.

    Examples
    --------
    >>> matrix = ShuffleMatrix(2, 3)
    >>> matrix.add(1, 1, np.array([5.0, 0.0, 1.0]))
    >>> matrix.cells.tolist(), matrix.totals.tolist()
    ([[0.0, 0.0, 0.0], [5.0, 0.0, 1.0]], [5.0, 0.0, 1.0])
    """

    def __init__(self, parts: int, outputs: int) -> None:
        self.parts = parts
        columns = min(outputs, CELLS)
        self._starts = np.arange(columns) * outputs // columns
        self.cells = np.zeros((min(parts, CELLS), columns))
        self.totals = np.zeros(outputs)

    def add(self, start: int, count: int, sent: np.ndarray) -> None:
        """Add the (R,) bytes that ``count`` maps from ``start`` on have sent."""
        self.totals += sent
        rows = np.arange(start, start + count) * len(self.cells) // self.parts
        share = np.add.reduceat(sent, self._starts) / count
        np.add.at(self.cells, rows, share)
