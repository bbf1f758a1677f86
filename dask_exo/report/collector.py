"""The accumulator of events behind reports, progress and the live page."""

from __future__ import annotations

import contextlib
import heapq
import re
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

from dask.utils import format_bytes

from dask_exo import events
from dask_exo.cluster.sampling import Stack
from dask_exo.events import CallSpan
from dask_exo.report.render import duration
from dask_exo.report.summary import (
    Figures,
    GpuShare,
    Loads,
    Sample,
    ShuffleMatrix,
    ShuffleSummary,
    Spans,
    StageSummary,
    TaskFailure,
    TaskGroup,
    TaskSpan,
    TaskSummary,
)

TOP = 10  # tasks that are named
TOKEN = re.compile(r"-([0-9a-f]{4})[0-9a-f]{28}$")
MATRICES = 40  # only those of the largest shuffles are stored
MOST_STACKS = 2_000  # different ones of a group
MOST_ROWS = 8  # rows of progress that are shown


def label(key: object) -> str:
    """Return a readable key: the number of a partition, the first digits of a hash.

    Examples
    --------
    >>> label(("read-parquet-" + 8 * "b62f", 3)), label("total")
    ('read-parquet-b62f 3', 'total')
    """
    name, *place = key if isinstance(key, tuple) else (key,)
    return " ".join(map(str, (TOKEN.sub(r"-\1", str(name)), *place)))


