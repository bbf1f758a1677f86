"""Connection of this process to a Ray cluster, either an existing or a private one."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import ray

from dask_exo.cluster.on_ray.node_state import NODE_VARIABLES, spill_batch
from dask_exo.cluster.on_ray.tasks import forget, forget_ended
from dask_exo.cluster.on_ray.translation import check_connection, first_line
from dask_exo.cluster.spilling import own, usable
from dask_exo.config import Config, from_files, without_effect
from dask_exo.errors import ClusterError, ConfigError, SpillError, WorkerLostError

WORKER_ENVIRONMENT = {**NODE_VARIABLES, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

# Ray would retry a task that ran out of memory unchanged, forever. After these retries, dask_exo
# runs it with fewer neighbours.
OOM_RETRIES = 3

_NEEDED = ("raylet", "gcs_server")  # processes without which a private Ray cannot go on
LONGEST_DIRECTORY = 30  # characters
WATCH_INTERVAL = 2.0  # seconds


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray.

    The directories are those of a private Ray that this process started, and None if it joined a
    cluster. ``settings`` is the configuration of the connection, and None if other code connected.
    ``dashboard`` is ``host:port`` of Ray's own page of a joined cluster, if known.
    """

    address: str
    directory: Path | None
    spill: Path | None = None
    settings: Mapping[str, Any] | None = None
    dashboard: str = ""

    @property
    def private(self) -> bool:
        """Return whether this process started the cluster and stops it."""
        return self.directory is not None


_lock = threading.RLock()
_stopped = threading.Event()  # no private Ray needs its thread any more
_cluster: Cluster | None = None
_process: int | None = None  # id of the process that connected


def alive() -> list[dict[str, Any]]:
    """Return the live nodes, as Ray describes them."""
    check_connection()
    return [node for node in ray.nodes() if node["Alive"]]


def gpus() -> float:
    """Return the number of GPUs, or logical slots of them, of the connected cluster."""
    return sum(node["Resources"].get("GPU", 0) for node in alive())


def connect(config: Config) -> tuple[Cluster, bool]:
    """Join the cluster at ``exo.address``, or start a private one, unless connected already.

    Return the connection, and whether this call made it.
    """
    global _cluster, _process  # noqa: PLW0603  a process has one connection to Ray
    if _process not in (None, os.getpid()):  # then a thread of the parent may have the lock
        raise ClusterError(
            "this process was forked from one that is connected to Ray, and cannot use that "
            "connection: start it with multiprocessing's 'spawn' method, or compute in the parent"
        )
    with _lock:
        _process = os.getpid()
        if died():
            disconnect()
        if ray.is_initialized():
            if _cluster is None:
                _cluster = Cluster(ray.get_runtime_context().gcs_address, None)
                _watch(_cluster)
            return _cluster, False
        address = config.address
        _cluster = _start_to_last(config) if address is None else _join(address, config.cluster)
        _watch(_cluster)
        return _cluster, True


def check_effect(config: Config) -> None:
    """Raise `ConfigError` if keys describe another cluster than the connected one.

    Tasks are exempt: they have the environment and settings of the driver.
    """
    if _cluster is None or ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        return
    keys = dict(config.cluster)
    if _cluster.settings is None and _same(keys.get("address"), _cluster.address):
        keys.pop("address", None)
    ignored = without_effect(_cluster.settings, keys, {})
    ignored = ignored and without_effect(_cluster.settings, keys, from_files())  # reads files
    if ignored:
        values = ", ".join(f"exo.{key}={keys[key]!r}" for key in ignored)
        raise ConfigError(
            f"{values} has no effect: this process is connected to the Ray cluster at "
            f"{_cluster.address} already. Leave it out, or call dask_exo.disable() or "
            f"ray.shutdown() first"
        )


