"""Futures like `distributed.Future`: one for each call, named by its key."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from dask.utils import parse_timedelta, typename

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import fetch_values
from dask_exo.config import Config
from dask_exo.dask_adapter import TaskRef
from dask_exo.errors import CancelledError, Failure
from dask_exo.execution.background import PromiseCallbacks, stop_with_all
from dask_exo.execution.persisted import Local, Promise, Remote, live_futures, wait


class Future(TaskRef):
    """The value of a call, which may still run.

    Dask takes it wherever it takes a key. Its value lives as long as it does. ``report`` is the ref
    of the `CallReceipt`, if there is one.

    Examples
    --------
    >>> Future("x", Promise(location=Local(1)))
    <Future: finished, type: int, key: x>
    """

    def __init__(self, key: Any, promise: Promise, report: Ref | None = None) -> None:
        super().__init__(key)
        self.promise, self.report = promise, report
        self._type: str | None = None
        self._status = "pending"
        live_futures[key] = self
        stop_with_all(_futures)

    @property
    def cluster(self) -> Futures:
        """The cluster that its refs belong to."""
        assert self.promise.futures is not None
        return self.promise.futures

    def begin(self, value: Ref, report: Ref) -> None:
        """Attach the refs of the submitted task."""
        self.report = report
        self.promise.fulfil(Remote(value, 0))

    @property
    def status(self) -> str:
        """One of ``pending``, ``finished``, ``error`` and ``cancelled``."""
        if self._status == "pending" and self.promise.done():
            failures([self])
        return self._status

    @property
    def type(self) -> str | None:
        """Name of the type of the value, if known."""
        return self._type if self.status == "finished" else None

    def done(self) -> bool:
        """Return whether it has a value or an exception, or was cancelled."""
        return self._status != "pending" or self.promise.done()

    def cancelled(self) -> bool:
        """Return whether it, or one of its inputs, was cancelled."""
        return self.status == "cancelled"

    def result(self, timeout: float | str | None = None) -> Any:
        """Wait for the value, or raise the exception of the function; the value may be written to.

        Parameters
        ----------
        timeout : number or str, optional
            Seconds, or as in ``"2 minutes"``.

        Raises
        ------
        TimeoutError
            It has not ended in time.
        CancelledError
            It, or one of its inputs, was cancelled.
        """
        return self.promise.result(parse_timedelta(timeout))

    def exception(self, timeout: float | str | None = None) -> BaseException | None:
        """Wait for the end; return the exception of the function, if there is one."""
        timeout = parse_timedelta(timeout)
        if wait([self.promise], timeout=timeout)[1]:
            raise TimeoutError(f"{self.key!r} has not ended after {timeout} s")
        (error,) = failures([self])
        return error

    def traceback(self, timeout: float | str | None = None) -> TracebackType | None:
        """Wait for the end; return the traceback of the exception, if there is one."""
        error = self.exception(timeout)
        return None if error is None else error.__traceback__

    def cancel(self) -> None:
        """Stop the task, if it runs, and release the value."""
        ref = self.promise.ref
        self.promise.fail(CancelledError(f"{self.key!r} was cancelled"))
        self._status, self.report = "cancelled", None
        if live_futures.get(self.key) is self:
            del live_futures[self.key]
        if ref is not None:
            self.cluster.cancel([ref])

    def release(self) -> None:
        """Do nothing: the value is released with the last reference to the future."""

    def add_done_callback(self, fn: Callable[[Future], Any]) -> None:
        """Call ``fn`` with the future, in another thread, when it has ended in any way."""
        _callbacks.when_done(self.promise, lambda: fn(self))

    def __dask_tokenize__(self) -> tuple[str, Any, str]:
        return "exo-future", self.key, self.promise.token

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (self.key, self.promise)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        """Show status, type and key."""
        kind = f", type: {self.type}" if self.type else ""
        return f"<Future: {self.status}{kind}, key: {self.key}>"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        kind = f", type: {html.escape(self.type)}" if self.type else ""
        return f"<b>Future</b>: {self.status}{kind}, key: <code>{html.escape(str(self.key))}</code>"


def failures(futures: Sequence[Future]) -> list[BaseException | None]:
    """Return the exceptions of ended futures, None for those that succeeded."""
    with_report = [f for f in futures if f.report is not None and f.promise.ref is not None]
    reports: dict[Ref, Any] = {}
    if with_report:
        cluster, refs = with_report[0].cluster, [f.report for f in with_report]
        with contextlib.suppress(Exception):  # one of them failed; `_failure` fetches each
            reports.update(zip(refs, cluster.get(refs), strict=True))
    errors = []
    for future in futures:
        error = _failure(future, reports)
        future._status = "finished" if error is None else "error"
        if isinstance(error, CancelledError):
            future._status = "cancelled"
        errors.append(error)
    return errors


def _failure(future: Future, reports: dict[Ref, Any]) -> BaseException | None:
    try:
        location = future.promise.location()
        if isinstance(location, Local):
            value = location.value
        elif future.report is None:
            limit = Config.current().stall_timeout
            (value,) = fetch_values(
                future.cluster, [location.ref], limit, lambda _: repr(future.key)
            )
        else:
            report = reports.get(future.report) or future.cluster.get([future.report])[0]
            future._type = report.type
            return None if report.failure is None else report.failure.error()
    except Exception as error:  # noqa: BLE001  the exception is the result
        return error
    future._type = typename(type(value))
    return value.error() if isinstance(value, Failure) else None


class _Futures:
    """All futures of this process."""

    def stop(self) -> None:
        """Cancel all: their values were lost with the connection."""
        for future in list(live_futures.values()):
            future.promise.fail(CancelledError("the connection to Ray was closed"))


_futures = _Futures()
_callbacks = PromiseCallbacks("dask_exo-callbacks")


def rebuild(key: Any, promise: Promise, report: Ref | None = None) -> Future:
    """Return the future of a key in this process, or a new one."""
    future = live_futures.get(key)
    return future if isinstance(future, Future) else Future(key, promise, report)


def futures_in(content: Any) -> Iterator[Future]:
    """Yield the futures in nested lists, tuples, sets and dictionaries."""
    if isinstance(content, Future):
        yield content
    elif isinstance(content, (list, tuple, set, frozenset)):
        for item in content:
            yield from futures_in(item)
    elif isinstance(content, dict):
        for item in content.values():
            yield from futures_in(item)


def map_nested(content: Any, new: Callable[[Any], Any], kind: type) -> Any:
    """Return ``content`` with all objects of a ``kind`` in nested containers replaced."""
    if isinstance(content, kind):
        return new(content)
    recurse = partial(map_nested, new=new, kind=kind)
    if type(content) in (list, tuple, set, frozenset):
        return type(content)(map(recurse, content))
    if isinstance(content, tuple) and hasattr(content, "_make"):
        return content._make(map(recurse, content))
    if type(content) is dict:
        return {key: recurse(item) for key, item in content.items()}
    return content
