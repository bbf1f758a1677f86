"""The actor that holds the state of locks, events, queues and variables.

All calls run in one event loop: a call runs alone until it waits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

LOOK = 1.0  # seconds between two checks for expired leases, while a caller waits

SyncRecord = tuple[Any, ...]
"""A value, as its sender has serialized it."""


class _Holders:
    """Leases of a semaphore."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.leases: dict[str, float] = {}
        self.changed = asyncio.Condition()
        self.waiting = 0

    def free(self, now: float) -> bool:
        """Return whether a lease is free, after removing expired ones."""
        self.leases = {lease: end for lease, end in self.leases.items() if end > now}
        return len(self.leases) < self.limit


class SyncService:
    """State of all primitives by name.

    A ``timeout`` is in seconds; None waits forever.
    """

    lease = 30.0  # seconds after which a lease ends unless it is renewed

    def __init__(self) -> None:
        self._semaphores: dict[str, _Holders] = {}
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._queues: dict[str, asyncio.Queue[SyncRecord]] = {}
        self._variables: dict[str, SyncRecord] = {}
        self._assigned: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def acquire(self, name: str, limit: int, lease: str, timeout: float | None) -> bool:
        """Wait for a lease; return whether there was one.

        A semaphore has the same limit in all processes, else `ValueError` is raised.
        """
        holders = self._semaphores.setdefault(name, _Holders(limit))
        if holders.limit != limit:
            raise ValueError(
                f"semaphore {name!r} has max_leases={holders.limit} elsewhere, not {limit}"
            )
        clock = asyncio.get_running_loop()
        end = None if timeout is None else clock.time() + timeout
        holders.waiting += 1
        try:
            async with holders.changed:
                while not holders.free(clock.time()):
                    left = LOOK if end is None else min(LOOK, end - clock.time())
                    if left <= 0:
                        return False
                    await _within(left, holders.changed.wait())
                holders.leases[lease] = clock.time() + self.lease
                return True
        finally:
            holders.waiting -= 1
            self._tidy(name)

    async def release(self, name: str, lease: str) -> bool:
        """End a lease; return whether there was such a lease."""
        holders = self._semaphores.get(name)
        if holders is None:
            return False
        async with holders.changed:
            existed = holders.leases.pop(lease, None) is not None
            holders.changed.notify()
        self._tidy(name)
        return existed

    async def leases(self, name: str) -> int:
        """Return the number of leases."""
        if name not in self._semaphores:
            return 0
        self._semaphores[name].free(asyncio.get_running_loop().time())
        return len(self._semaphores[name].leases)

    async def refresh(self, leases: Iterable[tuple[str, str]]) -> None:
        """Renew leases whose holders are alive."""
        end = asyncio.get_running_loop().time() + self.lease
        for name, lease in leases:
            if name in self._semaphores and lease in self._semaphores[name].leases:
                self._semaphores[name].leases[lease] = end

    async def close_semaphore(self, name: str) -> None:
        """End all leases."""
        holders = self._semaphores.get(name)
        if holders is not None:
            async with holders.changed:
                holders.leases.clear()
                holders.changed.notify_all()
            self._tidy(name)

    def _tidy(self, name: str) -> None:
        holders = self._semaphores.get(name)
        if holders is not None and not holders.leases and not holders.waiting:
            del self._semaphores[name]

    async def event_wait(self, name: str, timeout: float | None) -> bool:
        """Wait until an event is set; return whether it is."""
        event = self._events[name]
        return event.is_set() or await _within(timeout, event.wait())

    async def event(self, name: str, method: str) -> bool | None:
        """Call a method of an event that does not wait: set, clear or is_set."""
        result: bool | None = getattr(self._events[name], method)()
        return result

    def _queue(self, name: str, maxsize: int) -> asyncio.Queue[SyncRecord]:
        return self._queues.setdefault(name, asyncio.Queue(maxsize))

    async def queue_put(
        self, name: str, maxsize: int, record: SyncRecord, timeout: float | None
    ) -> bool:
        """Append a record; return whether there was room in time."""
        queue = self._queue(name, maxsize)
        if not queue.full():
            queue.put_nowait(record)
            return True
        return await _within(timeout, queue.put(record))

    async def queue_get(self, name: str, maxsize: int, timeout: float | None) -> list[SyncRecord]:
        """Take the first record; return an empty list if there is none in time."""
        records: list[SyncRecord] = []
        queue = self._queue(name, maxsize)
        if not queue.empty():
            return [queue.get_nowait()]

        async def get() -> None:
            records.append(await queue.get())

        await _within(timeout, get())
        return records

    async def queue_drain(self, name: str, maxsize: int) -> list[SyncRecord]:
        """Take all records."""
        queue = self._queue(name, maxsize)
        return [queue.get_nowait() for _ in range(queue.qsize())]

    async def queue_size(self, name: str) -> int:
        """Return the number of values."""
        return self._queues[name].qsize() if name in self._queues else 0

    async def queue_close(self, name: str) -> None:
        """Forget a queue."""
        self._queues.pop(name, None)

    async def variable_set(self, name: str, record: SyncRecord) -> None:
        """Assign a record."""
        self._variables[name] = record
        self._assigned[name].set()

    async def variable_get(self, name: str, timeout: float | None) -> list[SyncRecord]:
        """Wait until a record is assigned; return an empty list if there is none in time."""
        if name not in self._variables:
            await _within(timeout, self._assigned[name].wait())
        return [self._variables[name]] if name in self._variables else []

    async def variable_delete(self, name: str) -> None:
        """Forget a record."""
        self._variables.pop(name, None)
        self._assigned[name].clear()


async def _within(timeout: float | None, awaitable: Any) -> bool:
    """Wait; return whether the awaitable ended in time."""
    try:
        await asyncio.wait_for(awaitable, timeout)
    except TimeoutError:
        return False
    return True
