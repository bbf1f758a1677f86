"""The shuffles of all epochs, in the driver, and the rows of the consumers.

An epoch starts when its first consumer requests it, or so long before the end of the one before
that it is ready then. A consumer takes the refs of its rows, a partition at a time, as soon as they
are known. Rows that a slower consumer has not taken are kept for the last few epochs, and
recomputed later, so no consumer waits for another one.

One consumer gets windows one after the other: the next one is shuffled when fewer partitions are
ahead of it than a limit, which doubles whenever it has had to wait. So the store has a few windows
instead of an epoch. Several consumers need the number of all rows first, and what windows have in
common would be computed for each of them, so both cases shuffle all windows at once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import dask.dataframe as dd
import numpy as np

from dask_exo.dask_adapter import (
    IO,
    Blockwise,
    FromGraph,
    GraphNode,
    SelectPartitions,
    convert_legacy_graph,
)
from dask_exo.execution.persisted import Remote, promised
from dask_exo.partitions.batching import RowSpan
from dask_exo.pipeline.shard_server import LocalShards, NextRows, ShardRows
from dask_exo.planning.graph_passes import final_target
from dask_exo.planning.normalize import future_node
from dask_exo.planning.reorder import shuffle_windows
from dask_exo.validation import number_from

MAX_EPOCHS = 3  # a consumer's current one, the next one, and that of a slower consumer; or as many
# as consumers wait for
PER_INPUT = 2  # partitions of an epoch for each of the frame: a consumer prefetches the next one
MARGIN = 2.0  # of the time to the first rows, which take longer beside the consumers' work


@dataclass(frozen=True)
class EpochSpec:
    """Arguments of the epochs; see ``ddf.exo.epochs``."""

    count: int
    batch_size: int
    seed: int
    window: int | None
    drop_last: bool
    consumers: int

    def __post_init__(self) -> None:
        number_from(1, "count", self.count)
        number_from(1, "batch_size", self.batch_size)
        number_from(0, "seed", self.seed)
        number_from(1, "split", self.consumers)
        if self.window is not None:
            number_from(1, "window", self.window)

    def shares(self, rows: int) -> list[range]:
        """Split the rows of an epoch."""
        return split_rows(rows, self.consumers, self.batch_size, drop_last=self.drop_last)


class Epoch:
    """One epoch: the rows that its consumers have not taken, as far as they are known.

    Attributes
    ----------
    taken : dict of int
        The rows that each consumer has had.
    shares : list of range
        The rows for each place, if all are counted. One consumer gets rows before.
    ended : bool
        True if no more rows follow; ``error`` says why not.
    added : int
        Number of partitions that are known.
    dropped : bool
        True if no more rows are wanted.
    running : bool
        True while a thread adds partitions.
    waiters : int
        Number of consumers that wait for rows.
    window : DataFrame or None
        The next window to shuffle; None if all have started.
    """

    added: int
    ended: bool

    def __init__(self, places: Mapping[int, int], windows: Iterable[dd.DataFrame] = ()) -> None:
        self._windows = iter(windows)
        self.window = next(self._windows, None)
        self._places = places
        self._waiting: dict[int, deque[ShardRows]] = {i: deque() for i in places}
        self._rows = self.added = self.waiters = 0
        self._begun, self._first_after = time.monotonic(), 0.0
        self.taken: dict[int, int] = dict.fromkeys(places, 0)
        self.shares: list[range] = []
        self.ended = self.dropped = self.running = False
        self.error: BaseException | None = None

    def start(self) -> list[GraphNode]:
        """Start the next window; return a task that fetches each partition."""
        assert self.window is not None
        parts = _persisted(self.window)
        self.window = next(self._windows, None)
        return parts

    @property
    def ahead(self) -> int:
        """Number of partitions that wait for their consumers."""
        return sum(map(len, self._waiting.values()))

    def add(self, part: GraphNode, rows: int) -> None:
        """Add the next partition."""
        start, self._rows = self._rows, self._rows + rows
        for consumer, place in self._places.items():
            share = self.shares[place] if self.shares else range(sys.maxsize)
            first, last = max(share.start, start), min(share.stop, self._rows)
            if first < last:
                self._waiting[consumer].append(RowSpan(part, first - start, last - start))
        self.added += 1
        self._first_after = self._first_after or time.monotonic() - self._begun

    def end(self, spec: EpochSpec) -> None:
        """Record that there are no more partitions."""
        self.shares, self.ended = spec.shares(self._rows), True

    def take(self, consumer: int, first: int) -> ShardRows | None:
        """Take the next rows of a consumer that has had ``first``; None if there are none now."""
        waiting = self._waiting[consumer]
        while waiting:
            span = waiting.popleft()
            self.taken[consumer] += span.stop - span.start
            start = max(span.start, span.stop - (self.taken[consumer] - first))
            if start < span.stop:
                return span._replace(start=start)
        return None

    def rows(self, consumer: int) -> int | None:
        """Return the number of rows of a consumer in all, if it is known."""
        return len(self.shares[self._places[consumer]]) if self.shares else None

    def is_nearly_over(self, consumer: int, first: int) -> bool:
        """Return whether the next epoch has to start, to be ready when this one is consumed."""
        rows = self.rows(consumer)
        if not self.ended or not rows:
            return False
        seconds = time.monotonic() - self._begun - self._first_after
        return seconds * (rows - first) <= MARGIN * self._first_after * first

    def release(self, consumer: int) -> None:
        """Drop rows of a consumer that has gone on."""
        if consumer in self._waiting:
            self._waiting[consumer].clear()


class EpochShuffles(LocalShards):
    """Epochs of a frame."""

    def __init__(self, frame: dd.DataFrame, spec: EpochSpec) -> None:
        super().__init__(spec.consumers)
        self._frame, self._spec = frame, spec
        self._changed = threading.Condition()
        self._epochs: dict[int, Epoch] = {}  # the newest last
        self._reached = [-1] * spec.consumers
        self._npartitions = PER_INPUT * frame.npartitions
        self._per_window = PER_INPUT * (spec.window or frame.npartitions)
        self._lead = self._per_window  # partitions ahead of a consumer
        self._by_window = spec.consumers == 1 and _reads_apart(frame)
        next(self._windows(0))  # raises at once for wrong arguments

    def _windows(self, epoch: int) -> Iterator[dd.DataFrame]:
        """Yield the frame in the order of an epoch, in pieces that are shuffled by themselves."""
        seed = int(np.random.SeedSequence([self._spec.seed, epoch]).generate_state(1, np.uint64)[0])
        window, count = self._spec.window, self._npartitions
        if self._by_window:
            yield from shuffle_windows(self._frame, seed, window, count)
        else:
            yield self._frame.exo.random_shuffle(seed=seed, window=window, npartitions=count)

    def share(self, consumer: int, request: tuple[int, int]) -> NextRows:
        """Wait for the next rows of a consumer; ``request`` is an epoch, and its rows before."""
        number, first = request
        with self._changed:
            self._reached[consumer] = number
            self._release_taken()
            epoch = self._epochs.get(number)
            # it has failed, or the consumer returns to rows that it had before
            if (
                epoch is None
                or epoch.error is not None
                or epoch.taken.get(consumer, sys.maxsize) > first
            ):
                epoch = self._begin(number)
            span = epoch.take(consumer, first)
            waits = span is None and not epoch.ended
            if waits and epoch.added and epoch.added % self._per_window == 0:  # for a window
                self._lead = min(2 * self._lead, self._npartitions)
            while span is None and not epoch.ended:
                self._continue(epoch)
                epoch.waiters += 1
                self._changed.wait()
                epoch.waiters -= 1
                if self._reached[consumer] != number:  # it has left
                    return NextRows()
                if epoch.dropped:
                    epoch = self._epochs.get(number) or self._begin(number)
                span = epoch.take(consumer, first)
            if epoch.error is not None:
                raise epoch.error
            self._continue(epoch)
            following, over = number + 1, span is None or epoch.is_nearly_over(consumer, first)
            if over and following < self._spec.count and following not in self._epochs:
                self._begin(following)
            return NextRows(span, epoch.rows(consumer))

    def leave(self, consumer: int) -> None:
        """Release the rows of a consumer, unless it requests more."""
        super().leave(consumer)
        with self._changed:
            self._reached[consumer] = self._spec.count
            self._release_taken()
            self._changed.notify_all()

    def _begin(self, number: int) -> Epoch:
        """Start an epoch for consumers that have not passed it; the lock is held.

        The places of consumers, and so their windows, change from epoch to epoch.
        """
        count = self._spec.consumers
        reached = enumerate(self._reached)
        places = {i: (i + number) % count for i, last in reached if last <= number}
        self._drop(number)
        epoch = self._epochs[number] = Epoch(places, self._windows(number))
        # one that a consumer waits for stays: else two would drop each other's forever
        unused = [n for n, other in self._epochs.items() if n != number and not other.waiters]
        for oldest in unused[: max(0, len(self._epochs) - MAX_EPOCHS)]:
            self._drop(oldest)
        self._continue(epoch)
        return epoch

    def _drop(self, number: int) -> None:
        epoch = self._epochs.pop(number, None)
        if epoch is not None:
            epoch.dropped = True
            self._changed.notify_all()

    def _continue(self, epoch: Epoch) -> None:
        """Shuffle the next window if it is wanted and no thread is at it; the lock is held."""
        if not epoch.running and self._is_wanted(epoch, 0):
            epoch.running, args = True, (epoch,)
            threading.Thread(
                target=self._run, args=args, name="dask_exo-epoch", daemon=True
            ).start()

    def _is_wanted(self, epoch: Epoch, started: int) -> bool:
        """Return whether to start a window beside ``started`` partitions; the lock is held."""
        return epoch.window is not None and epoch.ahead + started < self._lead

    def _run(self, epoch: Epoch) -> None:
        """Shuffle windows as long as they are wanted; add their partitions as they are finished."""
        started: deque[GraphNode] = deque()
        try:
            while not epoch.dropped:
                with self._changed:
                    wanted = self._is_wanted(epoch, len(started))
                    if not wanted and not started:
                        epoch.running = False  # the consumer that takes rows continues
                        return
                if wanted:
                    started.extend(epoch.start())
                    if self._spec.consumers > 1:
                        epoch.shares = self._spec.shares(sum(map(row_count, started)))
                    continue
                part = started.popleft()
                rows = row_count(part)
                with self._changed:
                    epoch.add(part, rows)
                    if not started and epoch.window is None:
                        epoch.end(self._spec)
                    self._changed.notify_all()
                del part
        except BaseException as error:  # noqa: BLE001  raised where rows are requested
            with self._changed:
                epoch.error, epoch.ended = error, True
                self._changed.notify_all()

    def _release_taken(self) -> None:
        """Release the rows of consumers that have passed them; the lock is held."""
        for number, epoch in list(self._epochs.items()):
            passed = [i for i, last in enumerate(self._reached) if last > number]
            for consumer in passed:
                epoch.release(consumer)
            if len(passed) == self._spec.consumers:
                self._drop(number)


def _reads_apart(frame: dd.DataFrame) -> bool:
    """Return whether no two partitions of a frame depend on the same task."""
    return all(map(_is_apart, frame.expr.walk()))


def _is_apart(expr: Any) -> bool:
    if isinstance(expr, Blockwise):  # all partitions of others read one of a single partition
        return all(each.npartitions == expr.npartitions for each in expr.dependencies())
    if isinstance(expr, FromGraph):  # as of persisted data
        nodes: dict[Any, GraphNode] = convert_legacy_graph(expr.layer)
        return not any(node.dependencies for node in nodes.values())
    return isinstance(expr, IO | SelectPartitions)


def _persisted(frame: dd.DataFrame) -> list[GraphNode]:
    """Persist partitions; return a task that fetches each."""
    persisted = frame.persist()
    graph: dict[Any, GraphNode] = convert_legacy_graph(persisted.__dask_graph__())
    keys = [final_target(graph, key) for key in persisted.__dask_keys__()]
    return [graph[key] if key in graph else future_node(key) for key in keys]


def row_count(part: GraphNode) -> int:
    """Wait for a partition; return the number of its rows."""
    promise = promised(part)
    location = None if promise is None else promise.location()
    if isinstance(location, Remote) and location.rows is not None:
        return location.rows
    return len(part({}))


def split_rows(rows: int, consumers: int, batch_size: int, *, drop_last: bool) -> list[range]:
    """Split the rows of an epoch, so that all consumers get the same number of batches.

    With ``drop_last`` all batches are full, and fewer rows than one batch for each consumer are
    left over. Otherwise the shares differ by at most one row. Where one more row would need a batch
    of its own, fewer rows than there are consumers are left over.

    Examples
    --------
    >>> split_rows(10, 3, 2, drop_last=False)
    [range(0, 4), range(4, 7), range(7, 10)]
    >>> split_rows(10, 3, 2, drop_last=True)
    [range(0, 2), range(2, 4), range(4, 6)]
    >>> split_rows(10, 3, 3, drop_last=False)
    [range(0, 3), range(3, 6), range(6, 9)]
    """
    each, more = divmod(rows, consumers)
    if drop_last:
        each -= each % batch_size
    if each % batch_size == 0:
        more = 0
    ends = [0, *accumulate(each + (i < more) for i in range(consumers))]
    return [range(a, b) for a, b in pairwise(ends)]


def spread(positions: Any, batch_size: int) -> float:
    """Measure how well batches are mixed: their spread relative to that of random ones.

    This is the mean over full batches of the standard deviation of ``positions`` (n,), over that of
    all; a position is the place in the input of a row of the output. About 1 for a full shuffle,
    about the share of the input in a window for a windowed one, and near 0 for rows in their old
    order.

    Examples
    --------
    >>> spread(np.arange(1000), 10) < 0.02
    True
    >>> 0.9 < spread(np.random.default_rng(0).permutation(1000), 10) < 1.0
    True
    """
    positions = np.asarray(positions)
    full = positions[: len(positions) - len(positions) % batch_size].reshape(-1, batch_size)
    return float(full.std(axis=1).mean() / positions.std())
