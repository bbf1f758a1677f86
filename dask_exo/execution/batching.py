"""Choice of the tasks that share a call: small ones, along the graph.

Starting a task takes a hundred times as long as running a trivial one. So a call runs several: a
fair share of the ready ones, and those that become ready by its own outputs, which then need not
leave the process. Durations are learned per group of tasks; the first of each group runs alone,
unless it runs on an actor and this process has computed the same expression before.
"""

from __future__ import annotations

import heapq
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dask_exo.cluster.resources import ResourceRequest
from dask_exo.execution.ready_queue import Entry, ReadyQueue
from dask_exo.planning.plan import Bundle
from dask_exo.shuffle.choose import LARGEST_BATCH

FORGET = 0.1  # by which a bundle counts less for each one that finished after it


@dataclass(slots=True)
class TaskStats:
    """Mean duration and size of the finished bundles of one group, weighted by recency.

    Examples
    --------
    >>> stats = TaskStats()
    >>> for seconds in [1.0] + [0.01] * 50:
    ...     stats.add(seconds, 100)
    >>> stats.duration < 0.02, stats.mean, stats.largest
    (True, 100, 100)
    """

    count: float = 0.0
    seconds: float = 0.0
    nbytes: float = 0.0
    largest: int = 0

    def add(self, seconds: float, nbytes: int) -> None:
        """Add one finished bundle."""
        self.count = self.count * (1 - FORGET) + 1
        self.seconds = self.seconds * (1 - FORGET) + seconds
        self.nbytes = self.nbytes * (1 - FORGET) + nbytes
        self.largest = max(self.largest, nbytes)

    @property
    def duration(self) -> float:
        """Mean seconds of a bundle."""
        return self.seconds / max(self.count, 1)

    @property
    def mean(self) -> int:
        """Mean bytes of an output."""
        return round(self.nbytes / max(self.count, 1))


class KnownStats:
    """Statistics of tasks of earlier computations, whose names are hashes of what they compute.

    Examples
    --------
    >>> known, stats = KnownStats(), TaskStats()
    >>> stats.add(0.01, 100)
    >>> known.remember({"sum-0123456789abcdef0123456789abcdef": stats, "x": stats})
    >>> list(known.recall(["sum-0123456789abcdef0123456789abcdef", "x", "y"]))
    ['sum-0123456789abcdef0123456789abcdef']
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._stats: OrderedDict[str, TaskStats] = OrderedDict()  # the oldest is first
        self._lock = threading.Lock()

    def recall(self, groups: Iterable[str]) -> dict[str, TaskStats]:
        """Return copies of the statistics of those groups that are known."""
        with self._lock:
            return {g: replace(self._stats[g]) for g in groups if g in self._stats}

    def remember(self, stats: Mapping[str, TaskStats]) -> None:
        """Keep copies of the statistics of a computation."""
        with self._lock:
            for group, each in stats.items():
                if _HASHED.search(group):
                    self._stats[group] = replace(each)
                    self._stats.move_to_end(group)
            while len(self._stats) > self._most:
                self._stats.popitem(last=False)


_HASHED = re.compile(r"-[0-9a-f]{32}$")


@dataclass(slots=True)
class CallRoom:
    """Room for more bundles in a call: seconds, bytes of outputs and of inputs, ready bundles.

    Ready bundles could also run in parallel to this call, so it takes a fair share of them.
    """

    seconds: float
    nbytes: int
    input_bytes: int
    ready: int

    def take(self, stats: TaskStats, pending: int, stored: int, *, inner: bool) -> bool:
        """Subtract one more bundle if it fits; return whether it does.

        Its inputs in the store have ``stored`` bytes, ``pending`` of them blocks that it assembles;
        ``inner``: it reads outputs of this call.
        """
        nbytes = max(stats.mean, pending)
        fits = nbytes <= self.nbytes and stored <= self.input_bytes
        if stats.duration > self.seconds or not fits or not (inner or self.ready > 0):
            return False
        self.seconds -= stats.duration
        self.nbytes -= nbytes
        self.input_bytes -= stored
        self.ready -= not inner
        return True


def gather(  # noqa: PLR0913  what limits a call
    queue: ReadyQueue,
    stats: Mapping[str, TaskStats],
    pool: ResourceRequest | None = None,
    *,
    slots: int,
    target: float,
    budget: int,
    follow: bool,
) -> list[Bundle]:
    """Take the next bundle from the queue, and all that should share a call with it, in order.

    ``stats`` has groups with finished bundles. A call should last ``target`` seconds, and each of
    the ``slots`` for tasks should get at least two calls, unless it is the only actor. In all slots
    together, inputs take at most half of the ``budget`` of bytes, and outputs a quarter. With
    ``follow``, bundles join that become ready by outputs of the call itself.
    """
    first = queue.pop(pool)
    batch, group_stats = [first], stats.get(first.group)
    if group_stats is None:
        return batch
    share = -(-(queue.ready(pool) + 1) // (2 * slots)) - 1
    if pool is not None and slots == 1:  # no other actor could take them
        share = queue.ready(pool)
    pending, stored = queue.input_bytes(first)
    half = budget // (2 * max(slots, 1))
    room = CallRoom(
        seconds=target - group_stats.duration,
        nbytes=min(LARGEST_BATCH, half // 2) - max(group_stats.mean, pending),
        input_bytes=half - stored,
        ready=share,
    )
    missing: dict[int, int] = {}
    ahead: list[Entry] = []
    while True:
        if follow:
            for entry in queue.newly_ready(batch[-1].key, missing):
                heapq.heappush(ahead, entry)
        bundle = _next(queue, stats, room, ahead, first)
        if bundle is None:
            return batch
        batch.append(bundle)


def _next(
    queue: ReadyQueue,
    stats: Mapping[str, TaskStats],
    room: CallRoom,
    ahead: list[Entry],
    first: Bundle,
) -> Bundle | None:
    """Take one more bundle: of those that follow, else of the ready ones."""
    pool = first.options.pool
    while ahead or queue.first(pool) is not None:
        inner = bool(ahead)
        bundle = heapq.heappop(ahead)[-1] if inner else queue.first(pool)
        assert bundle is not None
        group_stats = stats.get(bundle.group)
        compatible = bundle.options == first.options and (inner or not bundle.getitem)
        if (
            group_stats is not None
            and compatible
            and room.take(group_stats, *queue.input_bytes(bundle), inner=inner)
        ):
            if inner:
                queue.start(bundle)
            else:
                queue.pop(pool)
            return bundle
        if not inner:
            return None
    return None
