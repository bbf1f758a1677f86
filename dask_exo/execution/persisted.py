"""Promises: values that are being computed, or stay in the object store between computations.

`persist` rebuilds a collection from tasks ``Task(key, fetch, promise)``. The driver loop uses the
location of the promise's value as an input; every other scheduler calls `fetch`. The value lives
as long as the promise is referenced.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.futures import Futures, Ref, collected_refs, substitutes
from dask_exo.cluster.ownership import owned
from dask_exo.cluster.task_status import OutputDigest
from dask_exo.cluster.waiting import Watchdog, fetch_values
from dask_exo.config import Config
from dask_exo.dask_adapter import Task
from dask_exo.errors import Failure, IntegrityError
from dask_exo.partitions.digest import digest

POLL = 0.02  # seconds between two checks of promises that another thread fulfils
LONG = 1.0  # seconds of a wait after which it is watched

resolvers: list[Callable[[Any], Promise | None]] = []
"""Functions that return the promise of the future with a key: a graph has only the key."""

_promises: weakref.WeakSet[Promise] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Local:
    """A value in the driver's own memory."""

    value: Any


@dataclass(frozen=True, slots=True)
class Remote:
    """A value in the object store: estimated size in bytes, digest of its call, rows of a frame."""

    ref: Ref
    nbytes: int
    digest: OutputDigest | None = None
    rows: int | None = None


def checked(value: Any, output: OutputDigest | None) -> Any:
    """Return a value of the store; raise `IntegrityError` if its task returned another one."""
    if output is None or output.parts > 1 or output.digest in (None, digest(value)):
        return value
    raise IntegrityError(
        f"a value of {output.name!r} has changed since it was computed: in memory, on the disk of "
        f"spilled values, or since its task ran again and is not deterministic. Compute or persist "
        f"it again, and look at that disk"
    )


