"""The accumulator of events that `recording`, reports and the live page read."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import singledispatchmethod

from dask.utils import format_bytes, key_split

from dask_exo import events
from dask_exo.events import CallSpan
from dask_exo.report.plot_data import Sample, ShuffleMatrix, Spans, TaskSpan
from dask_exo.report.render import duration
from dask_exo.report.summary import (
    Figures,
    GpuShare,
    ShuffleSummary,
    StageSummary,
    TaskGroup,
    TaskSummary,
)

TOP = 10  # tasks that are named
TOKEN = re.compile(r"-([0-9a-f]{4})[0-9a-f]{28}$")
DRAWN = 40  # shuffles whose matrix is kept: those with most bytes


@dataclass
class _GroupTotals:
    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    first: float = float("inf")
    last: float = 0.0


def label(key: object) -> str:
    """Return a readable key: the number of a partition, the first digits of a hash.

    Examples
    --------
    >>> label(("read-parquet-" + 8 * "b62f", 3)), label("total")
    ('read-parquet-b62f 3', 'total')
    """
    name, *place = key if isinstance(key, tuple) else (key,)
    return " ".join(map(str, (TOKEN.sub(r"-\1", str(name)), *place)))


@dataclass
class _TopTasks:
    """The tasks with most of something."""

    tasks: list[tuple[float, TaskSummary]] = field(default_factory=list)

    def add(self, amount: float, key: object, seconds: float, nbytes: int) -> None:
        """Add a task if it is among the largest."""
        if len(self.tasks) < TOP or amount > self.tasks[-1][0]:
            self.tasks.append((amount, TaskSummary(label(key), seconds, nbytes)))
            self.tasks.sort(key=lambda one: -one[0])
            del self.tasks[TOP:]

    def all(self) -> tuple[TaskSummary, ...]:
        """Return the tasks, largest first."""
        return tuple(task for _, task in self.tasks)


Name = tuple[int, str]
"""A run, and a shuffle of it."""


class Collector:
    """An observer that accumulates the events of all runs it sees.

    Parameters
    ----------
    detailed : bool
        Whether to keep data of plots: spans, samples and matrices. Otherwise memory is a few
        numbers for each group of tasks.

    Attributes
    ----------
    spans : Spans
    samples : list of Sample
    matrices : dict
        (run, name of a shuffle) → `ShuffleMatrix`
    started : float
        Seconds since 1970, or infinity.
    calls, objects : int
        Tasks submitted to Ray, and refs they returned (small ones never enter the store).
    spilled, restored : int
        Bytes that the object stores wrote to disk and read back.
    directories : dict
        Directory → bytes of the files that a private Ray was seen to spill there. Ray adds a
        header to each object.
    repeated : dict
        Group → partitions that were recomputed after a loss of workers or nodes.
    shuffles : list of ShuffleFinished
        In the order in which they ended.
    checkpoints : list of CheckpointSeen
        One for each collection that a checkpoint could hold.
    kept : list of ShuffleKept
        One for each shuffle whose outputs a checkpoint could hold.
    stages : dict
        Name of a pipeline's stage → its last event.
    gave_way : list of GaveWay
        Tasks that ran out of memory and were retried with fewer neighbours, one for each retry.
    """

    def __init__(self, *, detailed: bool = False) -> None:
        self.detailed = detailed
        self.spans, self.matrices = Spans(), dict[Name, ShuffleMatrix]()
        self.samples: list[Sample] = []
        self.started, self._ended = float("inf"), 0.0
        self._lock = threading.Lock()
        self._runs = Counter[str]()
        self.calls = self.objects = self.spilled = self.restored = 0
        self._places = events.PlacesSeen(0, 0, 0, 0.0)
        self._work = self._gpu_work = 0.0
        self._peak = self._peak_rss = 0
        self._rss: dict[tuple[str, int], int] = {}
        self._groups: dict[str, _GroupTotals] = defaultdict(_GroupTotals)
        self.shuffles: list[events.ShuffleFinished] = []
        self.checkpoints: list[events.CheckpointSeen] = []
        self.kept: list[events.ShuffleKept] = []
        self.gave_way: list[events.GaveWay] = []
        self.repeated: dict[str, int] = Counter()
        self._merges = Counter[Name]()
        self.stages: dict[str, events.StageSeen] = {}
        self._shares: dict[str, GpuShare] = {}
        self._waits: dict[str, Counter[str]] = defaultdict(Counter)
        self._slow, self._large = _TopTasks(), _TopTasks()
        self._recovered = Counter[str]()
        self.directories: dict[str, int] = Counter()
        self._refused: dict[str, str] = {}

    def __call__(self, event: events.Event) -> None:
        """Accumulate one event."""
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

    @singledispatchmethod
    def _note(self, event: events.Event) -> None:
        """Ignore other events."""

    @_note.register
    def _(self, event: events.RunStarted) -> None:
        self.started = min(self.started, event.time)
        self._runs["begun"] += 1

    @_note.register
    def _(self, _event: events.RanHere) -> None:
        self._runs["here"] += 1

    @_note.register
    def _(self, event: events.PlacesSeen) -> None:
        self._places = max(self._places, event, key=lambda one: one.slots)

    @_note.register
    def _(self, event: events.RunFinished) -> None:
        self._runs["failed"] += event.failed
        self.calls += event.calls
        self.objects += event.objects
        self.spilled += event.spilled
        self.restored += event.restored
        for path, nbytes in event.directories.items():
            self.directories[path] = self.directories.get(path, 0) + nbytes

    @_note.register
    def _(self, event: events.ClusterSeen) -> None:
        self._peak = max(self._peak, event.used)
        if self.detailed:
            rss = sum(self._rss.values())
            self.samples.append(Sample(event.time, event.used, event.spilled, rss, event.in_flight))

    @_note.register
    def _(self, event: events.TasksFinished) -> None:
        self._work += event.seconds
        self._gpu_work += event.seconds * event.gpus
        ran = event.ran or CallSpan("", 0, event.time - event.seconds, event.seconds, 0)
        mine = self._groups[event.group]
        mine.count += event.count
        mine.seconds += event.seconds
        mine.nbytes += event.nbytes
        mine.first = min(mine.first, ran.start)
        mine.last = max(mine.last, ran.start + ran.seconds)
        self._rss[ran.node, ran.process] = ran.rss
        self._peak_rss = max(self._peak_rss, sum(self._rss.values()))
        for key, seconds, nbytes in event.each:
            self._slow.add(seconds, key, seconds, nbytes)
            self._large.add(nbytes, key, seconds, nbytes)
        if self.detailed:
            self._span(event, ran)

    def _span(self, event: events.TasksFinished, ran: CallSpan) -> None:
        """Add the tasks of a call as consecutive spans."""
        start = ran.start
        if len(event.each) <= 1:  # a call with several maps reports only their sum
            stop = start + ran.seconds
            self.spans.add(
                TaskSpan(ran.node, ran.process, event.group, start, stop, event.count, event.nbytes)
            )
            return
        for key, seconds, nbytes in event.each:
            group, count = str(key_split(key)), 1
            self.spans.add(
                TaskSpan(ran.node, ran.process, group, start, start + seconds, count, nbytes)
            )
            start += seconds

    @_note.register
    def _(self, event: events.PartsCut) -> None:
        if not self.detailed:
            return
        name = event.run, event.name
        if name not in self.matrices:
            self.matrices[name] = ShuffleMatrix(event.parts, len(event.sent))
        self.matrices[name].add(event.start, event.count, event.sent)
        if len(self.matrices) > DRAWN:
            others = [one for one in self.matrices if one != name]
            del self.matrices[min(others, key=lambda one: self.matrices[one].totals.sum())]

    @_note.register
    def _(self, event: events.ShuffleSeen) -> None:
        self._merges[event.run, event.name] = event.merges

    @_note.register
    def _(self, event: events.ShuffleFinished) -> None:
        self.shuffles.append(event)

    @_note.register
    def _(self, event: events.StageSeen) -> None:
        self.stages[event.name] = event
        self._waits[event.name][event.waits] += 1

    @_note.register
    def _(self, event: events.Recovered) -> None:
        self._recovered[event.what] += event.count

    @_note.register
    def _(self, event: events.CallsRepeated) -> None:
        for group, count in event.groups.items():
            self.repeated[group] = self.repeated.get(group, 0) + count
            self._recovered[f"{group} made again, since it was lost"] += count

    @_note.register
    def _(self, event: events.GaveWay) -> None:
        self.gave_way.append(event)
        self._recovered[f"{event.group} with fewer neighbours, as memory ran out"] += 1

    @_note.register
    def _(self, event: events.ShuffleKept) -> None:
        self.kept.append(event)

    @_note.register
    def _(self, event: events.CheckpointSeen) -> None:
        self.checkpoints.append(event)
        if event.refused:
            self._refused[label(event.group)] = event.refused

    @_note.register
    def _(self, event: events.ShareRaised) -> None:
        known = self._shares.get(event.name)
        asked = event.before if known is None else known.asked
        self._shares[event.name] = GpuShare(
            event.name, asked, event.share, event.held, event.device
        )

    def figures(self, price: float | None = None) -> Figures:
        """Return all numbers; ``price`` is that of a node for an hour."""
        with self._lock:
            places, stages = self._places, [self._stage(name) for name in self.stages]
            shuffles = {(event.run, event.name): event for event in self.shuffles}
            gpu_work = self._gpu_work + sum(stage.seconds * stage.gpus for stage in stages)
            return Figures(
                runs=self._runs["begun"],
                failed=self._runs["failed"],
                here=self._runs["here"],
                seconds=self.seconds,
                nodes=places.nodes,
                slots=places.slots,
                store=places.store,
                gpus=places.gpus,
                calls=self.calls,
                objects=self.objects,
                spilled=self.spilled,
                restored=self.restored,
                peak_store=self._peak,
                peak_rss=self._peak_rss,
                work=self._work + sum(stage.seconds for stage in stages),
                gpu_work=gpu_work,
                price=price,
                groups=tuple(self._group(name) for name in self._groups),
                shuffles=tuple(map(self._shuffle, shuffles.values())),
                stages=tuple(stages),
                slowest=self._slow.all(),
                largest=self._large.all(),
                shares=tuple(self._shares.values()),
                recovered=dict(self._recovered),
                directories=dict(self.directories),
                refused=dict(self._refused),
            )

    def _group(self, name: str) -> TaskGroup:
        one, begun = self._groups[name], min(self.started, self._ended)
        return TaskGroup(
            name, one.count, one.seconds, one.nbytes, one.first - begun, one.last - begun
        )

    def _shuffle(self, one: events.ShuffleFinished) -> ShuffleSummary:
        matrix = self.matrices.get((one.run, one.name))
        return ShuffleSummary(
            one.name,
            one.algorithm,
            one.reason,
            one.maps,
            one.reducers,
            one.rounds,
            self._merges[one.run, one.name],
            one.calls,
            one.rows,
            one.nbytes,
            one.seconds,
            None if matrix is None else int(matrix.totals.max(initial=0.0)),
        )

    def _stage(self, name: str) -> StageSummary:
        one, waits = self.stages[name], self._waits[name]
        looks = sum(waits.values())
        shares = {why: n / looks for why, n in waits.items() if why}
        return StageSummary(name, one.outputs, one.nbytes, one.seconds, one.gpus, shares)


@contextlib.contextmanager
def recording(observe: Callable[[events.Event], None] | None = None) -> Iterator[Collector]:
    """Count the events of all runs inside the block; ``observe`` is called with each, too."""
    collector = Collector()
    with contextlib.ExitStack() as stack:
        stack.enter_context(events.observing(collector))
        if observe is not None:
            stack.enter_context(events.observing(observe))
        yield collector


MOST = 8  # rows that are shown


@dataclass
class ProgressRow:
    """One line.

    Attributes
    ----------
    name : str
    done, total : int
        A total of 0 is not known.
    nbytes : int
        Bytes of results so far.
    since : float
        When the first part of it was done, less the time that took; in seconds since 1970.
    note : str
        Further information.
    """

    name: str
    done: int = 0
    total: int = 0
    nbytes: int = 0
    since: float = 0.0
    note: str = ""

    @property
    def active(self) -> bool:
        """True if it has started and not finished."""
        return self.done > 0 and (not self.total or self.done < self.total)

    def rate(self, now: float) -> float:
        """Return bytes per second."""
        return self.nbytes / max(now - self.since, 1e-3)

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
        far = f"{self.done:,}/{self.total:,}" if self.total else f"{self.done:,}"
        fast = f"{format_bytes(int(self.rate(now)))}/s" if self.nbytes else ""
        left = self.left(now)
        return far, fast, "" if left is None else f"{duration(left)} left", self.note


@dataclass
class ProgressState:
    """An observer that counts the progress of all runs.

    Attributes
    ----------
    runs : dict
        Active run → its start.
    """

    runs: dict[int, float] = field(default_factory=dict)
    _rows: dict[tuple[int, str], ProgressRow] = field(default_factory=dict)
    _seen: events.ClusterSeen | None = None
    _spilled: int | None = None

    def __call__(self, event: events.Event) -> None:
        """Count one event."""
        self._note(event)

    def active(self) -> list[ProgressRow]:
        """Return active rows, in the order of their start."""
        rows = sorted((row for row in self._rows.values() if row.active), key=lambda r: r.since)
        return rows[:MOST]

    def footer(self, now: float) -> str:
        """Return a line with time, spilled bytes, tasks in flight and the bottleneck."""
        parts = [duration(now - min(self.runs.values(), default=now))]
        seen = self._seen
        if seen is not None:
            parts.append(f"{format_bytes(seen.used)} in the store")
            parts.append(f"{format_bytes(seen.spilled - (self._spilled or 0))} spilled")
            parts.append(f"{seen.in_flight} in flight, waits for {seen.waits}")
        return ", ".join(parts)

    def lines(self, now: float) -> list[str]:
        """Return a line for each active row, and the footer."""
        rows = [f"{row.name}: {', '.join(filter(None, row.cells(now)))}" for row in self.active()]
        return [*rows, self.footer(now)]

    @singledispatchmethod
    def _note(self, event: events.Event) -> None:
        """Ignore other events."""

    @_note.register
    def _(self, event: events.RunStarted) -> None:
        self.runs[event.run] = event.time
        for name, count in event.groups.items():
            self._rows[event.run, name] = ProgressRow(name, total=count)

    @_note.register
    def _(self, event: events.RunFinished) -> None:
        self.runs.pop(event.run, None)
        for run, name in list(self._rows):
            if run == event.run:
                del self._rows[run, name]
        if not self.runs:
            self._seen = self._spilled = None

    @_note.register
    def _(self, event: events.TasksFinished) -> None:
        row = self._row(event, event.group, event.time - event.seconds)
        row.done += event.count
        row.nbytes += event.nbytes

    @_note.register
    def _(self, event: events.ShuffleSeen) -> None:
        if event.merges:
            row = self._row(event, f"{event.name} merges", event.time)
            row.done, row.total = event.merged, event.merges
            row.note = "so far" if event.mapped < event.parts else ""

    @_note.register
    def _(self, event: events.StageSeen) -> None:
        row = self._row(event, event.name, event.time)
        row.done, row.nbytes = event.outputs, event.nbytes
        waits = f", waits for {event.waits}" if event.waits else ""
        row.note = f"{event.running} run, {event.queued} wait{waits}"

    @_note.register
    def _(self, event: events.ClusterSeen) -> None:
        self._seen = event
        self._spilled = event.spilled if self._spilled is None else self._spilled

    def _row(self, event: events.Event, name: str, since: float) -> ProgressRow:
        row = self._rows.setdefault((event.run, name), ProgressRow(name))
        row.since = row.since or since
        return row
