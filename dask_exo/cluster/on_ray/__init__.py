"""The waist on Ray, and the connection to a cluster. Only this package imports ray.

The driver owns every ref: tasks neither `put` values nor hold refs. So Ray can recompute
whatever is lost with a worker or a node.

Ray is imported with the first name that needs it, since that takes longer than a small computation.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_exo.cluster.on_ray.connection import (
        Cluster,
        check_effect,
        connect,
        disconnect,
        gpus,
        token,
    )
    from dask_exo.cluster.on_ray.futures import RayFutures
    from dask_exo.cluster.on_ray.services import Service, export
    from dask_exo.cluster.on_ray.tasks import check_submit_options

__all__ = [
    "Cluster",
    "RayFutures",
    "Service",
    "check_effect",
    "check_submit_options",
    "connect",
    "disconnect",
    "export",
    "gpus",
    "running",
    "token",
]

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray reads it
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

_MODULES = {
    "RayFutures": "futures",
    "Service": "services",
    "export": "services",
    "check_submit_options": "tasks",
}  # of the names that are not in `connection`


def running() -> bool:
    """Return whether this process is connected to a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'connection')}"), name)
