"""The shuffles of all epochs, in the driver, and the rows of the consumers.

An epoch starts when its first consumer requests it, or so long before the end of the one before
that it is ready then. A consumer takes the refs of its rows, a partition at a time, as soon as they
are known. Rows that a slower consumer has not taken are kept for the last few epochs, and
recomputed later, so no consumer waits for another one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import dask.dataframe as dd
import numpy as np

from dask_exo.dask_adapter import GraphNode, convert_legacy_graph
from dask_exo.execution.persisted import Remote, promised
from dask_exo.partitions.batching import RowSpan
from dask_exo.pipeline.shard_server import LocalShards, NextRows, ShardRows
from dask_exo.planning.graph_passes import final_target
from dask_exo.planning.normalize import future_node
from dask_exo.validation import number_from

MAX_EPOCHS = 3  # a consumer's current one, the next one, and that of a slower consumer
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
    dropped : bool
        True if no more rows are wanted.
    """

    def __init__(self, places: Mapping[int, int]) -> None:
        self._places = places
        self._waiting: dict[int, deque[ShardRows]] = {i: deque() for i in places}
        self._rows = 0
        self._begun, self._first_after = time.monotonic(), 0.0
        self.taken = dict.fromkeys(places, 0)
        self.shares: list[range] = []
        self.ended = self.dropped = False
        self.error: BaseException | None = None

    def add(self, part: GraphNode, rows: int) -> None:
        """Add the next partition."""
        start, self._rows = self._rows, self._rows + rows
        for consumer, place in self._places.items():
            share = self.shares[place] if self.shares else range(sys.maxsize)
            first, last = max(share.start, start), min(share.stop, self._rows)
            if first < last:
                self._waiting[consumer].append(RowSpan(part, first - start, last - start))
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
        self.shuffled(0)  # raises at once for wrong arguments

    def shuffled(self, epoch: int) -> dd.DataFrame:
        """Return the frame in the order of an epoch.

        Partitions are half as long as those of the input, since a consumer prefetches the next one.
        """
        seed = np.random.SeedSequence([self._spec.seed, epoch]).generate_state(1, np.uint64)[0]
        return self._frame.exo.random_shuffle(
            seed=int(seed), window=self._spec.window, npartitions=2 * self._frame.npartitions
        )

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
            while (span := epoch.take(consumer, first)) is None and not epoch.ended:
                self._changed.wait()
                if self._reached[consumer] != number:  # it has left
                    return NextRows()
                if epoch.dropped:
                    epoch = self._epochs.get(number) or self._begin(number)
            if epoch.error is not None:
                raise epoch.error
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
        epoch = Epoch({i: (i + number) % count for i, last in reached if last <= number})
        self._drop(number)
        self._epochs[number] = epoch
        while len(self._epochs) > MAX_EPOCHS:
            self._drop(next(iter(self._epochs)))
        args = (epoch, number)
        threading.Thread(target=self._run, args=args, name="dask_exo-epoch", daemon=True).start()
        return epoch

    def _drop(self, number: int) -> None:
        epoch = self._epochs.pop(number, None)
        if epoch is not None:
            epoch.dropped = True
            self._changed.notify_all()

    def _run(self, epoch: Epoch, number: int) -> None:
        """Shuffle an epoch; add its partitions as they are finished."""
        try:
            parts = _persisted(self.shuffled(number))[::-1]
            counts = list(map(row_count, parts)) if self._spec.consumers > 1 else []
            if counts:
                epoch.shares = self._spec.shares(sum(counts))
            while parts and not epoch.dropped:
                part = parts.pop()
                rows = counts.pop() if counts else row_count(part)
                with self._changed:
                    epoch.add(part, rows)
                    if not parts:
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
