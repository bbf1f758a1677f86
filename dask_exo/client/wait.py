"""Waiting for futures: all of them, the next one, or one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dask.base import is_dask_collection
from dask.utils import parse_timedelta

from dask_exo.client.future import Future, failures, futures_in, map_nested, rebuild
from dask_exo.cluster.futures import Ref
from dask_exo.cluster.ownership import writable
from dask_exo.cluster.waiting import fetch_values
from dask_exo.config import Config
from dask_exo.errors import CancelledError
from dask_exo.execution import persisted
from dask_exo.execution.persisted import Local

ALL_COMPLETED = "ALL_COMPLETED"
FIRST_COMPLETED = "FIRST_COMPLETED"
MOMENT = 0.1  # seconds after which a waiting iterator checks for added futures


class DoneAndNotDoneFutures(NamedTuple):
    """Result of `wait`."""

    done: set[Future]
    not_done: set[Future]


def futures_of(obj: Any) -> list[Future]:
    """Return the futures in nested lists, tuples, sets, dictionaries and persisted collections."""
    if is_dask_collection(obj):
        graph = dict(obj.__dask_graph__())
        promises = {key: persisted.promised(node) for key, node in graph.items()}
        return [rebuild(key, promise) for key, promise in promises.items() if promise is not None]
    if isinstance(obj, dict):
        obj = list(obj.values())
    if isinstance(obj, (list, tuple, set, frozenset)):
        return list(dict.fromkeys(future for item in obj for future in futures_of(item)))
    return [obj] if isinstance(obj, Future) else []


def wait(
    fs: Any, timeout: float | str | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDoneFutures:
    """Wait until futures have ended, in any of the containers of `futures_of`.

    Parameters
    ----------
    timeout : number or str, optional
        Seconds, or as in ``"2 minutes"``; then `TimeoutError` is raised.
    return_when : str
        ``ALL_COMPLETED`` or ``FIRST_COMPLETED``.

    Raises
    ------
    CancelledError
        One of them was cancelled.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED):
        raise ValueError(
            f"return_when={return_when!r} is neither ALL_COMPLETED nor FIRST_COMPLETED"
        )
    timeout, futures = parse_timedelta(timeout), futures_of(fs)
    count = len(futures) if return_when == ALL_COMPLETED else min(1, len(futures))
    done, not_done = _ended(futures, timeout, count)
    if len(done) < count:
        raise TimeoutError(
            f"{len(not_done)} of {len(futures)} futures have not ended in {timeout} s"
        )
    for error in failures(done):
        if isinstance(error, CancelledError):
            raise error
    return DoneAndNotDoneFutures(set(done), set(not_done))


def _ended(
    futures: list[Future], timeout: float | None, count: int
) -> tuple[list[Future], list[Future]]:
    """Wait for ``count`` of the futures; return those that have ended, and the others."""
    done, _ = persisted.wait([f.promise for f in futures], timeout=timeout, count=count)
    done_promises = set(done)
    return (
        [f for f in futures if f.promise in done_promises],
        [f for f in futures if f.promise not in done_promises],
    )


def gather(content: Any, errors: str = "raise") -> Any:
    """Return the values of futures, in the nested containers that they are in.

    ``errors="raise"`` raises the first exception; ``"skip"`` leaves failed futures out of a list,
    and puts None in their place elsewhere.
    """
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors={errors!r} is neither 'raise' nor 'skip'")
    futures = list(dict.fromkeys(futures_in(content)))
    succeeded: list[Future] = []
    pending = futures
    while pending:
        done, pending = _ended(pending, None, 1)
        for future, error in zip(done, failures(done), strict=True):
            if error is not None and errors == "raise":
                raise error
            if error is None:
                succeeded.append(future)
    values = _values(succeeded)
    if isinstance(content, list):
        content = [item for item in content if not isinstance(item, Future) or item in values]
    return map_nested(content, values.get, Future)


