"""Arguments of a client: those of `distributed` and of Ray, as settings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from dask.system import CPU_COUNT

from dask_exo.cluster import on_ray
from dask_exo.errors import ConfigError, UnsupportedError

OURS = ("num_cpus", "num_gpus", "object_store_memory", "spill_directory")
SIZES = ("n_workers", "threads_per_worker", "processes")
WITHOUT_EFFECT = (
    *("connection_limit", "dashboard_address", "deserializers", "direct_to_workers", "extensions"),
    *("heartbeat_interval", "host", "interface", "loop", "memory_limit", "name", "preload"),
    *("preload_argv", "protocol", "scheduler_kwargs", "scheduler_port"),
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
_OTHERS = ("local_directory", "resources")
_REFUSED = {
    "scheduler_file": "Ray clusters are found by their address, Client('host:6379')",
    "security": "Ray has its own TLS, see its documentation (RAY_USE_TLS)",
}


def cluster_options(
    address: Any, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a `RayCluster`, and ``exo`` settings, for those of a `Client`.

    The latter are as `distributed` has them. Warn about arguments without effect; raise for those
    that have no equivalent on Ray.

    Examples
    --------
    >>> cluster_options(None, {"n_workers": 4, "threads_per_worker": 2})[0]
    {'n_workers': 4, 'nthreads': 2}
    """
    options = {name: value for name, value in options.items() if value is not None}
    unknown = options.keys() - {*OURS, *SIZES, *WITHOUT_EFFECT, *_REFUSED, *_OTHERS}
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
    workers = _workers(options)
    if workers and not on_ray.running():
        keys.setdefault("num-cpus", workers["n_workers"] * workers["nthreads"])
    if address is not None:
        keys["address"] = _ray_address(address)
    if "resources" in options:
        workers["resources"] = options["resources"]
    return workers, {f"exo.{name}": value for name, value in keys.items()}


def _workers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of workers and of their threads; defaults are those of `distributed`."""
    if not {"n_workers", "threads_per_worker"} & options.keys():
        return {}
    workers, threads = options.get("n_workers", 0), options.get("threads_per_worker", 0)
    workers = workers or max(1, CPU_COUNT // threads)
    return {"n_workers": workers, "nthreads": threads or max(1, CPU_COUNT // workers)}


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
