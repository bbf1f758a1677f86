"""A client as in `distributed`, on Ray: futures on workers in actors, collections as an Exoshuffle.

`Client` is one of `distributed`. Tasks go to a scheduler and workers of `distributed`, which are
actors of Ray. Collections are computed by `dask_exo.Scheduler`; their futures are pending tasks of
the scheduler until then.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any

import cloudpickle
import dask.config
import distributed
from dask.core import flatten
from distributed.utils import thread_state
from distributed.utils_comm import gather_from_workers, pack_data, retry_operation

from dask_exo.client.cluster import PENDING, RayCluster
from dask_exo.client.settings import cluster_options
from dask_exo.client.stored import Stored, keys_of_stored, opened
from dask_exo.cluster import on_ray
from dask_exo.cluster.ownership import writable
from dask_exo.config import Config
from dask_exo.dask_adapter import LLGExpr, Task
from dask_exo.errors import ClusterError, Failure, NoClientError
from dask_exo.execution import persisted
from dask_exo.execution.background import stop_all
from dask_exo.execution.persisted import Local, Promise, Remote, setting
from dask_exo.report.live import Live
from dask_exo.scheduler import Scheduler, connect

POLL = 0.1  # seconds between two looks at which results of collections are wanted

_lock = threading.RLock()
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_settings: list[Any] = []  # of Dask, while there is a default client
_cluster: RayCluster | None = None  # of the clients of this process; the last one closes it
_attached: list[Client] = []  # of a process that runs tasks
_live: Live | None = None  # a page of its own
_started_ray = False  # by a client, so that the last one stops it
_collections: ContextVar[bool] = ContextVar("collections", default=False)


class Client(distributed.Client):
    """The client of `distributed`, on Ray.

    Parameters
    ----------
    address : str, optional
        Ray cluster to join; by default the one that this process is connected to, else a private
        one is started. The address of the scheduler of another client (``tcp://...``) connects to
        that.
    **options
        ``num_cpus``, ``num_gpus``, ``object_store_memory``, ``spill_directory`` of the private Ray
        (see `enable`), or what `distributed.LocalCluster` takes: ``n_workers`` times
        ``threads_per_worker`` is ``num_cpus``. Others are those of `distributed.Client`.

    Raises
    ------
    ConfigError, ClusterError
    UnsupportedError
        A keyword has no equivalent on Ray.

    Examples
    --------
    >>> with Client(n_workers=2, threads_per_worker=1) as client:  # doctest: +SKIP
    ...     client.gather(client.map(abs, [-1, 2]))
    [1, 2]
    """

    def __init__(
        self,
        address: Any = None,
        loop: Any = None,
        *,
        set_as_default: bool = True,
        asynchronous: bool = False,
        name: str | None = None,
        timeout: Any = None,
        scheduler_file: str | None = None,
        **options: Any,
    ) -> None:
        self._exo = Scheduler()
        self._results: dict[Any, Promise] = {}
        self._sent: set[Any] = set()  # keys of results that the scheduler is sent
        self._settled: set[Any] = set()  # and those that it has
        self._watcher: threading.Thread | None = None
        self._owns_cluster = False
        if scheduler_file is None and not _is_scheduler(address):
            address = self._start_cluster(address, options, loop=loop, asynchronous=asynchronous)
        if set_as_default and not _settings:
            new = {"scheduler": "dask.distributed", "dataframe.shuffle.method": "tasks"}
            _settings.append(dask.config.set(new))
        super().__init__(
            address,
            loop=loop,
            set_as_default=set_as_default,
            scheduler_file=scheduler_file,
            asynchronous=asynchronous,
            name=name,
            **({} if timeout is None else {"timeout": timeout}),
        )
        self._stream_handlers["settled"] = self._settle
        _open_clients.add(self)

    @classmethod
    def for_worker(cls, worker: distributed.Worker, timeout: float | None) -> Client:
        """Return a client for the tasks of a worker."""
        return cls(
            worker.scheduler,
            loop=worker.loop,
            asynchronous=distributed.utils.in_async_call(worker.loop),
            name="worker",
            timeout=timeout,
        )

    def _start_cluster(
        self, address: Any, options: Mapping[str, Any], *, loop: Any, asynchronous: bool
    ) -> RayCluster:
        global _cluster, _started_ray  # noqa: PLW0603  one for the process
        workers, new = cluster_options(address, options)
        with _lock, dask.config.set(new):
            on_ray.check_effect(Config.current())
            _started_ray = _started_ray or not on_ray.running()
            connect(Config.current())
            atexit.register(_close_all)  # before Ray ends, at what `connect` has registered
            self._owns_cluster = True
            if asynchronous or _cluster is None or _cluster.status.name != "running":
                workers["host"] = on_ray.host()
                _cluster = RayCluster(loop=loop, asynchronous=asynchronous, **workers)
            return _cluster

    @property
    def dashboard_link(self) -> str:
        """Address of the live page of this program, which starts when it is first requested."""
        global _live  # noqa: PLW0603  one for the process
        with _lock:
            _live = _live or Live()
            return _live.url

    def get(self, dsk: Any, keys: Any, sync: bool = True, **kwargs: Any) -> Any:
        """Compute keys of a graph; Dask calls this. With ``sync=False``, return futures."""
        if _places(kwargs):
            return super().get(dsk, keys, sync=sync, **kwargs)
        if not sync:
            return pack_data(keys, self._compute_later(dsk, list(flatten([keys])), kwargs))
        compute = partial(self._exo, dsk, keys, **_known(kwargs))
        if self.asynchronous:
            return asyncio.to_thread(compute)
        with _seceded():
            return compute()

    def compute(self, collections: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute collections in the background; see `distributed.Client.compute`."""
        with setting(_collections, not _places(kwargs)):
            return super().compute(collections, *args, **kwargs)

    def persist(self, collections: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute collections into the object store; see `distributed.Client.persist`."""
        with setting(_collections, not _places(kwargs)):
            return super().persist(collections, *args, **kwargs)

    def _graph_to_futures(self, expr: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Start tasks, or a computation of `dask_exo.Scheduler` if they are of a collection."""
        if not _collections.get():
            return super()._graph_to_futures(expr, keys, *args, **kwargs)
        options = {"retries": kwargs.get("retries"), "priority": kwargs.get("user_priority")}
        return self._compute_later(expr, list(keys), {k: v for k, v in options.items() if v})

    def _compute_later(
        self, expr: Any, keys: list[Any], kwargs: Mapping[str, Any]
    ) -> dict[Any, Any]:
        """Start computing keys of a collection; return their futures."""
        new = [key for key in dict.fromkeys(keys) if key not in self.futures]
        promises = self._exo.start(expr, new, **_known(kwargs)) if new else {}
        self._send_to_scheduler({"op": "expect", "keys": new})
        with setting(_collections, False):
            futures = super()._graph_to_futures(
                LLGExpr({key: Task(key, _never, key) for key in new}),
                new,
                span_metadata=distributed.spans.SpanMetadata(collections=[]),
                resources={PENDING: 1},
            )
        futures.update({key: distributed.Future(key, self) for key in keys if key not in futures})
        self._sent.difference_update(new)
        self._results.update(promises)  # the scheduler expects them by now
        if promises:
            self._watch()
        return futures

    def _watch(self) -> None:
        with _lock:
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._deliver, name="dask_exo-results", daemon=True
                )
                self._watcher.start()

    def _deliver(self) -> None:
        """Give results to the scheduler as they are computed, until none is pending."""
        while True:
            with _lock:
                pending = {k: p for k, p in list(self._results.items()) if k not in self._sent}
                if not pending or self.status in ("closing", "closed"):
                    self._watcher = None
                    return
            done, _ = persisted.wait(list(pending.values()), timeout=POLL, count=1)
            ended = {id(promise) for promise in done}
            results = {k: _sealed(k, p) for k, p in pending.items() if id(p) in ended}
            if results:
                self._sent.update(results)
                self._send_to_scheduler({"op": "fulfil", "results": results})

    def _settle(self, key: Any) -> None:
        """Hold a result no more than its future does: the scheduler has it, or nobody needs it."""
        self._settled.add(key)
        if key not in self.futures:
            self._forget(key)

    def _forget(self, key: Any) -> None:
        self._results.pop(key, None)
        self._sent.discard(key)
        self._settled.discard(key)

    def _release_key(self, key: Any) -> None:
        if key in self._settled:
            self._forget(key)
        super()._release_key(key)

    async def _gather_remote(self, direct: bool, local_worker: Any) -> dict[str, Any]:
        """Gather values from workers, and read those that are in the object store."""
        async with self._gather_semaphore:
            keys = list(self._gather_keys)  # type: ignore[has-type]
            self._gather_keys = self._gather_future = None
            who_has = await retry_operation(self.scheduler.who_has, keys=keys)
            data, missing, failed, _ = await gather_from_workers(who_has, rpc=self.rpc, who=self.id)
            lost = [*missing, *failed]
            try:
                data = await asyncio.to_thread(_read, data)
            except ClusterError:  # a worker has just died
                lost += keys_of_stored(data)
        if lost:
            return {"status": "error", "keys": lost}
        return {"status": "OK", "data": data}

    def promise_of(self, key: Any) -> Promise | None:
        """Return the value of a future as `dask_exo.Scheduler` takes it; None if there is none."""
        if key not in self.futures:
            return None
        if key in self._results:
            return self._results[key]
        promise = Promise(on_ray.RayFutures())
        future = distributed.Future(key, self)
        self.loop.add_callback(self._resolve, future, weakref.ref(promise))
        return promise

    async def _resolve(self, future: distributed.Future, promise: Any) -> None:
        """Fulfil a promise with the value of a future."""
        await future._state.wait()
        target: Promise | None = promise()
        if target is None:
            return
        try:
            value = await self._held(future)
        except Exception as error:  # noqa: BLE001  raised where the value is used
            target.fail(error)
        else:
            stored = isinstance(value, Stored)
            target.fulfil(Remote(value.ref, value.nbytes) if stored else Local(value))

    async def _held(self, future: distributed.Future) -> Any:
        """Return the value of a future as workers hold it, or raise its exception."""
        if future.status != "finished":
            await future._result()  # raises
        who_has = await self.scheduler.who_has(keys=[future.key])
        data, *_ = await gather_from_workers(who_has, rpc=self.rpc, who=self.id)
        return data[future.key]

    async def _close(self, fast: bool = False) -> None:
        _open_clients.discard(self)
        await super()._close(fast)
        if _settings and not any(client._set_as_default for client in _open_clients):
            with _settings.pop():
                pass
        if self.asynchronous and (cluster := self._last_of()):
            await cluster.close()
            await asyncio.to_thread(_leave)

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the client; the last one stops workers and scheduler, and a Ray it has started."""
        closed = super().close(*args, **kwargs)
        if not self.asynchronous and (cluster := self._last_of()):
            cluster.close()
            _leave()
        return closed

    def _last_of(self) -> RayCluster | None:
        """Return the cluster to close, if this was its last client."""
        global _cluster
        if not self._owns_cluster:  # without the lock: see `__del__`
            return None
        with _lock:
            if not self._owns_cluster or any(c._owns_cluster for c in _open_clients):
                return None
            self._owns_cluster, cluster, _cluster = False, _cluster, None
            return cluster

    def __del__(self) -> None:
        # The collector may run this in any thread, also in the one that the holder of `_lock` waits
        # for. So the cluster of a client that was not closed is left to the next one, or the end.
        self._owns_cluster = False
        if hasattr(self, "status"):  # its constructor has not failed early
            super().__del__()

    def shutdown(self) -> Any:
        """Close all clients; a Ray cluster that was joined continues."""
        if self.asynchronous:
            return self._close()
        return _close_all()


def _close_all() -> None:
    for client in list(_open_clients):
        with contextlib.suppress(Exception):  # at the end of the program
            client.close()


def _leave() -> None:
    """Stop background work, and Ray if a client has started it."""
    global _live, _started_ray  # noqa: PLW0603  one for the process
    stop_all()
    if _live is not None:
        _live.stop()
        _live = None
    if _started_ray:
        _started_ray = False
        on_ray.disconnect()


def _never(key: Any) -> None:
    raise ClusterError(f"{key!r} ran before its collection was computed: compute it again")


def _sealed(key: Any, promise: Promise) -> tuple[bytes, bool]:
    """Return a result as it is sent to the scheduler, and whether it is `Stored`.

    Connections log what they have sent, so that must not hold a ref.
    """
    try:
        location = promise.location()
        if isinstance(location, Local):
            return cloudpickle.dumps(location.value), False
        return cloudpickle.dumps(Stored(location.ref, location.nbytes)), True
    except Exception as error:  # noqa: BLE001  raised where the value is used
        return cloudpickle.dumps(Failure.of(key, error)), False


def _read(data: Mapping[Any, Any]) -> dict[Any, Any]:
    stored = set(keys_of_stored(data))
    return {k: writable(v) if k in stored else v for k, v in opened(data).items()}


def _places(kwargs: Mapping[str, Any]) -> bool:
    """Return whether tasks of a graph request workers."""
    names = ("workers", "allow_other_workers", "resources", "actors")
    return any(kwargs.get(name) for name in names)


def _known(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that `dask_exo.Scheduler` takes."""
    return {k: v for k, v in kwargs.items() if k in ("retries", "priority", "callbacks") and v}


@contextlib.contextmanager
def _seceded() -> Iterator[None]:
    """Release the slot of a task of a worker while it waits."""
    if not getattr(thread_state, "key", False):
        yield
        return
    distributed.secede()
    try:
        yield
    finally:
        distributed.rejoin()


def promise_of(key: Any) -> Promise | None:
    """Return the value of a future of this process as `dask_exo.Scheduler` takes it."""
    promises = (client.promise_of(key) for client in list(_open_clients))
    return next((promise for promise in promises if promise is not None), None)


persisted.resolvers.append(promise_of)


def get_client(
    address: Any = None, timeout: Any = None, resolve_address: bool = True
) -> distributed.Client:
    """Return the client of this process; in a task, its own.

    Raise `NoClientError` if the program has no client.
    """
    if address is None:
        attach()
    try:
        return distributed.get_client(address, timeout, resolve_address)
    except ValueError as error:
        raise NoClientError("there is no client: create one with dask_exo.Client()") from error


def attach() -> None:
    """Connect the process of a task to the client of its program, unless it is or there is none."""
    with _lock:
        is_open = any(client.status == "running" for client in _open_clients)
        if not is_open and on_ray.running() and (address := on_ray.published_scheduler()):
            _attached.append(Client(address, name="task"))


def _is_scheduler(address: Any) -> bool:
    if isinstance(address, str):
        return address.startswith(("tcp://", "tls://", "inproc://"))
    return address is not None and not isinstance(address, (int, float))
