"""The waist on Ray, and the connection to a cluster. Only this package imports ray.

The driver owns every ref: tasks neither `put` values nor hold refs. So Ray can recompute
whatever is lost with a worker or a node.
"""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before ray reads it
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

from dask_exo.cluster.on_ray.connection import (
    Cluster,
    check_effect,
    connect,
    disconnect,
    gpus,
    running,
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
