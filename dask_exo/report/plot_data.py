"""Bounded data of plots: spans, samples of the cluster, shuffle matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

MOST_SPANS = 5_000  # a page with more is slow to draw
CELLS = 64  # along each side of a matrix


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
