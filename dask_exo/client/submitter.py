"""Submission of calls: the part of a client that creates futures, and the task of a call.

Futures among the arguments, also inside lists, tuples, sets and dictionaries, arrive as their
values. A future elsewhere, say in a closure, arrives as a future that is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import queue
import threading
import traceback
import uuid
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import dask.config
from dask.base import tokenize
from dask.utils import funcname, key_split, typename

from dask_exo.client.future import Future, futures_in, map_nested
from dask_exo.client.wait import gather
from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import LARGE, Futures, Ref, SubmitOptions
from dask_exo.dask_adapter import get_annotations
from dask_exo.errors import ClusterError, Failure, SerializationError, UnsupportedError
from dask_exo.execution import messages
from dask_exo.execution.background import PromiseCallbacks
from dask_exo.execution.persisted import Local, Promise, Remote, live_futures, substituting_values
from dask_exo.execution.submission import serialize
from dask_exo.execution.worker import write_or_copy
from dask_exo.planning.annotations import KNOWN, options_from, request_of
from dask_exo.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class CallReceipt:
    """Outcome of a call: the name of the type of its value, or its failure, which is the value."""

    type: str = ""
    failure: Failure | None = None


class RemoteFunction:
    """A function and its keyword arguments, sent once for all calls that share them."""

    def __init__(
        self,
        futures: Futures,
        fn: Callable[..., Any],
        kwargs: Mapping[str, Any],
        retries: int = 0,
        needs: SubmitOptions | None = None,
    ) -> None:
        self._futures, self._fn, self.kwargs = futures, fn, kwargs
        self._retries, self._needs = retries, needs

    @cached_property
    def _packed(self) -> tuple[bytes | Ref, list[Ref], list[int]]:
        """Return the code or its ref, the refs in it, and positions of the arguments."""
        refs: list[Ref] = []
        kwargs, places = _lift(dict(self.kwargs), refs)
        code = serialize((self._fn, kwargs), refs, lambda: repr(self._fn))
        return (code if len(code) < LARGE else self._futures.put(code)), refs, places

    def call(self, key: Any, args: Sequence[Any]) -> tuple[Ref, Ref]:
        """Start a task; return the refs of its value and of its `CallReceipt`.

        Raises `SerializationError` if function or arguments cannot be sent to another process.
        """
        code, shared, places = self._packed
        refs = list(shared)
        content, more = _lift(tuple(args), refs)
        head = (key, self._retries, [*places, *more])
        data = serialize(content, refs, lambda: repr(key))
        value, report = self._futures.split(2, run, head, code, data, *refs, options=self._needs)
        return value, report


def _lift(content: Any, refs: list[Ref]) -> tuple[Any, list[int]]:
    """Replace futures by positions in ``refs``; append their refs to it."""
    places: list[int] = []

    def place(future: Future) -> Any:
        location = future.promise.location()
        if not isinstance(location, Local):
            refs.append(location.ref)
            places.append(len(refs) - 1)
            return messages.Argument(places[-1])
        if isinstance(location.value, Failure):
            location.value.reraise()
        return location.value

    if not any(True for _ in futures_in(content)):
        return content, []
    return map_nested(content, place, Future), places


def run(
    head: tuple[Any, int, Sequence[int]], code: bytes, data: bytes, *args: Any
) -> tuple[Any, CallReceipt]:
    """Run one call in a task; return its value and its `CallReceipt`."""
    key, retries, places = head
    for place in places:
        if isinstance(args[place], Failure):  # a failed argument fails the call
            return args[place], CallReceipt(failure=args[place])
    call = partial(_call, code, data, args)
    failure = None
    with dask.config.set({"scheduler": Scheduler(), "dataframe.shuffle.method": "tasks"}):
        for _ in range(retries + 1):
            try:
                value = write_or_copy(call, key_split(key))
            except Exception as error:  # noqa: BLE001  raised where the value is used
                failure = Failure.of(key, error)
                traceback.clear_frames(error.__traceback__)  # they refer to values in the store
            else:
                return value, CallReceipt(typename(type(value)))
    return failure, CallReceipt(failure=failure)


def _call(code: bytes, data: bytes, args: Sequence[Any], prepare: Callable[[Any], Any]) -> Any:
    """Run one attempt, with its own copies of code and arguments."""
    with substituting_values(args):
        fn, kwargs = pickle.loads(code)  # noqa: S301  our own driver's bytes
        call_args = pickle.loads(data)  # noqa: S301  our own driver's bytes
    call_args, kwargs = map_nested(
        (call_args, kwargs), lambda arg: prepare(args[arg.place]), messages.Argument
    )
    value = fn(*call_args, **kwargs)
    return asyncio.run(_result(value)) if inspect.iscoroutine(value) else value


async def _result(coroutine: Any) -> Any:
    return await coroutine


_lock = threading.Lock()
_submissions = PromiseCallbacks("dask_exo-submissions")


class Submitter:
    """Base of a client: creates futures of calls and of stored values."""

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

        Futures among the arguments, also in lists, tuples, sets and dictionaries, arrive as values.

        Parameters
        ----------
        key : str, optional
            While a future of this key is alive, it is returned and nothing is started.
        resources : dict, optional
            Resource request of the task: ``{"GPU": 1}``, or custom resources of Ray.
        retries : int, optional
            Number of further attempts after an exception.
        pure : bool
            Whether the same function and arguments may share one future.
        workers, priority, fifo_timeout, allow_other_workers
            Without effect: Ray places and orders the tasks.
        actor, actors : bool
            Refused.

        Raises
        ------
        SerializationError
            The function or an argument cannot be sent to another process.
        """
        if not callable(func):
            raise TypeError(f"submit takes a function first, not {func!r}")
        function = self._remote_function(func, kwargs, retries, resources, workers, actor or actors)
        if key is None:
            token = tokenize(func, kwargs, *args) if pure else uuid.uuid4()
            key = f"{funcname(func)}-{token}"
        return self._start(key, function, args)

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

        It stops at the end of the shortest one. The keyword arguments are sent once. Other
        parameters are those of `submit`.

        Parameters
        ----------
        key : str or list, optional
            Prefix of the keys; or all keys.
        batch_size : int, optional
            Without effect: tasks are submitted one by one.
        """
        if not callable(func):
            raise TypeError(f"map takes a function first, not {func!r}")
        if any(isinstance(it, (Iterator, queue.Queue)) for it in iterables):
            raise TypeError("map takes no iterators or queues: use a loop, and submit")
        function = self._remote_function(func, kwargs, retries, resources, workers, actor or actors)
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
        return [self._start(k, function, args) for k, args in zip(keys, calls, strict=True)]

    def _remote_function(
        self,
        func: Callable[..., Any],
        kwargs: dict[str, Any],
        retries: int | None,
        resources: Mapping[str, Any] | None,
        workers: Any,
        actor: bool,
    ) -> RemoteFunction:
        self._check_open()
        no_workers(workers)
        if actor:
            raise UnsupportedError("actor=True: make a Ray actor of the class, ray.remote(cls)")
        annotations = {name: v for name, v in (get_annotations() or {}).items() if name in KNOWN}
        annotations.update({} if retries is None else {"retries": retries})
        annotations.update({} if resources is None else {"resources": resources})
        options, request = options_from(annotations), request_of(func)
        needs = options.needs if request is None else request.needs
        if needs:
            on_ray.check_submit_options(needs)
        return RemoteFunction(self._futures, func, kwargs, options.retries, needs)

    def _start(self, key: Any, function: RemoteFunction, args: tuple[Any, ...]) -> Future:
        with _lock:
            existing = live_futures.get(key)
            if isinstance(existing, Future):
                return existing
            future = Future(key, Promise(self._futures))
        inputs = [f.promise for f in futures_in([args, function.kwargs])]
        pending = [promise for promise in inputs if not promise.known]
        if pending:
            future_ref = weakref.ref(future)  # if the future is dropped, nothing starts
            _submissions.when_known(pending, lambda: _submit_late(future_ref(), function, args))
            return future
        try:
            _submit(future, function, args)
        except SerializationError:
            live_futures.pop(key, None)
            raise
        return future

    def gather(
        self, futures: Any, errors: str = "raise", direct: Any = None, asynchronous: Any = None
    ) -> Any:
        """Wait for futures; return their values, in the containers that they are in.

        These are nested lists, tuples, sets and dictionaries. ``errors="raise"`` raises the first
        exception; ``"skip"`` leaves failed futures out.
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
        hash: bool = True,  # noqa: A002  its name in distributed
        timeout: Any = None,
        asynchronous: Any = None,
    ) -> Any:
        """Store a value, or each item of a list, tuple, set or dictionary; return futures.

        With ``hash``, equal values may share one future. ``workers``, ``broadcast``, ``direct`` and
        ``timeout`` have no effect: each node that needs a value gets one copy of it.
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
        future = live_futures.get(key)
        if isinstance(future, Future):
            return future
        return Future(key, Promise(self._futures, Remote(self._futures.put(value), 0)))

    def _check_open(self) -> None:
        if self.status != "running" or not on_ray.running():
            raise ClusterError("the client is closed: create another one")


def no_workers(workers: Any) -> None:
    """Warn that tasks cannot be bound to workers."""
    if workers is not None:
        warnings.warn(
            "workers= has no effect: Ray places tasks where their data is. Request a custom "
            "resource of a node instead, resources={'name': 1}",
            stacklevel=4,
        )


def _name(value: Any, hashed: bool) -> str:
    token = tokenize(value) if hashed else uuid.uuid4().hex
    return f"{type(value).__name__}-{token}"


def _submit(future: Future, function: RemoteFunction, args: tuple[Any, ...]) -> None:
    """Submit the task of a future, or fail it; raise if the call cannot be serialized."""
    try:
        value, report = function.call(future.key, args)
    except Exception as error:  # raised where the value is used, too
        future.promise.fail(error)
        if isinstance(error, SerializationError):
            raise
    else:
        future.begin(value, report)


def _submit_late(future: Future | None, function: RemoteFunction, args: tuple[Any, ...]) -> None:
    """Submit the task of a future whose arguments are known now, unless it was dropped."""
    if future is not None and not future.promise.known:
        with contextlib.suppress(SerializationError):
            _submit(future, function, args)