def _values(futures: list[Future]) -> dict[Future, Any]:
    """Return the values of successful futures."""
    locations = {future: future.promise.location() for future in futures}
    remote = [future for future in futures if not isinstance(locations[future], Local)]
    fetched: dict[Ref, Any] = {}
    if remote:
        names = {future.promise.ref: repr(future.key) for future in remote}
        limit = Config.current().stall_timeout
        values = fetch_values(remote[0].cluster, list(names), limit, names.__getitem__)
        fetched = dict(zip(names, values, strict=True))
    return {
        future: writable(location.value if isinstance(location, Local) else fetched[location.ref])
        for future, location in locations.items()
    }


class as_completed(Iterator[Any]):  # noqa: N801  its name in distributed
    """Futures in the order in which they end.

    Parameters
    ----------
    with_results : bool
        Yield pairs of a future and its value.
    raise_errors : bool
        With results: raise the exception of a future; otherwise yield it in place of the value.
    timeout : number or str, optional
        Time in which all must have ended.

    Examples
    --------
    >>> for future in as_completed(client.map(score, models)):  # doctest: +SKIP
    ...     print(future.result())
    """

    def __init__(
        self,
        futures: Iterable[Future] | None = None,
        *,
        with_results: bool = False,
        raise_errors: bool = True,
        timeout: float | str | None = None,
    ) -> None:
        self._with_results, self._raise_errors = with_results, raise_errors
        timeout = parse_timedelta(timeout)
        self._end = None if timeout is None else time.perf_counter() + timeout
        self._lock = threading.Lock()
        self._pending: list[Future] = []
        self._ready: list[Future] = []
        self.update(futures or ())

    def update(self, futures: Iterable[Future]) -> None:
        """Yield further futures, too."""
        new = list(futures)
        for future in new:
            if not isinstance(future, Future):
                raise TypeError(f"as_completed takes futures, not {future!r}")
        with self._lock:
            self._pending.extend(new)

    def add(self, future: Future) -> None:
        """Yield one more future, too."""
        self.update([future])

    def count(self) -> int:
        """Return the number of futures that are not yielded yet."""
        with self._lock:
            return len(self._pending) + len(self._ready)

    def is_empty(self) -> bool:
        """Return whether all futures are yielded."""
        return not self.count()

    def has_ready(self) -> bool:
        """Return whether a future that is not yielded yet has ended."""
        self._look(0)
        return bool(self._ready)

    def clear(self) -> None:
        """Drop all futures that are not yielded yet."""
        with self._lock:
            self._pending.clear()
            self._ready.clear()

    def _look(self, timeout: float) -> None:
        with self._lock:
            pending = list(self._pending)
        ended = set(_ended(list(dict.fromkeys(pending)), timeout, 1)[0])
        with self._lock:
            self._ready += [f for f in self._pending if f in ended]
            self._pending = [f for f in self._pending if f not in ended]

    def __next__(self) -> Any:
        """Wait for the next one to end."""
        while True:
            with self._lock:
                if self._ready:
                    future = self._ready.pop(0)
                    break
                if not self._pending:
                    raise StopIteration
            left = MOMENT if self._end is None else self._end - time.perf_counter()
            if left <= 0:
                raise TimeoutError(f"{self.count()} futures have not ended in time")
            self._look(min(left, MOMENT))
        return self._item(future)

    next = __next__

    def _item(self, future: Future) -> Any:
        if not self._with_results:
            return future
        (error,) = failures([future])
        if error is None:
            return future, future.result()
        if self._raise_errors and not isinstance(error, CancelledError):
            raise error
        return future, error

    def next_batch(self, block: bool = True) -> list[Any]:
        """Return all futures that have ended, at least one if ``block``."""
        batch = [next(self)] if block else []
        self._look(0)
        with self._lock:
            ready, self._ready = self._ready, []
        return batch + [self._item(future) for future in ready]

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of futures that have ended in the meantime."""
        while not self.is_empty():
            yield self.next_batch()

    def __repr__(self) -> str:
        """Return the numbers of futures."""
        return f"<as_completed: waiting={len(self._pending)} done={len(self._ready)}>"


def fire_and_forget(obj: Any) -> None:
    """Run tasks to their end, even if their futures are dropped."""
    for future in futures_of(obj):
        future.add_done_callback(bool)