def token() -> Literal["off", "used", "missing"]:
    """Return whether Ray sends a token, and whether this process has one; it is not checked."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return "off"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "used"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return "used" if path.is_file() else "missing"


def _same(address: str | None, connected: str) -> bool:
    """Return whether an address may name a cluster; hosts have several names, so ports decide."""
    return address in (None, "auto") or address.rpartition(":")[2] == connected.rpartition(":")[2]


def private() -> bool:
    """Return whether this process has started the Ray that it is connected to."""
    return _cluster is not None and _cluster.private


def died() -> str:
    """Return the process that the private Ray needs and that has ended; nothing if it is well."""
    node = ray._private.worker._global_node if private() else None
    ended: list[Any] = node.dead_processes() if node is not None else []
    return next((name for name, _ in ended if name in _NEEDED), "")


def check_alive() -> None:
    """Raise an error if Ray has died, or does not answer: it ends this process in a minute."""
    if not private():
        address = ray.get_runtime_context().gcs_address
        try:
            _reach(address)
        except OSError as error:
            raise ClusterError(
                f"the Ray cluster at {address} does not answer ({error}): compute again later"
            ) from error
    elif process := died():
        check_disk()
        text = "with all its values: compute again, and persist again what was persisted"
        raise WorkerLostError(f"the private Ray has died (its process {process} has ended), {text}")


def _watch(cluster: Cluster) -> None:
    """Say when a joined cluster stops answering: a call in progress waits until Ray ends us."""

    def work() -> None:
        told = False
        while _cluster is cluster and ray.is_initialized():
            try:
                _reach(address)
                told = False
            except OSError as error:
                if not told and ray.is_initialized():
                    sys.stderr.write(
                        f"dask_exo: the Ray cluster at {address} does not answer ({error}): unless "
                        f"it does soon, Ray ends this program\n"
                    )
                told = True
            time.sleep(WATCH_INTERVAL)

    if not cluster.private and ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        address = ray.get_runtime_context().gcs_address
        threading.Thread(target=work, name="dask_exo-watch", daemon=True).start()


def check_disk() -> None:
    """Raise `SpillError` if the private Ray cannot spill, which it would try forever."""
    if _cluster and _cluster.spill and not os.access(_cluster.spill, os.W_OK):
        path, what = str(_cluster.spill), "look at that disk, or set exo.spill-directory"
        raise SpillError(f"no value can be spilled, since {path!r} cannot be written: {what}")


def host() -> str:
    """Return the address by which all nodes reach this machine: loopback if Ray is private."""
    return "127.0.0.1" if private() else str(ray.util.get_node_ip_address())


def private_spill_directory() -> Path | None:
    """Return the spill directory of a private Ray; None if this process joined a cluster."""
    return _cluster.spill if _cluster is not None else None


def disconnect() -> None:
    """Leave the cluster, and stop it if it is private."""
    global _cluster  # noqa: PLW0603  a process has one connection to Ray
    with _lock:
        if _cluster is not None:
            forget(ends=_cluster.private)
            ray.shutdown()
            ray._private.worker._worker_logs_enabled = True
            if _cluster.directory is not None and _cluster.spill is not None:
                _remove(_cluster.directory, _cluster.spill)
            _cluster = None
            _stopped.set()


def _remove(*directories: Path) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _join(address: str, settings: Mapping[str, Any]) -> Cluster:
    try:
        _reach(address)
        with _oom_retries():
            context = ray.init(address=address, **_logs(settings))
            forget_ended()
    except Exception as error:
        raise ClusterError(
            f"no Ray cluster answers at exo.address={address!r} ({_reasons(error)}). Is it "
            f"running, and is the port open from here? A cluster that requires a token needs "
            f"RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN. exo.address=null starts a "
            f"private Ray"
        ) from error
    return Cluster(address, None, settings=settings, dashboard=str(context.dashboard_url or ""))


@contextlib.contextmanager
def _oom_retries() -> Iterator[None]:
    """Limit the retries of this process's tasks, unless the environment does; Ray reads it once."""
    name = "RAY_task_oom_retries"
    is_set = name in os.environ
    os.environ.setdefault(name, str(OOM_RETRIES))
    try:
        yield
    finally:
        if not is_set:
            del os.environ[name]