class _TopTasks:
    """The `TOP` tasks with most of something."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Any, float, int]] = []
        self._count = 0

    def add(self, amount: float, key: object, seconds: float, nbytes: int) -> None:
        """Add a task if it is among the largest; of equal ones the first counts."""
        self._count += 1
        add = heapq.heappush if len(self._heap) < TOP else heapq.heappushpop
        add(self._heap, (amount, -self._count, key, seconds, nbytes))

    def all(self) -> tuple[TaskSummary, ...]:
        """Return the tasks, largest first."""
        tasks = sorted(self._heap, reverse=True)
        return tuple(TaskSummary(label(key), time, size) for _, _, key, time, size in tasks)


@dataclass
class ProgressRow:
    """Progress of a group of tasks, a shuffle or a stage."""

    name: str
    done: int = 0
    total: int = 0  #: 0 if unknown
    nbytes: int = 0  #: read or returned so far; 0 if unknown
    since: float = 0.0  #: start, in seconds since 1970
    note: str = ""  #: further information

    @property
    def active(self) -> bool:
        """True if it has started and not finished."""
        return self.done > 0 and (not self.total or self.done < self.total)

    @property
    def share(self) -> float | None:
        """Share that is done; None if the total is unknown."""
        return self.done / self.total if self.total else None

    def left(self, now: float) -> float | None:
        """Return the remaining seconds at the present rate; None if unknown.

        Examples
        --------
        >>> ProgressRow("map", done=20, total=50, since=100.0).left(110.0)
        15.0
        """
        if not self.done or not self.total:
            return None
        return (now - self.since) * (self.total - self.done) / self.done

    def cells(self, now: float) -> tuple[str, str, str, str]:
        """Return progress, rate, remaining time and note."""
        progress = f"{self.done:,}/{self.total:,}" if self.total else f"{self.done:,}"
        rate = int(self.nbytes / max(now - self.since, 1e-3))
        speed = f"{format_bytes(rate)}/s" if self.nbytes else ""
        remaining = self.left(now)
        return (
            progress,
            speed,
            "" if remaining is None else f"{duration(remaining)} left",
            self.note,
        )


Name = tuple[int, str]
"""A run, and a shuffle, group or stage of it."""


class Collector:
    """An observer that accumulates the events of all runs it sees.

    If ``detailed``, it stores data of plots: ``spans``, ``samples``, ``matrices``, ``stacks`` by
    group, and ``loads`` of machines. Otherwise memory is a few numbers for each group of tasks and
    each shuffle. ``calls``, ``objects``, ``spilled`` and ``restored`` are those of `Figures`.
    """

    started: float  # seconds since 1970
    calls: int
    objects: int
    spilled: int
    restored: int
    requests: Counter[str]  # to object storage, by operation
    repeated: Counter[str]  # group → partitions recomputed after a loss
    spans: Spans
    loads: Loads

    def __init__(self, *, detailed: bool = False) -> None:
        self.detailed = detailed
        self.spans, self.loads = Spans(), Loads()
        self.matrices: dict[Name, ShuffleMatrix] = {}
        self.samples: list[Sample] = []
        self.stacks: dict[str, Counter[Stack]] = {}
        self.active_runs: dict[int, float] = {}  # run → its start
        self.started, self._ended = float("inf"), 0.0
        self.calls = self.objects = self.spilled = self.restored = 0
        self.requests, self.repeated = Counter[str](), Counter[str]()
        self.shuffles: list[events.ShuffleFinished] = []
        self.checkpoints: list[events.CheckpointSeen] = []
        self.checkpoint_decisions: list[events.CheckpointDecided] = []
        self.stages: dict[str, events.StageSeen] = {}  # the last of each
        self.gave_way: list[events.GaveWay] = []  # retries of tasks that ran out of memory
        self._lock = threading.Lock()
        self._rows: dict[Name, ProgressRow] = {}
        self._cluster: events.ClusterSeen | None = None
        self._runs, self._merges = Counter[str](), Counter[Name]()
        self._divided: dict[Name, events.ReducersDivided] = {}
        self._resources = events.ResourcesSeen(0, 0, 0, 0.0)
        self._engines: dict[str, str] = {}
        self._peak = self._peak_rss = 0
        self._rss: dict[tuple[str, int], int] = {}
        self._groups: dict[str, TaskGroup] = {}
        self._gpu_work, self._spilled_before = 0.0, 0
        self._shares: dict[str, GpuShare] = {}
        self._waits: dict[str, Counter[str]] = defaultdict(Counter)
        self._slowest, self._largest = _TopTasks(), _TopTasks()
        self._recovered, self._operations = Counter[str](), Counter[str]()
        self._refused, self._failures = dict[str, str](), deque[TaskFailure](maxlen=TOP)

    def __call__(self, event: events.Event) -> None:
        """Count one event."""
        with self._lock:
            self._note(event)
            self._ended = max(self._ended, event.time)

    @property
    def tasks(self) -> dict[str, int]:
        """Group → number of graph tasks finished."""
        return {name: group.count for name, group in self._groups.items()}

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first run to the last event."""
        return max(0.0, self._ended - self.started)

    def rows(self) -> list[ProgressRow]:
        """Return the active rows, in the order of their start."""
        active = (row for row in list(self._rows.values()) if row.active)
        return sorted(active, key=lambda row: row.since)[:MOST_ROWS]

    def footer(self, now: float) -> str:
        """Return a line with time, spilled bytes, tasks in flight and the bottleneck."""
        parts = [duration(now - min(self.active_runs.values(), default=now))]
        cluster = self._cluster
        if cluster is not None:
            parts.append(f"{format_bytes(cluster.used)} in the store")
            parts.append(f"{format_bytes(cluster.spilled - self._spilled_before)} spilled")
            parts.append(f"{cluster.in_flight} in flight")
            parts += [f"waits for {cluster.waits}"] if cluster.waits else []
        return ", ".join(parts)

    def _row(self, event: events.Event, name: str, since: float) -> ProgressRow:
        row = self._rows.setdefault((event.run, name), ProgressRow(name))
        row.since = row.since or since
        return row

    @singledispatchmethod
    def _note(self, event: events.Event) -> None:
        """Ignore other events."""

    @_note.register
    def _(self, event: events.RunStarted) -> None:
        self.started = min(self.started, event.time)
        self._runs["started"] += 1
        self.active_runs[event.run] = event.time
        for name, count in event.groups.items():
            self._rows[event.run, name] = ProgressRow(name, total=count)

    @_note.register
    def _(self, event: events.EngineChosen) -> None:
        if event.engine:
            self._engines[event.engine] = event.reason

    @_note.register
    def _(self, event: events.ResourcesSeen) -> None:
        self._resources = max(self._resources, event, key=lambda resources: resources.slots)

    @_note.register
    def _(self, event: events.RunFinished) -> None:
        self._runs["failed"] += event.failed
        self.calls += event.calls
        self.objects += event.objects
        self.spilled += event.spilled
        self.restored += event.restored
        self.requests.update(event.requests)
        self.active_runs.pop(event.run, None)
        self._rows = {name: row for name, row in self._rows.items() if name[0] != event.run}
        if not self.active_runs:
            self._cluster = None

    @_note.register
    def _(self, event: events.ClusterSeen) -> None:
        if self._cluster is None:
            self._spilled_before = event.spilled
        self._cluster = event
        self._peak = max(self._peak, event.used)
        if self.detailed:
            rss = sum(self._rss.values())
            self.samples.append(Sample(event.time, event.used, event.spilled, rss, event.in_flight))

    @_note.register
    def _(self, event: events.TasksFinished) -> None:
        ran = event.ran or CallSpan("", 0, event.time - event.seconds, event.seconds, 0)
        if not self._runs["started"]:  # the record began after the run
            self.started = min(self.started, ran.start)
        self.requests.update(ran.requests)
        row = self._row(event, event.group, event.time - event.seconds)
        group = self._groups.setdefault(event.group, TaskGroup(event.group))
        row.done += event.count
        row.nbytes += event.moved
        group.count += event.count
        group.nbytes += event.nbytes
        group.seconds += event.seconds
        group.first = min(group.first, ran.start)
        group.last = max(group.last, ran.start + ran.seconds)
        self._gpu_work += event.seconds * event.gpus
        self._rss[ran.node, ran.process] = ran.rss
        self._peak_rss = max(self._peak_rss, sum(self._rss.values()))
        for key, seconds, nbytes in event.each:
            self._slowest.add(seconds, key, seconds, nbytes)
            self._largest.add(nbytes, key, seconds, nbytes)
        if self.detailed:
            self._add_spans(event, ran)

    def _add_spans(self, event: events.TasksFinished, ran: CallSpan) -> None:
        """Add the tasks of a call as consecutive spans, and its samples."""
        if ran.samples is not None:
            self._add_stacks(event.group, ran.samples.stacks)
            if ran.samples.load is not None:
                self.loads.add(ran.node, ran.start + ran.seconds, ran.samples.load)
        tasks = [(seconds, 1, nbytes) for _, seconds, nbytes in event.each]
        if len(tasks) <= 1:  # a call with several maps reports only their sum
            tasks = [(ran.seconds, event.count, event.nbytes)]
        start = ran.start
        for seconds, count, nbytes in tasks:
            stop = start + seconds
            self.spans.add(TaskSpan(ran.node, ran.process, event.group, start, stop, count, nbytes))
            start = stop

    def _add_stacks(self, group: str, stacks: Mapping[Stack, int]) -> None:
        if not stacks:
            return
        counts = self.stacks.setdefault(group, Counter())
        counts.update(stacks)
        if len(counts) > 2 * MOST_STACKS:
            self.stacks[group] = Counter(dict(counts.most_common(MOST_STACKS)))

    @_note.register
    def _(self, event: events.TaskFailed) -> None:
        self._failures.append(TaskFailure(label(event.key), event.traceback, event.printed))

    @_note.register
    def _(self, event: events.PartsCut) -> None:
        if not self.detailed:
            return
        name = event.run, event.name
        if name not in self.matrices:
            self.matrices[name] = ShuffleMatrix(event.parts, len(event.sent))
        self.matrices[name].add(event.start, event.count, event.sent)
        if len(self.matrices) > MATRICES:
            others = [other for other in self.matrices if other != name]
            del self.matrices[min(others, key=lambda other: self.matrices[other].totals.sum())]

    @_note.register
    def _(self, event: events.ReducersDivided) -> None:
        self._divided[event.run, event.name] = event

    @_note.register
    def _(self, event: events.ShuffleSeen) -> None:
        self._merges[event.run, event.name] = event.merges
        if event.merges:
            row = self._row(event, f"{event.name} merges", event.time)
            row.done, row.total = event.merged, event.merges
            row.note = "so far" if event.mapped < event.parts else ""

    @_note.register
    def _(self, event: events.ShuffleFinished) -> None:
        self.shuffles.append(event)

    @_note.register
    def _(self, event: events.StageSeen) -> None:
        self.stages[event.name] = event
        self._waits[event.name][event.waits] += 1
        row = self._row(event, event.name, event.time)
        row.done, row.nbytes = event.outputs, event.moved
        waits = f", waits for {event.waits}" if event.waits else ""
        row.note = f"{event.running} run, {event.queued} wait{waits}"
        if self.detailed:
            self._add_stacks(event.name, event.stacks)

    @_note.register
    def _(self, event: events.Recovered) -> None:
        self._recovered[event.what] += event.count

    @_note.register
    def _(self, event: events.CallsRepeated) -> None:
        self.repeated.update(event.groups)
        for group, count in event.groups.items():
            self._recovered[f"{group} recomputed after a loss"] += count

    @_note.register
    def _(self, event: events.GaveWay) -> None:
        self.gave_way.append(event)
        self._recovered[f"{event.group} with fewer neighbours, as memory ran out"] += 1

    @_note.register
    def _(self, event: events.CheckpointDecided) -> None:
        self.checkpoint_decisions.append(event)

    @_note.register
    def _(self, event: events.QueriesCompiled) -> None:
        self._operations += Counter(compiled=event.operations, blockwise=event.blockwise)

    @_note.register
    def _(self, event: events.CheckpointSeen) -> None:
        self.checkpoints.append(event)
        if event.refused:
            self._refused[label(event.group)] = event.refused

    @_note.register
    def _(self, event: events.ShareRaised) -> None:
        first = self._shares.get(event.name)
        requested = event.before if first is None else first.requested
        share = GpuShare(event.name, requested, event.share, event.held, event.device)
        self._shares[event.name] = share

    def figures(self, price: float | None = None) -> Figures:
        """Return all numbers; ``price`` is that of a node for an hour."""
        with self._lock:
            resources, start = self._resources, min(self.started, self._ended)
            shuffles = {(event.run, event.name): event for event in self.shuffles}
            stages = [self._stage(event) for event in self.stages.values()]
            groups = [
                replace(group, first=group.first - start, last=group.last - start)
                for group in self._groups.values()
            ]
            return Figures(
                runs=self._runs["started"],
                failed=self._runs["failed"],
                engines=dict(self._engines),
                seconds=self.seconds,
                nodes=resources.nodes,
                slots=resources.slots,
                store=resources.store,
                gpus=resources.gpus,
                calls=self.calls,
                objects=self.objects,
                spilled=self.spilled,
                restored=self.restored,
                peak_store=self._peak,
                peak_rss=self._peak_rss,
                work=sum(item.seconds for item in groups) + sum(item.seconds for item in stages),
                gpu_work=self._gpu_work + sum(item.seconds * item.gpus for item in stages),
                gpus_used=self.loads.gpus,
                price=price,
                compiled=self._operations["compiled"],
                blockwise=self._operations["blockwise"],
                groups=tuple(groups),
                shuffles=tuple(map(self._shuffle, shuffles.values())),
                stages=tuple(stages),
                slowest=self._slowest.all(),
                largest=self._largest.all(),
                failures=tuple(self._failures),
                shares=tuple(self._shares.values()),
                requests=dict(self.requests),
                recovered=dict(self._recovered),
                refused=dict(self._refused),
            )

    def _shuffle(self, event: events.ShuffleFinished) -> ShuffleSummary:
        name = event.run, event.name
        matrix, divided = self.matrices.get(name), self._divided.get(name)
        fields = vars(event).items()
        shared = {name: value for name, value in fields if name not in ("run", "time")}
        largest = None if matrix is None else int(matrix.totals.max(initial=0.0))
        if divided is not None:
            shared |= {"divided": divided.reducers}
            largest = divided.largest
        return ShuffleSummary(**shared, merges=self._merges[name], largest=largest)

    def _stage(self, event: events.StageSeen) -> StageSummary:
        waits = self._waits[event.name]
        shares = {why: n / waits.total() for why, n in waits.items() if why}
        return StageSummary(
            event.name, event.outputs, event.nbytes, event.seconds, event.gpus, shares
        )


@contextlib.contextmanager
def recording() -> Iterator[Collector]:
    """Count the events of all runs inside the block."""
    collector = Collector()
    with events.observing(collector):
        yield collector
