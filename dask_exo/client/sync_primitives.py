"""Locks, events, queues and variables that tasks and driver share by name.

As in `distributed`, objects with the same name share their state in all processes, and can be
pickled. The state is in one actor, `SyncService`, until the program ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import weakref
from collections import deque
from functools import cache
from typing import Any, TypeVar

import cloudpickle
from dask.utils import parse_timedelta

from dask_exo.client.future import Future, rebuild
from dask_exo.client.sync_actor import SyncService
from dask_exo.cluster import on_ray
from dask_exo.execution.persisted import Promise, Remote

Self = TypeVar("Self", bound="Semaphore")
REFRESH = SyncService.lease / 6  # seconds between two signs of life


@cache
def _service() -> on_ray.Service:
    return on_ray.Service("dask_exo.locks", SyncService)


class NamedPrimitive:
    """Base of primitives whose name, by default a unique one, identifies them in all processes.

    A ``client`` is ignored: there is only one cluster.
    """

    def __init__(self, name: str | None = None, client: object = None) -> None:
        self.name = name or f"{type(self).__name__.lower()}-{uuid.uuid4().hex}"
        if on_ray.running():
            _service().start()  # an actor that the driver starts lives as long as the driver

    def _call(self, method: str, *args: Any) -> Any:
        return _service().call(method, self.name, *args)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    def __repr__(self) -> str:
        """Return the kind and the name."""
        return f"<{type(self).__name__}: {self.name}>"


class Semaphore(NamedPrimitive):
    """At most ``max_leases`` holders at a time, in all processes together.

    A lease ends when its holder releases it, or half a minute after the holder's process has died.

    Examples
    --------
    >>> semaphore = Semaphore(max_leases=2, name="database")
    >>> with semaphore:  # doctest: +SKIP
    ...     connect()
    """

    def __init__(self, max_leases: int = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.max_leases = max_leases
        self._leases: deque[str] = deque()

    def acquire(self, timeout: float | str | None = None) -> bool:
        """Wait for a lease, for ``timeout`` seconds (or ``"200ms"``); return whether it came."""
        return self._acquire(parse_timedelta(timeout))

    def _acquire(self, seconds: float | None) -> bool:
        lease = uuid.uuid4().hex
        self._leases.append(lease)
        _renewal.start(self)
        try:
            granted = self._call("acquire", self.max_leases, lease, seconds)
        except BaseException:
            self._leases.remove(lease)
            with contextlib.suppress(Exception):  # otherwise it expires
                self._call("release", lease)  # it may have been granted in the meantime
            raise
        if not granted:
            self._leases.remove(lease)
        return bool(granted)

    def release(self) -> bool:
        """Return the oldest lease of this object; raise `RuntimeError` if it has none."""
        if not self._leases:
            raise RuntimeError(f"{self!r} is released more often than acquired")
        return bool(self._call("release", self._leases.popleft()))

    def get_value(self) -> int:
        """Return the number of leases held by all processes."""
        return int(self._call("leases"))

    def close(self) -> None:
        """Delete the semaphore and all its leases."""
        self._leases.clear()
        self._call("close_semaphore")

    def held(self) -> list[tuple[str, str]]:
        """Return name and id of each lease of this object."""
        return [(self.name, lease) for lease in list(self._leases)]

    def __enter__(self: Self) -> Self:
        self._acquire(None)
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.max_leases, self.name)


class Lock(Semaphore):
    """At most one holder at a time, in all processes together. See `NamedPrimitive`.

    Examples
    --------
    >>> with Lock("out.h5"):  # doctest: +SKIP
    ...     write()
    """

    def __init__(self, name: str | None = None, client: object = None) -> None:
        super().__init__(1, name)

    def acquire(  # type: ignore[override]
        self, blocking: bool = True, timeout: float | str | None = None
    ) -> bool:
        """Wait for the lock, if ``blocking``; return whether it was acquired in time.

        ``timeout`` is a number of seconds, or as in ``"200ms"``.
        """
        if not blocking and timeout is not None:
            raise ValueError("a lock that is acquired with blocking=False takes no timeout")
        return self._acquire(parse_timedelta(timeout) if blocking else 0)

    def locked(self) -> bool:
        """Return whether a process holds the lock."""
        return self.get_value() > 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


class _LeaseRenewal:
    """A thread that renews the leases of this process."""

    def __init__(self) -> None:
        self._holders: weakref.WeakSet[Semaphore] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, holder: Semaphore) -> None:
        """Renew the leases of one more holder."""
        with self._lock:
            self._holders.add(holder)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._main, name="dask_exo-leases", daemon=True
                )
                self._thread.start()

    def _main(self) -> None:
        while True:
            time.sleep(REFRESH)
            with self._lock:
                leases = [lease for holder in list(self._holders) for lease in holder.held()]
                if not leases or not on_ray.running():
                    self._thread = None
                    return
            with contextlib.suppress(Exception):  # retried next time; otherwise the lease ends
                _service().call("refresh", leases, timeout=REFRESH)


_renewal = _LeaseRenewal()


class Event(NamedPrimitive):
    """A flag, false at first. See `NamedPrimitive`."""

    def wait(self, timeout: float | str | None = None) -> bool:
        """Wait until it is set; return whether it was set in time."""
        return bool(self._call("event_wait", parse_timedelta(timeout)))

    def set(self) -> None:
        """Set it, and wake all waiting processes."""
        self._call("event", "set")

    def clear(self) -> None:
        """Reset it."""
        self._call("event", "clear")

    def is_set(self) -> bool:
        """Return whether it is set."""
        return bool(self._call("event", "is_set"))


class Queue(NamedPrimitive):
    """First in, first out; of futures and small values. See `NamedPrimitive`.

    `put` waits while there are ``maxsize`` values; 0 is no limit.
    """

    def __init__(self, name: str | None = None, client: object = None, maxsize: int = 0) -> None:
        super().__init__(name)
        self.maxsize = maxsize

    def put(self, value: Any, timeout: float | str | None = None) -> None:
        """Append a value, a future, or a list of futures; raise `TimeoutError` if it stays full."""
        seconds = parse_timedelta(timeout)
        if not self._call("queue_put", self.maxsize, _record(value), seconds):
            raise TimeoutError(f"{self!r} has been full ({self.maxsize}) for {seconds} s")

    def get(self, timeout: float | str | None = None, batch: bool | int = False) -> Any:
        """Take the oldest value; a list of all with ``batch=True``, of so many with a number.

        Raises
        ------
        TimeoutError
            The queue has been empty for ``timeout``.
        NotImplementedError
            A number of values, and a timeout: `distributed` does not have that either.
        """
        seconds = parse_timedelta(timeout)
        if batch is True:
            return [_value(r) for r in self._call("queue_drain", self.maxsize)]
        if batch is not False:
            if seconds is not None:
                raise NotImplementedError("a queue takes a number as batch only without a timeout")
            return [self.get() for _ in range(batch)]
        records = self._call("queue_get", self.maxsize, seconds)
        if not records:
            raise TimeoutError(f"{self!r} has been empty for {seconds} s")
        return _value(records[0])

    def qsize(self) -> int:
        """Return the number of values."""
        return int(self._call("queue_size"))

    def close(self) -> None:
        """Delete the queue and its values."""
        self._call("queue_close")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, None, self.maxsize)


class Variable(NamedPrimitive):
    """One value, or one future. See `NamedPrimitive`."""

    def set(self, value: Any, timeout: float | str | None = None) -> None:
        """Store a value, a future, or a list of futures."""
        self._call("variable_set", _record(value))

    def get(self, timeout: float | str | None = None) -> Any:
        """Wait until it has a value; return it, or raise `TimeoutError`."""
        seconds = parse_timedelta(timeout)
        records = self._call("variable_get", seconds)
        if not records:
            raise TimeoutError(f"{self!r} has had no value for {seconds} s")
        return _value(records[0])

    def delete(self) -> None:
        """Delete the value."""
        self._call("variable_delete")


def _record(value: Any) -> tuple[Any, ...]:
    """Return the form in which the service stores a value. Refs in it stay alive."""
    if isinstance(value, Future) and isinstance(value.promise.location(), Remote):
        return value.key, value.promise.ref, value.report
    if isinstance(value, list) and value and all(isinstance(item, Future) for item in value):
        return tuple(map(_record, value)), len(value)
    return (cloudpickle.dumps(value),)


def _value(record: tuple[Any, ...]) -> Any:
    if len(record) == 1:
        return cloudpickle.loads(record[0])
    if len(record) == 2:
        return list(map(_value, record[0]))
    key, ref, report = record
    return rebuild(key, Promise(on_ray.RayFutures(), Remote(ref, 0)), report)