def _logs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Let Ray print its messages, or not, with its debugger's switch; return args of `ray.init`."""
    shown = ray._private.worker._worker_logs_enabled = settings.get("log") == "ray"
    return {"log_to_driver": shown, "logging_level": logging.INFO if shown else logging.ERROR}


def _reach(address: str) -> None:
    """Try to connect to a ``host:port``; Ray itself would keep trying for minutes."""
    if address.startswith("ray://"):
        raise ValueError("Ray Client is not supported: run this process on a node of the cluster")
    if "://" in address:
        raise ValueError(
            "this is the address of a scheduler of distributed, or of a page: a Ray cluster is "
            "named HOST:PORT, as `ray start` prints it, or auto"
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _reasons(error: BaseException) -> str:
    """Return the first lines of an exception and of its causes."""
    lines = [first_line(error)]
    while (cause := error.__cause__) is not None:
        lines.append(first_line(cause))
        error = cause
    return "; ".join(dict.fromkeys(lines))


def _start_to_last(config: Config) -> Cluster:
    """Start a private Ray from a thread that lives as long as Ray does.

    Linux kills the processes of Ray with the thread that has started them (``PR_SET_PDEATHSIG``),
    and the first caller may be a thread that ends soon.
    """
    if threading.current_thread() is threading.main_thread():
        return _start(config)
    _stopped.clear()
    future: Future[Cluster] = Future()

    def start_and_wait() -> None:
        try:
            future.set_result(_start(config))
        except BaseException as error:  # noqa: BLE001  raised where it was asked for
            future.set_exception(error)
        else:
            _stopped.wait()

    threading.Thread(target=start_and_wait, name="dask_exo-ray", daemon=True).start()
    return future.result()


def _start(config: Config, *, longer: bool = False) -> Cluster:
    spill_parent = None if config.spill_directory is None else usable(config.spill_directory)
    # Ray puts sockets below it, whose paths may have 107 characters in all
    long = len(tempfile.gettempdir()) > LONGEST_DIRECTORY
    directory = Path(tempfile.mkdtemp(prefix="exo-", dir="/tmp" if long else None))
    # dask_exo reports failures of tasks whose refs were dropped; Ray need not print them
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    atexit.register(disconnect)  # a program that ends without disconnecting leaves nothing behind
    spill = own(spill_parent or directory)
    store = config.object_store_memory or int(0.3 * psutil.virtual_memory().total)  # as Ray does
    limits = {"RAY_gcs_server_port_wait_time_s": "120"} if longer else {}
    added = (WORKER_ENVIRONMENT | limits).keys() - os.environ.keys()
    os.environ.update(WORKER_ENVIRONMENT | dict(os.environ) | limits)
    try:
        ray.init(
            address="local",
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
            object_store_memory=config.object_store_memory,
            include_dashboard=False,
            **_logs(config.cluster),
            _temp_dir=str(directory),
            object_spilling_directory=str(spill),
            _system_config={
                "min_spilling_size": spill_batch(store),
                "task_oom_retries": OOM_RETRIES,
                # workers import it at their start, not while the first task waits
                "preload_python_modules": ["dask_exo.cluster.on_ray.tasks"],
                # 10 s as by default, but Ray's first attempt at its own store is often too early
                "raylet_client_connect_timeout_milliseconds": 20,
                "raylet_client_num_connect_attempts": 2000 if longer else 500,
            },
        )
    except BaseException as error:
        ray.shutdown()
        _remove(directory, spill)
        if not longer and "timed out" in str(error).lower():
            sys.stderr.write("dask_exo: Ray did not start in time on this busy machine: again\n")
            return _start(config, longer=True)
        if not isinstance(error, Exception):
            raise
        size = config.object_store_memory
        note = "" if size is None else f"exo.object-store-memory is {size:,} bytes: change it, or "
        raise ClusterError(
            f"a private Ray could not be started: {str(error).rstrip('.')}. {note}look at this "
            f"machine with `dask exo doctor`"
        ) from error
    finally:
        for name in added:
            os.environ.pop(name, None)
    context = ray.get_runtime_context()
    return Cluster(context.gcs_address, directory, spill, config.cluster)
