"""One line of progress, rewritten in place on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from dask_exo.report.events import (
    CallsRepeated,
    Event,
    RunFinished,
    RunStarted,
    ShuffleChosen,
    StageSeen,
    TasksFinished,
)
from dask_exo.report.stats import recovered


class ProgressLine:
    """An observer that says how far the running computation is.

    Parameters
    ----------
    stream : file, optional
        Where to write; standard error by default.
    every : float, optional
        Seconds between two lines: 0.2 on a terminal, 10 elsewhere.
    """

    def __init__(self, stream: TextIO | None = None, every: float | None = None) -> None:
        self._stream = stream or sys.stderr
        self._tty = self._stream.isatty()
        self._every = every if every is not None else 0.2 if self._tty else 10.0
        self._lock = threading.Lock()
        self._groups: dict[str, tuple[int, int]] = {}
        self._stages: dict[str, StageSeen] = {}
        self._nbytes = 0
        self._started = self._said = time.monotonic()
        self._width = 0

    def __call__(self, event: Event) -> None:
        """Take note of one event, and write if it is time to."""
        with self._lock:
            self._note(event)

    def _note(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._groups = {name: (0, count) for name, count in event.groups.items()}
            self._nbytes, self._started = 0, time.monotonic()
        elif isinstance(event, TasksFinished):
            done, total = self._groups.get(event.group, (0, 0))
            self._groups[event.group] = (done + event.count, total)
            self._nbytes += event.nbytes
        elif isinstance(event, StageSeen):
            self._stages[event.name] = event
        elif isinstance(event, CallsRepeated):
            self._end_line()
            total = sum(total for _, total in self._groups.values())
            self._stream.write(recovered(event.groups, total) + "\n")
        elif isinstance(event, ShuffleChosen):
            self._end_line()
            self._stream.write(f"shuffle {event.name}: {event.algorithm}, {event.reason}\n")
        if isinstance(event, RunFinished):
            self._end_line()
        elif time.monotonic() - self._said >= self._every:
            self._write()

    def _write(self) -> None:
        self._said = time.monotonic()
        seconds = self._said - self._started
        active = [
            f"{name} {done}/{total}" for name, (done, total) in self._groups.items() if done < total
        ]
        active += [
            f"{seen.name} {seen.running} run, {seen.finished} done"
            + (f", waits for {seen.waits}" if seen.waits else "")
            for seen in self._stages.values()
        ]
        rate = self._nbytes / seconds / 1e6 if seconds > 0 else 0.0
        line = f"{' ▸ '.join(active[:4])}  {rate:.0f} MB/s  {seconds:.0f} s"
        if self._tty:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def _end_line(self) -> None:
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
