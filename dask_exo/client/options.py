"""Translation of `distributed.Client` keywords to settings of a private Ray."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from dask.system import CPU_COUNT

from dask_exo.errors import ConfigError, UnsupportedError

OURS = ("num_cpus", "num_gpus", "object_store_memory", "spill_directory")
SIZES = ("n_workers", "threads_per_worker", "processes")
WITHOUT_EFFECT = (
    *("connection_limit", "dashboard_address", "deserializers", "direct_to_workers", "extensions"),
    *("heartbeat_interval", "host", "interface", "loop", "memory_limit", "name", "preload"),
    *("preload_argv", "protocol", "resources", "scheduler_kwargs", "scheduler_port"),
    *("serializers", "silence_logs", "timeout", "worker_class", "worker_dashboard_address"),
)
QUIET = {"dashboard_address", "loop", "name", "silence_logs", "timeout", "worker_dashboard_address"}


def settings(address: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``exo`` settings for the arguments of a `Client`.

    Raises
    ------
    ConfigError
        The address is not one of Ray.
    UnsupportedError
        The client is asynchronous, or has the security of `distributed`.
    TypeError
        A keyword is unknown.

    Warns
    -----
    UserWarning
        A keyword has no effect here.

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
    idle = sorted(set(WITHOUT_EFFECT) & options.keys() - QUIET)
    if idle:
        warnings.warn(
            f"Client({', '.join(idle)}) has no effect on Ray; set object_store_memory for "
            f"the size of the store, and spill_directory for spilled values",
            stacklevel=3,
        )
    if options.get("processes") is False:
        warnings.warn(
            "Client(processes=False): tasks run in processes of Ray, so they do not see changes "
            "that others make to objects in memory",
            stacklevel=3,
        )
    found = {name.replace("_", "-"): options[name] for name in OURS if name in options}
    if "local_directory" in options:
        found.setdefault("spill-directory", str(options["local_directory"]))
    slots = _slots(options)
    if slots is not None:
        found.setdefault("num-cpus", slots)
    if address is not None:
        found["address"] = _ray_address(address)
    return {f"exo.{name}": value for name, value in found.items()}


_REFUSED = {
    "asynchronous": "there are no asynchronous clients; call result() in a thread "
    "(asyncio.to_thread)",
    "scheduler_file": "Ray clusters are found by their address, Client('host:6379')",
    "security": "Ray has its own TLS, see its documentation (RAY_USE_TLS)",
}


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
            f"Client({address!r}) is the address of a scheduler of distributed; give the one of a "
            f"Ray cluster ('host:6379')"
        )
    return address
