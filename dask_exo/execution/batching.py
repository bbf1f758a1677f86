"""Which tasks share a call: as many small ones as are worth it, along the graph.

To start a task costs a hundred times what a trivial one does. So a call takes several: of those
that are ready, a fair share; and whatever becomes ready by what the call itself makes, so that
those values need not leave it. How long tasks take is learned for each group, of which the first
runs by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from dask_exo.execution.ready_queue import Entry, ReadyQueue
from dask_exo.execution.requests import ResourceRequest
from dask_exo.planning.plan import Bundle
from dask_exo.shuffle.choose import LARGEST_BATCH

FORGET = 0.1  # how much less a bundle counts for each one that has finished after it


@dataclass(slots=True)
class TaskStats:
    """What the finished bundles of one group have shown, the last ones most.

    Examples
    --------
    >>> known = TaskStats()
    >>> for seconds in [1.0] + [0.01] * 50:
    ...     known.add(seconds, 100)
    >>> known.duration < 0.02, known.mean, known.largest
    (True, 100, 100)
    """

    count: float = 0.0
    seconds: float = 0.0
    nbytes: float = 0.0
    largest: int = 0

    def add(self, seconds: float, nbytes: int) -> None:
        """Take note of one more."""
        self.count = self.count * (1 - FORGET) + 1
        self.seconds = self.seconds * (1 - FORGET) + seconds
        self.nbytes = self.nbytes * (1 - FORGET) + nbytes
        self.largest = max(self.largest, nbytes)

    @property
    def duration(self) -> float:
        """Seconds that one takes."""
        return self.seconds / max(self.count, 1)

    @property
    def mean(self) -> int:
        """Bytes of a value."""
        return round(self.nbytes / max(self.count, 1))


@dataclass(slots=True)
class BatchBudget:
    """What may still join a call.

    Attributes
    ----------
    seconds : float
        Of work.
    nbytes : int
        Of values, or of what is put together for them.
    ready : int
        Bundles that could also run elsewhere, side by side with this call.
    """

    seconds: float
    nbytes: int
    ready: int

    def fits(self, known: TaskStats, pending_bytes: int, *, inner: bool) -> bool:
        """Whether one more of a group would fit; ``inner`` if it can run nowhere else.

        It puts together ``pending_bytes`` bytes of shuffled blocks.
        """
        fair = inner or self.ready > 0
        return (
            fair
            and known.duration <= self.seconds
            and max(known.mean, pending_bytes) <= self.nbytes
        )

    def take(self, known: TaskStats, pending_bytes: int, *, inner: bool) -> None:
        """Fill some of it."""
        self.seconds -= known.duration
        self.nbytes -= max(known.mean, pending_bytes)
        self.ready -= not inner


def gather(
    queue: ReadyQueue,
    stats: Mapping[str, TaskStats],
    pool: ResourceRequest | None = None,
    *,
    slots: int,
    target: float,
    follow: bool,
) -> list[Bundle]:
    """Take out the bundle to run next, and all that should share a call with it.

    Parameters
    ----------
    queue : ReadyQueue
    stats : mapping
        Of the groups that have any.
    pool : ResourceRequest, optional
        The workers that it is for.
    slots : int
        Tasks that run side by side: each slot shall get two calls at least.
    target : float
        Seconds that a call shall last.
    follow : bool
        Whether to go on with what becomes ready by the values of the call itself.

    Returns
    -------
    list of Bundle
        In an order in which they can run.
    """
    first = queue.pop(pool)
    batch, known = [first], stats.get(first.group)
    if known is None:
        return batch
    room = BatchBudget(target, LARGEST_BATCH, -(-(queue.ready(pool) + 1) // (2 * slots)))
    room.take(known, queue.pending_bytes(first), inner=False)
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
    room: BatchBudget,
    ahead: list[Entry],
    first: Bundle,
) -> Bundle | None:
    """Take out one more: of those that follow, else of those that are ready."""
    pool = first.options.pool
    while ahead or queue.first(pool) is not None:
        inner = bool(ahead)
        bundle = heapq.heappop(ahead)[-1] if inner else queue.first(pool)
        assert bundle is not None
        known = stats.get(bundle.group)
        alike = bundle.options == first.options and (inner or not bundle.getitem)
        if known is not None and alike:
            pending_bytes = queue.pending_bytes(bundle)
            if room.fits(known, pending_bytes, inner=inner):
                room.take(known, pending_bytes, inner=inner)
                if inner:
                    queue.start(bundle)
                else:
                    queue.pop(pool)
                return bundle
        if not inner:
            return None
    return None
