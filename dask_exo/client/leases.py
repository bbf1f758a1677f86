"""Locks and semaphores: leases that end with their holder."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import weakref
from collections import deque
from typing import Any, TypeVar

from dask.utils import parse_timedelta

from dask_exo.client.sync_actor import SyncService
from dask_exo.cluster import on_ray

Self = TypeVar("Self", bound="_Leases")
REFRESH = SyncService.lease / 6  # seconds between two signs of life

_service = on_ray.service("dask_exo.locks", SyncService)


class NamedPrimitive:
    """Base of primitives whose name identifies them in all processes."""

    def __init__(self, name: str | None) -> None:
        self.name = name or f"{type(self).__name__.lower()}-{uuid.uuid4().hex}"
        if on_ray.running():
            _service.start()  # what the driver has started, lives as long as the driver

    def _call(self, method: str, *args: Any) -> Any:
        return _service.call(method, self.name, *args)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)

    def __repr__(self) -> str:
        """Kind and name."""
        return f"<{type(self).__name__}: {self.name}>"


class _Leases(NamedPrimitive):
    """The leases of one holder."""

    def __init__(self, max_leases: int, name: str | None) -> None:
        super().__init__(name)
        self.max_leases = max_leases
        self._leases: deque[str] = deque()

    def _acquire(self, seconds: float | None) -> bool:
        lease = uuid.uuid4().hex
        self._leases.append(lease)
        _refreshing.start(self)
        try:
            got = self._call("acquire", self.max_leases, lease, seconds)
        except BaseException:
            self._leases.remove(lease)
            with contextlib.suppress(Exception):  # else it ends by itself
                self._call("release", lease)  # it may have been granted in the meantime
            raise
        if not got:
            self._leases.remove(lease)
        return bool(got)

    def release(self) -> bool:
        """Give the oldest lease of this object back.

        Raises
        ------
        RuntimeError
            It has none.
        """
        if not self._leases:
            raise RuntimeError(f"{self!r} is released more often than acquired")
        return bool(self._call("release", self._leases.popleft()))

    def get_value(self) -> int:
        """Return the number of leases held by all processes."""
        return int(self._call("leases"))

    def close(self) -> None:
        """Forget the semaphore, and whoever holds it."""
        self._leases.clear()
        self._call("close_semaphore")

    def held(self) -> list[tuple[str, str]]:
        """Names and ids of the leases of this object."""
        return [(self.name, lease) for lease in list(self._leases)]

    def __enter__(self: Self) -> Self:
        self._acquire(None)
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class Semaphore(_Leases):
    """At most ``max_leases`` holders at a time, in all processes together.

    A lease ends when its holder releases it; or half a minute after the process of the holder has
    died.

    Parameters
    ----------
    max_leases : int
    name : str, optional
        By default a unique name.

    Examples
    --------
    >>> semaphore = Semaphore(max_leases=2, name="database")
    >>> with semaphore:  # doctest: +SKIP
    ...     connect()
    """

    def __init__(self, max_leases: int = 1, name: str | None = None) -> None:
        super().__init__(max_leases, name)

    def acquire(self, timeout: float | str | None = None) -> bool:
        """Wait for a lease; return whether there was one in time.

        Parameters
        ----------
        timeout : number or str, optional
            Seconds, or as in ``"200ms"``.
        """
        return self._acquire(parse_timedelta(timeout))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.max_leases, self.name)


class Lock(_Leases):
    """At most one holder at a time, in all processes together.

    Parameters
    ----------
    name : str, optional
        By default a unique name.
    client : Client, optional
        Ignored: there is only one cluster.

    Examples
    --------
    >>> with Lock("out.h5"):  # doctest: +SKIP
    ...     write()
    """

    def __init__(self, name: str | None = None, client: object = None) -> None:
        super().__init__(1, name)

    def acquire(self, blocking: bool = True, timeout: float | str | None = None) -> bool:
        """Wait for the lock; return whether it was got in time.

        Parameters
        ----------
        blocking : bool
            Whether to wait at all.
        timeout : number or str, optional
            Seconds, or as in ``"200ms"``.
        """
        if not blocking and timeout is not None:
            raise ValueError("a lock that is acquired with blocking=False takes no timeout")
        return self._acquire(parse_timedelta(timeout) if blocking else 0)

    def locked(self) -> bool:
        """Return whether a process holds the lock."""
        return self.get_value() > 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


class _Refreshing:
    """A thread that renews the leases of this process."""

    def __init__(self) -> None:
        self._holders: weakref.WeakSet[_Leases] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, holder: _Leases) -> None:
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
            with contextlib.suppress(Exception):  # the next time, or the lease ends
                _service.call("refresh", leases, timeout=REFRESH)


_refreshing = _Refreshing()
