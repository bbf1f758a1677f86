"""A client as in `distributed`, on Ray: submit calls, get futures."""

from __future__ import annotations

import contextlib
import html
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import dask.config
from dask.base import is_dask_collection
from dask.core import flatten
from dask.delayed import delayed
from dask.system import CPU_COUNT
from dask.utils import parse_timedelta

from dask_exo.client.future import Future, rebuild
from dask_exo.client.submitter import Submitter, no_workers
from dask_exo.client.wait import futures_of
from dask_exo.cluster import on_ray
from dask_exo.config import Config
from dask_exo.dask_adapter import FinalizeCompute, collections_to_expr
from dask_exo.errors import ConfigError, NoClientError, UnsupportedError
from dask_exo.execution.background import stop_all
from dask_exo.execution.persisted import live_futures
from dask_exo.scheduler import Scheduler, connect

_lock = threading.RLock()
_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_defaults: list[weakref.ref[Client]] = []
_settings: list[dask.config.set] = []  # of the first default client; their exit restores Dask's
_implicit_client: Client | None = None  # in tasks, and in programs that only called `enable`


class Client(Submitter):
    """The futures of `distributed`, on Ray.

    Parameters
    ----------
    address : str, optional
        Ray cluster to join; by default the one that this process is connected to, else a private
        one is started.
    set_as_default : bool
        Whether Dask computes collections with this client until it is closed.
    **options
        ``num_cpus``, ``num_gpus``, ``object_store_memory``, ``spill_directory`` of the private Ray
        (see `enable`), or what `distributed.LocalCluster` takes: ``n_workers`` times
        ``threads_per_worker`` is ``num_cpus``.

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

    asynchronous = False

    def __init__(self, address: Any = None, *, set_as_default: bool = True, **options: Any) -> None:
        new = settings(address, options)
        self.id = f"Client-{uuid.uuid4()}"
        with _lock, dask.config.set(new):
            _check_settings(new)
            self._started_ray = not on_ray.running()
            self._cluster = connect(Config.current())
            super().__init__(on_ray.RayFutures())
            self._scheduler = Scheduler()
            _open_clients.add(self)
        if set_as_default:
            _become_default(self)

    @classmethod
    def current(cls, allow_global: bool = True) -> Client:
        """Return the default client; see `get_client`."""
        return get_client()

    def close(self, timeout: float | str | None = None) -> None:
        """Restore Dask's settings; stop the private Ray with its last client."""
        global _implicit_client
        with _lock:
            if self.status == "closed":
                return
            self.status = "closed"
            _open_clients.discard(self)
            _resign(self)
            others = [client for client in _open_clients if client is not _implicit_client]
            if self._started_ray and others:
                others[0]._started_ray = True
            elif self._started_ray:
                if _implicit_client is not None:
                    _implicit_client.status, _implicit_client = "closed", None
                stop_all()
                on_ray.disconnect()

    def shutdown(self) -> None:
        """Close all clients; a Ray cluster that was joined continues."""
        for client in list(_open_clients):
            client.close()

    def compute(
        self,
        collections: Any,
        sync: bool = False,
        optimize_graph: bool = True,
        workers: Any = None,
        traverse: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Compute a collection, or a sequence of them, in the background; return futures.

        Other values in a sequence are returned as they are. With ``sync``, wait and return values.
        Other keywords are those of `Scheduler.__call__`.
        """
        self._check_open()
        no_workers(workers)
        single = not isinstance(collections, (list, tuple, set, frozenset))
        values = [collections] if single else list(collections)
        if traverse:
            nested = (list, set, tuple, dict)
            values = [delayed(value) if isinstance(value, nested) else value for value in values]
        lazy = [value for value in values if is_dask_collection(value)]
        futures = iter(self._compute(lazy, optimize_graph, kwargs))
        results = [next(futures) if is_dask_collection(value) else value for value in values]
        results = self.gather(results) if sync else results
        return results[0] if single else results

    def _compute(
        self, lazy: list[Any], optimize_graph: bool, kwargs: dict[str, Any]
    ) -> list[Future]:
        if not lazy:
            return []
        expr = FinalizeCompute(collections_to_expr(lazy, optimize_graph)).optimize()
        keys = list(flatten(expr.__dask_keys__()))
        futures = {
            key: future for key in keys if isinstance(future := live_futures.get(key), Future)
        }
        new = [key for key in dict.fromkeys(keys) if key not in futures]
        if new:
            promises = self._scheduler.start(expr, new, **kwargs)
            futures.update((key, rebuild(key, promises[key])) for key in new)
        return [futures[key] for key in keys]

    def persist(
        self, collections: Any, optimize_graph: bool = True, workers: Any = None, **kwargs: Any
    ) -> Any:
        """Compute collections into the object store, in the background. See `Scheduler.persist`."""
        self._check_open()
        no_workers(workers)
        if isinstance(collections, (list, tuple, set, frozenset)):
            return self._scheduler.persist(list(collections), optimize_graph, **kwargs)
        return self._scheduler.persist([collections], optimize_graph, **kwargs)[0]

    def get(self, dsk: Any, keys: Any, sync: bool = True, **kwargs: Any) -> Any:
        """Compute keys of a graph; Dask calls this if the client is the scheduler.

        With ``sync=False``, return futures.
        """
        self._check_open()
        if sync:
            return self._scheduler(dsk, keys, **kwargs)
        promises = self._scheduler.start(dsk, keys, **kwargs)
        return _nested(keys, {k: rebuild(k, promise) for k, promise in promises.items()})

    def cancel(self, futures: Any, asynchronous: Any = None, force: bool = False) -> None:
        """Cancel the tasks of futures, and release their values."""
        for future in futures_of(futures):
            future.cancel()

    def nthreads(self, workers: Any = None) -> dict[str, int]:
        """Return the slots of each node."""
        return {node.id: node.slots for node in self._futures.nodes()}

    ncores = nthreads

    def wait_for_workers(self, n_workers: int, timeout: float | str | None = None) -> None:
        """Wait until the cluster has ``n_workers`` slots, or raise `TimeoutError`."""
        seconds = parse_timedelta(timeout)
        end = None if seconds is None else time.perf_counter() + seconds
        while sum(self.nthreads().values()) < n_workers:
            if end is not None and time.perf_counter() > end:
                raise TimeoutError(f"the cluster has {self.nthreads()} slots, not {n_workers}")
            time.sleep(0.2)

    def scheduler_info(self, n_workers: int = -1) -> dict[str, Any]:
        """Return the address of the cluster, and the slots and store of each node."""
        nodes = self._futures.nodes()
        workers = {n.id: {"nthreads": n.slots, "object_store": n.store} for n in nodes}
        return {"type": "Ray", "id": self.id, "address": self._cluster.address, "workers": workers}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            import distributed

            if hasattr(distributed.Client, name):
                raise UnsupportedError(
                    f"Client.{name} does not exist on Ray; docs/client.md says what to use instead"
                )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as the client of the receiving process."""
        return get_client, ()

    def __repr__(self) -> str:
        """Name the cluster."""
        return f"<Client: {self.status}, Ray at {self._cluster.address}>"

    def _repr_html_(self) -> str:
        address = html.escape(self._cluster.address)
        return f"<b>Client</b>: {self.status}, Ray at <code>{address}</code>"


def get_client(
    address: object = None, timeout: object = None, resolve_address: bool = True
) -> Client:
    """Return the client of this process: the newest default one; in a task, its own.

    Raise `NoClientError` if this process is not connected to Ray.
    """
    global _implicit_client  # noqa: PLW0603  there is one connection
    with _lock:
        for ref in reversed(_defaults):
            client = ref()
            if client is not None and client.status == "running":
                return client
        if not on_ray.running():
            raise NoClientError("there is no client: create one with dask_exo.Client()")
        cluster, _ = on_ray.connect(Config.current())
        if _implicit_client is None or _implicit_client._cluster is not cluster:
            _implicit_client = Client(set_as_default=False)
        return _implicit_client


default_client = get_client


@contextlib.contextmanager
def worker_client(timeout: object = None, separate_thread: bool = True) -> Iterator[Client]:
    """Yield the client of a task; see `get_client`."""
    yield get_client()


def secede() -> None:
    """Do nothing: a task that waits for futures releases its slot automatically."""


def rejoin() -> None:
    """Do nothing; see `secede`."""


def _check_settings(new: Mapping[str, Any]) -> None:
    """Raise if settings contradict the cluster that this process is connected to."""
    if not on_ray.running():
        return
    cluster, _ = on_ray.connect(Config.current())
    actual = {
        "exo.address": cluster.address,
        "exo.num-cpus": sum(node.slots for node in on_ray.RayFutures().nodes()),
    }
    conflicts = sorted(name for name, value in new.items() if actual.get(name) != value)
    if conflicts:
        raise ConfigError(
            f"this process is connected to the Ray cluster at {cluster.address} "
            f"({actual['exo.num-cpus']} slots) already, so {conflicts} have no effect: close the "
            f"client that started it, or call dask_exo.disable() or ray.shutdown() first"
        )


def _become_default(client: Client) -> None:
    with _lock:
        if not _settings:
            new = {"scheduler": client, "dataframe.shuffle.method": "tasks"}
            _settings.append(dask.config.set(new))
        dask.config.set(scheduler=client)
        _defaults.append(weakref.ref(client))


def _resign(client: Client) -> None:
    """Restore the previous default client, or Dask's settings."""
    refs = [ref for ref in _defaults if ref() is client]
    _defaults[:] = [ref for ref in _defaults if ref() not in (client, None)]
    if refs and _defaults:
        dask.config.set(scheduler=_defaults[-1]())
    elif refs:
        _settings.pop().__exit__(None, None, None)


def _nested(keys: Any, values: Mapping[Any, Any]) -> Any:
    return [_nested(key, values) for key in keys] if isinstance(keys, list) else values[keys]


OURS = ("num_cpus", "num_gpus", "object_store_memory", "spill_directory")
SIZES = ("n_workers", "threads_per_worker", "processes")
WITHOUT_EFFECT = (
    *("connection_limit", "dashboard_address", "deserializers", "direct_to_workers", "extensions"),
    *("heartbeat_interval", "host", "interface", "loop", "memory_limit", "name", "preload"),
    *("preload_argv", "protocol", "resources", "scheduler_kwargs", "scheduler_port"),
    *("serializers", "silence_logs", "timeout", "worker_class", "worker_dashboard_address"),
)
NO_WARNING = {
    "dashboard_address",
    "loop",
    "name",
    "silence_logs",
    "timeout",
    "worker_dashboard_address",
}
_REFUSED = {
    "asynchronous": "there are no asynchronous clients; call result() in a thread "
    "(asyncio.to_thread)",
    "scheduler_file": "Ray clusters are found by their address, Client('host:6379')",
    "security": "Ray has its own TLS, see its documentation (RAY_USE_TLS)",
}


def settings(address: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``exo`` settings for the arguments of a `Client`, as `distributed` has them.

    Warn about arguments without effect; raise for those that have no equivalent on Ray.

    Examples
    --------
    >>> settings(None, {"n_workers": 4, "threads_per_worker": 2})
    {'exo.num-cpus': 8}
    """
    options = {name: value for name, value in options.items() if value is not None}
    unknown = options.keys() - {*OURS, *SIZES, *WITHOUT_EFFECT, *_REFUSED, "local_directory"}
    if unknown:
        raise TypeError(f"Client() got unexpected keyword arguments {sorted(unknown)}")
    for name, instead in _REFUSED.items():
        if options.get(name):
            raise UnsupportedError(f"Client({name}=...): {instead}")
    ignored = sorted(set(WITHOUT_EFFECT) & options.keys() - NO_WARNING)
    if ignored:
        warnings.warn(
            f"Client({', '.join(ignored)}) has no effect on Ray; set object_store_memory for "
            f"the size of the store, and spill_directory for spilled values",
            stacklevel=3,
        )
    if options.get("processes") is False:
        warnings.warn(
            "Client(processes=False): tasks run in processes of Ray, so they do not see changes "
            "that others make to objects in memory",
            stacklevel=3,
        )
    keys = {name.replace("_", "-"): options[name] for name in OURS if name in options}
    if "local_directory" in options:
        keys.setdefault("spill-directory", str(options["local_directory"]))
    slots = _slots(options)
    if slots is not None:
        keys.setdefault("num-cpus", slots)
    if address is not None:
        keys["address"] = _ray_address(address)
    return {f"exo.{name}": value for name, value in keys.items()}


def _slots(options: Mapping[str, Any]) -> int | None:
    """Return the number of slots; defaults are those of `distributed`."""
    if not {"n_workers", "threads_per_worker"} & options.keys():
        return None
    workers, threads = options.get("n_workers", 0), options.get("threads_per_worker", 0)
    workers = workers or max(1, CPU_COUNT // threads)
    return int(workers * (threads or max(1, CPU_COUNT // workers)))


def _ray_address(address: Any) -> str:
    if not isinstance(address, str):
        raise ConfigError(
            f"Client({type(address).__name__}): give the address of a Ray cluster ('host:6379', or "
            f"'auto' on a node of it), or nothing for a private one; clusters of distributed and "
            f"its relatives cannot be used"
        )
    scheme, _, _ = address.rpartition("://")
    if scheme and scheme != "ray":
        raise ConfigError(
            f"Client({address!r}) is the address of a scheduler of distributed; give that of a "
            f"Ray cluster ('host:6379')"
        )
    return address
