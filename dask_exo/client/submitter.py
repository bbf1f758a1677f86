"""Submitting calls: the part of a client that makes futures."""

from __future__ import annotations

import queue
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dask.base import tokenize
from dask.utils import funcname

from dask_exo.client.future import Future
from dask_exo.client.remote_call import RemoteFunction, unresolved_promises
from dask_exo.client.wait import gather
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import Futures
from dask_exo.dask_adapter import get_annotations
from dask_exo.errors import ClusterError, SerializationError, UnsupportedError
from dask_exo.execution.background import PromiseCallbacks
from dask_exo.execution.persisted import Promise, Remote, named
from dask_exo.planning.annotations import KNOWN, options_from, request_of

_lock = threading.Lock()
_submissions = PromiseCallbacks("dask_exo-submissions")


class Submitter:
    """Makes futures: of calls, and of values that are stored.

    Parameters
    ----------
    futures : Futures
        Where tasks run.
    """

    def __init__(self, futures: Futures) -> None:
        self.status = "running"
        self._futures = futures

    def submit(
        self,
        func: Callable[..., Any],
        *args: Any,
        key: Any = None,
        workers: Any = None,
        resources: Mapping[str, Any] | None = None,
        retries: int | None = None,
        priority: float = 0,
        fifo_timeout: Any = None,
        allow_other_workers: bool = False,
        actor: bool = False,
        actors: bool = False,
        pure: bool = True,
        **kwargs: Any,
    ) -> Future:
        """Start ``func(*args, **kwargs)`` in a task; return at once.

        Parameters
        ----------
        func : callable
        *args, **kwargs
            Futures among them, also in lists, tuples, sets and dictionaries, arrive as values.
        key : str, optional
            While a future of this key is alive, it is returned and nothing is started.
        resources : dict, optional
            What the task needs: ``{"GPU": 1}``, or custom resources of Ray.
        retries : int, optional
            How often it may run again after an exception.
        pure : bool
            Whether the same function and arguments may share one future.
        workers, priority, fifo_timeout, allow_other_workers
            Without effect: Ray places and orders the tasks.
        actor, actors : bool
            Refused.

        Raises
        ------
        SerializationError
            The function or an argument cannot be sent.
        """
        if not callable(func):
            raise TypeError(f"submit takes a function first, not {func!r}")
        code = self._code(func, kwargs, retries, resources, (workers, actor or actors))
        if key is None:
            token = tokenize(func, kwargs, *args) if pure else uuid.uuid4()
            key = f"{funcname(func)}-{token}"
        return self._start(key, code, args)

    def map(
        self,
        func: Callable[..., Any],
        *iterables: Collection[Any],
        key: Any = None,
        workers: Any = None,
        retries: int | None = None,
        resources: Mapping[str, Any] | None = None,
        priority: float = 0,
        allow_other_workers: bool = False,
        fifo_timeout: Any = None,
        actor: bool = False,
        actors: bool = False,
        pure: bool = True,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[Future]:
        """Start ``func`` for the first items of all iterables, for the second ones, and so on.

        Parameters
        ----------
        func : callable
        *iterables
            The shortest one ends it.
        key : str or list, optional
            What keys begin with; or all keys.
        batch_size : int, optional
            Without effect: tasks are submitted one by one.
        workers, retries, resources, priority, allow_other_workers, fifo_timeout, actor, pure
            See `submit`.
        **kwargs
            The same for all calls, and sent once.
        """
        if not callable(func):
            raise TypeError(f"map takes a function first, not {func!r}")
        if any(isinstance(it, (Iterator, queue.Queue)) for it in iterables):
            raise TypeError("map takes no iterators or queues: use a loop, and submit")
        code = self._code(func, kwargs, retries, resources, (workers, actor or actors))
        calls = list(zip(*iterables, strict=False))
        if isinstance(key, (list, tuple)):
            keys = list(key)
        else:
            common = tokenize(func, kwargs) if pure else uuid.uuid4()
            name = key or funcname(func)
            keys = [
                f"{name}-{tokenize(common, args)}" if pure else f"{name}-{common}-{i}"
                for i, args in enumerate(calls)
            ]
        return [self._start(k, code, args) for k, args in zip(keys, calls, strict=True)]

    def _code(
        self,
        func: Callable[..., Any],
        kwargs: dict[str, Any],
        retries: int | None,
        resources: Mapping[str, Any] | None,
        refused: tuple[Any, bool],
    ) -> RemoteFunction:
        workers, actor = refused
        self._check_open()
        no_workers(workers)
        if actor:
            raise UnsupportedError("actor=True: make a Ray actor of the class, ray.remote(cls)")
        given = {name: v for name, v in (get_annotations() or {}).items() if name in KNOWN}
        given.update({} if retries is None else {"retries": retries})
        given.update({} if resources is None else {"resources": resources})
        asked = options_from(given)
        asks = request_of(func)
        needs = asked.needs if asks is None else asks.needs
        if needs:
            on_ray.check_submit_options(needs)
        return RemoteFunction(self._futures, func, kwargs, asked.retries, needs)

    def _start(self, key: Any, code: RemoteFunction, args: tuple[Any, ...]) -> Future:
        with _lock:
            found = named.get(key)
            if isinstance(found, Future):
                return found
            future = Future(key, Promise(self._futures))
        waiting = unresolved_promises([args, code.kwargs])
        if waiting:
            later = weakref.ref(future)  # whoever drops it does not want it started
            _submissions.when_known(waiting, lambda: _begin_late(later(), code, args))
            return future
        try:
            _begin(future, code, args)
        except SerializationError as error:
            future.promise.fail(error)
            named.pop(key, None)
            raise
        return future

    def gather(
        self, futures: Any, errors: str = "raise", direct: Any = None, asynchronous: Any = None
    ) -> Any:
        """Wait for futures; return their values, in the containers that they are in.

        Parameters
        ----------
        futures : object
            A future, or nested lists, tuples, sets and dictionaries with futures in them.
        errors : str
            ``"raise"`` raises the first exception; ``"skip"`` leaves out what failed.
        """
        if isinstance(futures, queue.Queue):
            raise TypeError("gather takes no queues: use a loop")
        if isinstance(futures, Iterator):
            return (self.gather(future, errors) for future in futures)
        return gather(futures, errors)

    def scatter(
        self,
        data: Any,
        workers: Any = None,
        broadcast: bool | int = False,
        direct: Any = None,
        hash: bool = True,  # noqa: A002  the name that it has in distributed
        timeout: Any = None,
        asynchronous: Any = None,
    ) -> Any:
        """Store a value, or each item of a list, tuple, set or dictionary; return futures.

        Parameters
        ----------
        data : object
        hash : bool
            Whether equal values may share one future.
        workers, broadcast, direct, timeout
            Without effect: each node that needs a value gets one copy of it.
        """
        self._check_open()
        no_workers(workers)
        if isinstance(data, (Iterator, queue.Queue)):
            raise TypeError("scatter takes no iterators or queues: use a loop")
        if isinstance(data, range):
            data = list(data)
        if type(data) is dict:
            return {key: self._store(key, value) for key, value in data.items()}
        if type(data) in (list, tuple, set, frozenset):
            return type(data)(self._store(_name(item, hash), item) for item in data)
        if isinstance(data, tuple) and hasattr(data, "_make"):
            return data._make(self._store(_name(item, hash), item) for item in data)
        return self._store(_name(data, hash), data)

    def _store(self, key: Any, value: Any) -> Future:
        found = named.get(key)
        if isinstance(found, Future):
            return found
        return Future(key, Promise(self._futures, Remote(self._futures.put(value), 0)))

    def _check_open(self) -> None:
        if self.status != "running" or not on_ray.running():
            raise ClusterError("the client is closed: create another one")


def no_workers(workers: Any) -> None:
    """Warn that tasks cannot be bound to workers."""
    if workers is not None:
        warnings.warn(
            "workers= has no effect: Ray places tasks where their data is. Ask for a custom "
            "resource of a node instead, resources={'name': 1}",
            stacklevel=4,
        )


def _name(value: Any, hashed: bool) -> str:
    token = tokenize(value) if hashed else uuid.uuid4().hex
    return f"{type(value).__name__}-{token}"


def _begin(future: Future | None, code: RemoteFunction, args: tuple[Any, ...]) -> None:
    """Start the task of a future, if anybody still wants it."""
    if future is None or future.promise.known:
        return
    try:
        value, report = code.call(future.key, args)
    except SerializationError:
        raise
    except Exception as error:  # noqa: BLE001  raised where the value is asked for
        future.promise.fail(error)
    else:
        future.begin(value, report)


def _begin_late(future: Future | None, code: RemoteFunction, args: tuple[Any, ...]) -> None:
    try:
        _begin(future, code, args)
    except SerializationError as error:
        assert future is not None
        future.promise.fail(error)
