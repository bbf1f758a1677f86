"""The waist on Ray, and the connection to a cluster. Only this package imports ray.

The driver owns every ref: tasks neither `put` values nor hold refs. So Ray can recompute
whatever is lost with a worker or a node.

Ray is imported with the first name that needs it, since that takes longer than a small computation.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dask_exo.cluster.on_ray.connection import (
        Cluster,
        check_effect,
        connect,
        gpus,
        host,
        token,
    )
    from dask_exo.cluster.on_ray.demand import scales
    from dask_exo.cluster.on_ray.futures import (
        RayFutures,
        export_ref,
        import_ref,
        warn_of_nodes,
    )
    from dask_exo.cluster.on_ray.node_state import lacking
    from dask_exo.cluster.on_ray.publication import (
        Publication,
        check_publication,
        delete_publication,
        publications,
        publish_values,
        published_values,
    )
    from dask_exo.cluster.on_ray.services import Service, export
    from dask_exo.cluster.on_ray.tasks import (
        check_submit_options,
        publish_scheduler,
        published_scheduler,
    )

__all__ = [
    "Cluster",
    "Publication",
    "RayFutures",
    "Service",
    "await_start",
    "check_effect",
    "check_publication",
    "check_submit_options",
    "connect",
    "delete_publication",
    "disconnect",
    "export",
    "export_ref",
    "gpus",
    "host",
    "import_ref",
    "in_background",
    "lacking",
    "publications",
    "publish_scheduler",
    "publish_values",
    "published_scheduler",
    "published_values",
    "running",
    "scales",
    "start",
    "token",
    "warn_of_nodes",
]

T = TypeVar("T")

SHORT_INTERVAL = 0.0005  # seconds; Ray starts in 5 s beside two busy threads, else in 40 s
_usual_interval = sys.getswitchinterval()

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray reads it
# tasks that request no GPU see none: a frame that one unpickles would open a GPU nobody counts
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")

_MODULES = {
    "RayFutures": "futures",
    "export_ref": "futures",
    "import_ref": "futures",
    "warn_of_nodes": "futures",
    "scales": "demand",
    "lacking": "node_state",
    "Publication": "publication",
    "check_publication": "publication",
    "delete_publication": "publication",
    "publications": "publication",
    "publish_values": "publication",
    "published_values": "publication",
    "Service": "services",
    "export": "services",
    "check_submit_options": "tasks",
    "publish_scheduler": "tasks",
    "published_scheduler": "tasks",
}  # of the names that are not in `connection`

_starting: list[Future[Any]] = []  # at most one: a connection that is made in the background
os.register_at_fork(after_in_child=_starting.clear)  # only the parent has its thread


def in_background(function: Callable[[], T]) -> Future[T]:
    """Call a function in a daemon thread.

    Meanwhile threads hand the interpreter lock over sooner: each step of the function waits for it.
    """
    future: Future[T] = Future()

    def main() -> None:
        sys.setswitchinterval(SHORT_INTERVAL)
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            future.set_exception(error)
        finally:
            sys.setswitchinterval(_usual_interval)

    threading.Thread(target=main, name="dask_exo-connect", daemon=True).start()
    return future


def start(connect: Callable[[], T]) -> Future[T]:
    """Connect in the background; whatever needs the connection waits for it.

    So do the program's own calls of Ray, which would start another cluster otherwise.
    """
    locked, imported = threading.Event(), "ray" in sys.modules

    def main() -> T:
        from ray._private.auto_init_hook import auto_init_lock

        with auto_init_lock:
            locked.set()
            return connect()

    atexit.register(disconnect)  # a program that ends meanwhile leaves nothing behind
    future = in_background(main)
    _starting.append(future)
    future.add_done_callback(lambda _: locked.set())  # an error may be earlier
    if imported:  # else the program's own import of it waits
        locked.wait()
    return future


def await_start() -> None:
    """Wait for a connection that is made in the background; raise its error, but only once."""
    for future in list(_starting):
        wait([future])
        _starting.clear()
        future.result()


def running() -> bool:
    """Return whether this process is connected to a Ray cluster, once `start` has ended."""
    wait(list(_starting))
    # another thread may be importing ray now
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", bool)
    return bool(is_initialized())


def disconnect() -> None:
    """Leave the cluster, and stop it if it is private."""
    running()  # waits
    _starting.clear()
    if f"{__name__}.connection" in sys.modules:
        import_module(f"{__name__}.connection").disconnect()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'connection')}"), name)
