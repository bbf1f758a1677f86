"""The shuffles of all epochs, in the driver, and the shares of the consumers.

An epoch starts when its first consumer requests it, or while the one before is consumed. A
consumer takes the refs of its share. Shares that a slower consumer has not taken are kept for the
last few epochs, and recomputed later, so no consumer waits for another one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import dask.dataframe as dd
import numpy as np

from dask_exo.dask_adapter import GraphNode, convert_legacy_graph
from dask_exo.partitions.batching import RowSpan
from dask_exo.pipeline.shard_server import LocalShards, ShardRows
from dask_exo.planning.graph_passes import final_target
from dask_exo.planning.normalize import future_node
from dask_exo.validation import number_from

MAX_EPOCHS = 3  # a consumer's current one, the next one, and that of a slower consumer

Part = TypeVar("Part")
Rows = dict[int, list[ShardRows]]
"""The rows of each consumer that has not taken them yet."""


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


class EpochShuffles(LocalShards):
    """Epochs of a frame."""

    def __init__(self, frame: dd.DataFrame, spec: EpochSpec) -> None:
        super().__init__(spec.consumers)
        self._frame, self._spec = frame, spec
        self._lock = threading.Lock()
        self._epochs: dict[int, Future[Rows]] = {}  # the newest last
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

    def share(self, consumer: int, request: int) -> list[ShardRows]:
        """Wait for the rows of a consumer in epoch ``request``, and start the next epoch."""
        epoch, spans = request, None
        while spans is None:
            with self._lock:
                self._reached[consumer] = epoch - 1
                rows = self._epochs.get(epoch) or self._begin(epoch)
            try:
                shares = rows.result()
            except BaseException:
                self._forget(epoch, rows)
                raise
            with self._lock:
                spans = shares.pop(consumer, None)
            if spans is None:  # the consumer returns to an epoch that it had before
                self._forget(epoch, rows)
        with self._lock:
            self._reached[consumer] = epoch
            self._release_taken()
            if epoch + 1 < self._spec.count and epoch + 1 not in self._epochs:
                self._begin(epoch + 1)
        return spans

    def leave(self, consumer: int) -> None:
        """Release the rows of a consumer, unless it requests more."""
        super().leave(consumer)
        with self._lock:
            self._reached[consumer] = self._spec.count
            self._release_taken()

    def _begin(self, epoch: int) -> Future[Rows]:
        """Start an epoch for consumers that have not reached it; the lock is held.

        The places of consumers, and so their windows, change from epoch to epoch.
        """
        rows: Future[Rows] = Future()
        places = {
            i: (i + epoch) % self._spec.consumers
            for i, reached in enumerate(self._reached)
            if reached < epoch
        }
        self._epochs.pop(epoch, None)
        self._epochs[epoch] = rows
        while len(self._epochs) > MAX_EPOCHS:
            del self._epochs[next(iter(self._epochs))]
        args = (rows, epoch, places)
        threading.Thread(target=self._run, args=args, name="dask_exo-epoch", daemon=True).start()
        return rows

    def _run(self, rows: Future[Rows], epoch: int, places: dict[int, int]) -> None:
        try:
            rows.set_result(self._shares(epoch, places))
        except BaseException as error:  # noqa: BLE001  raised where rows are requested
            rows.set_exception(error)

    def _shares(self, epoch: int, places: dict[int, int]) -> Rows:
        """Shuffle an epoch, and divide its rows among consumers, given the place of each."""
        nodes, lengths = _persisted(self.shuffled(epoch))
        spec = self._spec
        shares = split_rows(sum(lengths), spec.consumers, spec.batch_size, drop_last=spec.drop_last)
        return {
            consumer: [
                RowSpan(nodes[span.part], span.start, span.stop)
                for span in locate_rows(shares[place], lengths)
            ]
            for consumer, place in places.items()
        }

    def _forget(self, epoch: int, rows: Future[Rows]) -> None:
        with self._lock:
            if self._epochs.get(epoch) is rows:
                del self._epochs[epoch]

    def _release_taken(self) -> None:
        """Release rows that all consumers have; the lock is held."""
        for epoch, rows in list(self._epochs.items()):
            if rows.done() and rows.exception() is None:
                shares = rows.result()
                for consumer in [i for i in shares if self._reached[i] >= epoch]:
                    del shares[consumer]
            if all(reached >= epoch for reached in self._reached):
                del self._epochs[epoch]


def _persisted(frame: dd.DataFrame) -> tuple[list[GraphNode], list[int]]:
    """Persist partitions; return a task that fetches each, and the lengths."""
    persisted = frame.persist()
    graph: dict[Any, GraphNode] = convert_legacy_graph(persisted.__dask_graph__())
    lengths = persisted.map_partitions(len, meta=(None, "int64")).compute()
    keys = [final_target(graph, key) for key in persisted.__dask_keys__()]
    nodes = [graph[key] if key in graph else future_node(key) for key in keys]
    return nodes, [int(n) for n in lengths]


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


def locate_rows(rows: range, lengths: Sequence[int]) -> list[RowSpan[int]]:
    """Locate rows of an epoch in its partitions, given their lengths."""
    spans, first = [], 0
    for part, length in enumerate(lengths):
        start, stop = max(rows.start - first, 0), min(rows.stop - first, length)
        if start < stop:
            spans.append(RowSpan(part, start, stop))
        first += length
    return spans


def skip_rows(spans: Sequence[RowSpan[Part]], rows: int) -> list[RowSpan[Part]]:
    """Return spans without their first ``rows``."""
    remaining = []
    for span in spans:
        skipped = min(rows, span.stop - span.start)
        rows -= skipped
        if span.start + skipped < span.stop:
            remaining.append(span._replace(start=span.start + skipped))
    return remaining


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
