"""The waist on Ray. This is the only module that imports it.

The driver owns every ref: tasks neither `put` nor hold any, so that losing a worker or a node
loses nothing that Ray cannot make again. All code runs through two remote functions, which take
the function to call as an argument.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray reads it
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import psutil
import ray
import ray.exceptions
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dask_exo.config import Config
from dask_exo.errors import (
    ClusterError,
    ExoError,
    SpillError,
    StoreFullError,
    WorkerLostError,
)
from dask_exo.futures import Node, Ref, Store

# Big arrays come from reused memory and not from fresh pages (3 → 12 GB/s measured); bounded by
# the two thresholds, so that a worker still gives back what one large partition took.
WORKER_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}

LONGEST_DIRECTORY = 30  # characters


def _call(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*args)


def _iterate(fn: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
    yield from fn(*args)


class RayFutures:
    """`dask_exo.futures.Futures` on the Ray cluster that this process is connected to."""

    def __init__(self) -> None:
        self._call = ray.remote(_call)
        self._iterate = ray.remote(_iterate)
        self.calls = self.objects = 0

    def submit(self, fn: Callable[..., Any], *args: Any, node: str | None = None) -> Ref:
        """See `Futures.submit`."""
        return self._remote(self._call, 1, fn, args, node)

    def split(
        self, count: int, fn: Callable[..., Any], *args: Any, node: str | None = None
    ) -> list[Ref]:
        """See `Futures.split`."""
        if count == 1:  # Ray would not unpack a list of one
            return [self._remote(self._call, 1, _only, (fn, *args), node)]
        refs: list[Ref] = self._remote(self._call, count, fn, args, node)
        return refs

    def stream(
        self, count: int, fn: Callable[..., Any], *args: Any, node: str | None = None
    ) -> list[Ref]:
        """See `Futures.stream`."""
        if count == 1:
            return [self._remote(self._call, 1, _only, (fn, *args), node)]
        refs: list[Ref] = self._remote(self._iterate, count, fn, args, node)
        return refs

    def _remote(
        self, task: Any, count: int, fn: Callable[..., Any], args: Sequence[Any], node: str | None
    ) -> Any:
        self.calls += 1
        self.objects += count
        options: dict[str, Any] = {"num_returns": count, "name": fn.__name__}
        if node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
        with _translated():
            return task.options(**options).remote(fn, *args)

    def put(self, value: Any) -> Ref:
        """See `Futures.put`."""
        self.objects += 1
        with _translated():
            return ray.put(value)

    def wait(
        self, refs: Sequence[Ref], timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """See `Futures.wait`. Values stay where they are."""
        # Ray's default copies every value to this node
        if not refs:
            return [], []
        count = 1 if timeout is None else len(refs)
        with _translated():
            done, pending = ray.wait(
                list(refs), num_returns=count, timeout=timeout, fetch_local=False
            )
        return done, pending

    def get(self, refs: Sequence[Ref]) -> list[Any]:
        """See `Futures.get`."""
        with _translated():
            values: list[Any] = ray.get(list(refs))
        return values

    def cancel(self, refs: Sequence[Ref]) -> None:
        """See `Futures.cancel`."""
        for ref in refs:
            with contextlib.suppress(Exception):  # finished or gone: nothing to stop
                ray.cancel(ref, force=False)

    def nodes(self) -> list[Node]:
        """See `Futures.nodes`."""
        alive = [n for n in ray.nodes() if n["Alive"] and n["Resources"].get("CPU", 0) >= 1]
        if not alive:
            raise ClusterError("the Ray cluster has no node with a CPU: start one with --num-cpus")
        return [
            Node(
                n["NodeID"],
                int(n["Resources"]["CPU"]),
                int(n["Resources"].get("object_store_memory", 0)),
            )
            for n in sorted(alive, key=lambda n: n["NodeID"])
        ]

    def store(self) -> Store:
        """See `Futures.store`."""
        state = get_state_from_address(ray.get_runtime_context().gcs_address)
        stats = get_memory_info_reply(state).store_stats
        return Store(
            int(stats.object_store_bytes_used),
            int(stats.spilled_bytes_total),
            int(stats.restored_bytes_total),
        )


def _only(fn: Callable[..., Any], *args: Any) -> Any:
    (value,) = fn(*args)
    return value


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Ray's own failures as ours, saying what to change."""
    try:
        yield
    except ray.exceptions.OutOfDiskError as error:
        raise SpillError(
            "the disk for spilled objects is full: free space there, or set exo.spill-directory "
            f"to a larger one ({_first_line(error)})"
        ) from error
    except ray.exceptions.ObjectStoreFullError as error:
        raise StoreFullError(
            "a value does not fit into the object store: raise exo.object-store-memory, or make "
            f"smaller partitions ({_first_line(error)})"
        ) from error
    except ray.exceptions.OutOfMemoryError as error:
        raise WorkerLostError(
            "a task was stopped because its node ran out of memory, more often than it is "
            "retried: make smaller partitions, or run fewer tasks at a time with exo.num-cpus "
            f"({_first_line(error)})"
        ) from error
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.ObjectLostError,
        ray.exceptions.OwnerDiedError,
    ) as error:
        raise WorkerLostError(
            "the worker or node of a task died more often than it is retried "
            f"({_first_line(error)})"
        ) from error
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, (MemoryError, ExoError)) or not isinstance(cause, OSError):
            raise cause from error
        raise SpillError(f"a worker could not reach its storage: {cause}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# -- the cluster -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray.

    Attributes
    ----------
    address : str
        Where it is.
    directory : Path or None
        Of the private Ray that was started here; None where one was joined.
    """

    address: str
    directory: Path | None

    @property
    def private(self) -> bool:
        """Whether stopping it is ours to do."""
        return self.directory is not None


_lock = threading.Lock()
_cluster: Cluster | None = None


def running() -> bool:
    """Whether this process is connected to a Ray cluster, by whomever."""
    return bool(ray.is_initialized())


def connect(config: Config) -> tuple[Cluster, bool]:
    """Join the cluster at ``exo.address``, or start a private one, unless connected already.

    Returns
    -------
    cluster : Cluster
    new : bool
        Whether the connection was made by this call.

    Raises
    ------
    ClusterError, SpillError
    """
    global _cluster  # noqa: PLW0603  a process has one connection to Ray
    with _lock:
        if ray.is_initialized():
            if _cluster is None:
                _cluster = Cluster(ray.get_runtime_context().gcs_address, None)
            return _cluster, False
        _cluster = _start(config) if config.address is None else _join(config.address)
        return _cluster, True


def disconnect() -> None:
    """Leave the cluster, and stop it if it is private."""
    global _cluster  # noqa: PLW0603  a process has one connection to Ray
    with _lock:
        if _cluster is not None:
            ray.shutdown()
            if _cluster.directory is not None:
                shutil.rmtree(_cluster.directory, ignore_errors=True)
            _cluster = None


def _join(address: str) -> Cluster:
    try:
        _reach(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise ClusterError(
            f"no Ray cluster answers at exo.address={address!r} ({_reasons(error)}). Is it "
            f"running, and is the port open from here? A cluster that asks for a token needs "
            f"RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN. exo.address=null starts a "
            f"private Ray"
        ) from error
    return Cluster(address, None)


def _reach(address: str) -> None:
    """Knock at a ``host:port``; Ray itself would keep trying for minutes."""
    if address.startswith("ray://"):
        raise ValueError("Ray Client is not supported: run this process on a node of the cluster")
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _reasons(error: BaseException) -> str:
    """First lines of an exception and of those behind it."""
    lines = [_first_line(error)]
    while (cause := error.__cause__) is not None:
        lines.append(_first_line(cause))
        error = cause
    return "; ".join(dict.fromkeys(lines))


def _start(config: Config) -> Cluster:
    # Ray puts sockets below it, whose paths may have 107 characters in all
    long = len(tempfile.gettempdir()) > LONGEST_DIRECTORY
    directory = Path(tempfile.mkdtemp(prefix="exo-", dir="/tmp" if long else None))
    # failures of tasks whose refs were dropped are ours to report, not Ray's to print
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    options: dict[str, Any] = {}
    atexit.register(disconnect)  # a program that just ends leaves nothing behind
    if config.spill_directory is not None:
        options["object_spilling_directory"] = str(_spill_directory(config.spill_directory))
    saved = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    os.environ.update({k: v for k, v in WORKER_ENVIRONMENT.items() if k not in os.environ})
    try:
        ray.init(
            address="local",
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
            object_store_memory=config.object_store_memory,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(directory),
            _system_config={"min_spilling_size": _spill_batch(config.object_store_memory)},
            **options,
        )
    except Exception as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise ClusterError(f"a private Ray could not be started: {error}") from error
    finally:
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
    return Cluster(ray.get_runtime_context().gcs_address, directory)


def _spill_batch(store: int | None) -> int:
    """Bytes that Ray writes at a time: a quarter of the store, 100 MB (its default) at least.

    When the store is full Ray spills whatever no task is reading. Blocks that wait for their
    merge are among it, so the fewer the batches the less is spilled twice (measured: 1.24 → 1.07
    times the data).
    """
    store = store or int(0.3 * psutil.virtual_memory().total)  # Ray's own default
    return max(100 * 2**20, store // 4)


def _spill_directory(path: str) -> Path:
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"exo")
    except OSError as error:
        raise SpillError(
            f"exo.spill-directory={path!r} cannot be written: {error.strerror}. Name a directory "
            f"on a disk with room for the data"
        ) from error
    return directory
