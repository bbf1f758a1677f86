"""Queues and leases that consumers in other processes share with the driver, by name.

Their state is in one actor, `MailService`, until the program ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import cloudpickle

from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Ref

LEASE = 30.0  # seconds after which a lease ends unless it is renewed
REFRESH = LEASE / 6  # seconds between two renewals

Letter = tuple[Any, ...]
"""A pickled value, and refs."""


class MailService:
    """Queues and leases by name. All calls run in one event loop: each runs alone until it waits.

    A ``timeout`` is in seconds; None waits forever.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[str, asyncio.Queue[Letter]] = defaultdict(asyncio.Queue)
        self._leases: dict[tuple[str, str], float] = {}

    async def put(self, name: str, letter: Letter) -> None:
        """Append a letter."""
        self._queues[name].put_nowait(letter)

    async def get(self, name: str, timeout: float | None) -> list[Letter]:
        """Take the first letter; return an empty list if there is none in time."""
        try:
            return [await asyncio.wait_for(self._queues[name].get(), timeout)]
        except TimeoutError:
            return []

    async def size(self, name: str) -> int:
        """Return the number of letters."""
        return self._queues[name].qsize() if name in self._queues else 0

    async def close(self, name: str) -> None:
        """Forget a queue."""
        self._queues.pop(name, None)

    async def renew(self, leases: Iterable[tuple[str, str]]) -> None:
        """Begin leases, or renew them."""
        self._leases.update(dict.fromkeys(leases, time.monotonic() + LEASE))

    async def end(self, name: str, lease: str) -> None:
        """End a lease."""
        self._leases.pop((name, lease), None)

    async def leases(self, name: str) -> int:
        """Return the number of leases that have not expired."""
        now = time.monotonic()
        self._leases = {lease: end for lease, end in self._leases.items() if end > now}
        return sum(lease[0] == name for lease in self._leases)


@cache
def _service() -> on_ray.Service:
    return on_ray.Service("dask_exo.mail", MailService)


class Queue:
    """First in, first out; of values and refs. The name, by default a unique one, identifies it.

    Raises
    ------
    ClusterError
        This process is not connected to Ray.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name: str = name or uuid.uuid4().hex
        if on_ray.running():
            _service().start()  # an actor that the driver starts lives as long as the driver

    def put(self, value: Any, refs: Sequence[Ref] = ()) -> None:
        """Append a value, and refs."""
        _service().call("put", self.name, (cloudpickle.dumps(value), *refs))

    def get(self, timeout: float | None = None) -> tuple[Any, list[Ref]]:
        """Take the oldest value and its refs; raise `TimeoutError` if it remains empty."""
        letters = _service().call("get", self.name, timeout)
        if not letters:
            raise TimeoutError(f"queue {self.name} has been empty for {timeout} s")
        value, *refs = letters[0]
        return cloudpickle.loads(value), refs

    def qsize(self) -> int:
        """Return the number of values."""
        return int(_service().call("size", self.name))

    def close(self) -> None:
        """Delete the queue and its values."""
        _service().call("close", self.name)


class Lease:
    """A sign that this process is alive, which it renews until `release`; ``name`` is shared."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self._id = uuid.uuid4().hex

    def acquire(self) -> None:
        """Begin the lease."""
        _service().call("renew", [self.key])
        _renewal.start(self)

    @property
    def key(self) -> tuple[str, str]:
        """Name and identity of the lease."""
        return self.name, self._id

    def release(self) -> None:
        """End the lease."""
        _renewal.stop(self)
        _service().call("end", *self.key)

    def count(self) -> int:
        """Return the number of leases with this name, of all processes."""
        return int(_service().call("leases", self.name))


class _Renewal:
    """A thread that renews the leases of this process."""

    def __init__(self) -> None:
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, lease: Lease) -> None:
        """Renew one more lease."""
        with self._lock:
            self._leases.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._main, name="dask_exo-leases", daemon=True
                )
                self._thread.start()

    def stop(self, lease: Lease) -> None:
        """Renew a lease no more."""
        with self._lock:
            self._leases.discard(lease)

    def _main(self) -> None:
        while True:
            time.sleep(REFRESH)
            with self._lock:
                leases = [lease.key for lease in self._leases]
                if not leases or not on_ray.running():
                    self._thread = None
                    return
            with contextlib.suppress(Exception):  # retried next time; otherwise the lease ends
                _service().call("renew", leases, timeout=REFRESH)


_renewal = _Renewal()
