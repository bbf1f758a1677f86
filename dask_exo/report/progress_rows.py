"""State of progress: a row for each active group of tasks, shuffle and stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import singledispatchmethod

from dask.utils import format_bytes

from dask_exo import events
from dask_exo.report.text import duration

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