class Promise:
    """A value that exists, or that a thread of this process or a task will compute.

    Pickled with the code of a task (see `collecting_refs`), its ref becomes an argument of that
    task, where it is a promise with the fetched value. Pickled otherwise, it carries the value.

    ``location`` is the value or its ref, if known. A ref may be of a running task, and the value
    behind it may be the `Failure` of that task.
    """

    futures: Futures | None

    def __init__(
        self, futures: Futures | None = None, location: Local | Remote | None = None
    ) -> None:
        self.futures, self._location = futures, location
        self._error: BaseException | None = None
        self._known = threading.Event()
        _promises.add(self)
        self.token: str = uuid.uuid4().hex
        self.fingerprint: str | None = None  # of its task, if checkpoints are on
        if location is not None:
            self._known.set()

    def fulfil(self, location: Local | Remote) -> None:
        """Set the value or its ref."""
        self._location = location
        self._known.set()

    def fail(self, error: BaseException) -> None:
        """Set the error in place of a value."""
        self._error, self._location = error, None
        self._known.set()

    @property
    def known(self) -> bool:
        """True if `location` returns at once."""
        return self._known.is_set()

    def location(self) -> Local | Remote:
        """Wait for the value or its ref to be known; raise what prevents it."""
        self._known.wait()
        if self._error is not None:
            raise self._error
        assert self._location is not None
        return self._location

    def location_on(self, futures: Futures) -> Local | Remote:
        """Return `location`; a value that is stored elsewhere is copied to these futures."""
        location, source = self.location(), self.futures
        if isinstance(location, Local) or source is futures or source is None:
            return location
        if type(source) is type(futures) and not source.shares_memory:
            return location
        return Remote(futures.put(self._value()), location.nbytes, rows=location.rows)

    def pause(self) -> None:
        """Wait a moment, unless `location` returns at once."""
        self._known.wait(POLL)

    @property
    def ref(self) -> Ref | None:
        """Ref of the value, if it is known and there is one."""
        return self._location.ref if isinstance(self._location, Remote) else None

    def done(self) -> bool:
        """Return whether the value exists or has failed."""
        return not wait([self], timeout=0)[1]

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value; return a writable copy of it, or raise the exception of its task.

        Raise `TimeoutError` if it does not exist after ``timeout`` seconds.
        """
        if wait([self], timeout=timeout)[1]:
            raise TimeoutError(f"no result after {timeout} s")
        value = self._value()
        if isinstance(value, Failure):
            value.reraise()
        return value

    def _value(self) -> Any:
        """Return the value, or the `Failure` in its place."""
        location = self.location()
        if isinstance(location, Local):
            return location.value
        assert self.futures is not None
        (value,) = fetch_values(self.futures, [location.ref], Config.current().stall_timeout)
        return owned(checked(value, location.digest), shared=self.futures.shares_memory)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "exo-promise", self.token

    def __reduce__(self) -> tuple[Any, ...]:
        refs = collected_refs.get()
        try:
            location = self.location()
            # without a list of refs it is pickled to a file, or for a process that is no task
            if isinstance(location, Local) or refs is None:
                return _with_value, (self._value(), self.token)
        except Exception as error:  # noqa: BLE001  raised where the value is used
            return _with_value, (Failure.of(self.token, error), self.token)
        refs.append(location.ref)
        return _with_argument, (len(refs) - 1, self.token)


def stored_refs() -> set[Ref]:
    """Return the refs of all promised values that are in the object store."""
    return {promise.ref for promise in list(_promises) if promise.ref is not None}


def promise_of(key: Any) -> Promise | None:
    """Return the promise of the live future with a key; None if there is none."""
    return next((p for resolve in resolvers if (p := resolve(key)) is not None), None)


def promises_exist() -> bool:
    """Return whether this process has any promise."""
    return len(_promises) > 0


def fetch(promise: Promise) -> Any:
    """Return the value of a promise, in a task of any other scheduler."""
    return promise.result()


def promised(node: object) -> Promise | None:
    """Return the promise that a node of a graph fetches, or None for other nodes."""
    if isinstance(node, Task) and node.func is fetch:
        (promise,) = node.args
        assert isinstance(promise, Promise)
        return promise
    return None


def collecting_refs(args: list[Ref]) -> AbstractContextManager[None]:
    """Append the refs of pickled promises to ``args``, the arguments of the task."""
    return setting(collected_refs, args)


def substituting_values(args: Sequence[Any]) -> AbstractContextManager[None]:
    """Give unpickled promises their values from ``args``, the arguments of the task."""
    return setting(substitutes, args)


@contextlib.contextmanager
def setting(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a context variable inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _with_value(value: Any, token: str) -> Promise:
    promise = Promise(location=Local(value))
    promise.token = token
    return promise


def _with_argument(index: int, token: str) -> Promise:
    return _with_value(substitutes.get()[index], token)


def wait(
    promises: Collection[Promise], *, timeout: float | None = None, count: int | None = None
) -> tuple[list[Promise], list[Promise]]:
    """Wait until ``count`` of ``promises`` (by default all) are done, or ``timeout`` seconds.

    Return those that are done and the others, in the order given. Raise `StalledError` if no
    progress is possible.
    """
    watchdog: Watchdog | None = None
    end = None if timeout is None else time.perf_counter() + timeout
    count = len(promises) if count is None else count
    done: set[int] = set()
    while True:
        pending = [p for p in promises if id(p) not in done]
        left = None if end is None else max(0.0, end - time.perf_counter())
        done.update(_look(pending, left, watchdog))
        if len(done) >= count or (end is not None and time.perf_counter() >= end):
            break
        watchdog = watchdog or _watchdog(pending)
    ordered = list(promises)
    return [p for p in ordered if id(p) in done], [p for p in ordered if id(p) not in done]


def _watchdog(pending: Sequence[Promise]) -> Watchdog | None:
    """Return a watchdog for a long wait for tasks, or None if no task is awaited."""
    futures = next((p.futures for p in pending if p.ref is not None), None)
    return None if futures is None else Watchdog(futures, Config.current().stall_timeout)


def _look(pending: Sequence[Promise], left: float | None, watchdog: Watchdog | None) -> set[int]:
    """Return the ids of done promises; wait a moment if there are none."""
    done = {id(p) for p in pending if p.known and p.ref is None}
    remote = [p for p in pending if p.ref is not None]
    unknown = [p for p in pending if not p.known]
    pause = left if left is not None and left < POLL else POLL
    if remote:
        futures = remote[0].futures
        assert futures is not None
        forever = None if watchdog else LONG
        timeout = 0.0 if done else pause if unknown or left is not None else forever
        wait_for = futures.wait if watchdog is None else watchdog.wait
        finished, others = wait_for(list({p.ref for p in remote}), timeout)
        more = futures.wait(others, timeout=0)[0] if finished and others else []
        done_refs = {*finished, *more}
        return done | {id(p) for p in remote if p.ref in done_refs}
    if unknown and not done and pause:
        unknown[0]._known.wait(pause)
    return done
