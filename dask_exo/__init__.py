"""Existing Dask code on Ray's shared-memory object store, with every shuffle an Exoshuffle.

>>> import dask, dask_exo
>>> with dask.config.set(scheduler=dask_exo.get):
...     dask.delayed(sum)([1, 2]).compute(scheduler="sync")
3
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dask_exo.cluster.object_storage import count_requests
from dask_exo.config import register_defaults
from dask_exo.dataframe.accessor import register_accessors
from dask_exo.dataframe.gpu_backend import register as register_backend
from dask_exo.dataframe.publish import published
from dask_exo.enable import disable, enable, get, register
from dask_exo.execution.requests import options
from dask_exo.planning.annotations import Rollback
from dask_exo.report.progress import progress
from dask_exo.report.report import last_report, performance_report
from dask_exo.scheduler import Scheduler

if TYPE_CHECKING:
    from dask_exo.client import Client, get_client
    from dask_exo.dataframe.explain import explain

__all__ = [
    "Client",
    "Rollback",
    "Scheduler",
    "disable",
    "enable",
    "explain",
    "get",
    "get_client",
    "last_report",
    "options",
    "performance_report",
    "progress",
    "published",
]

_LATER = {
    "Client": "dask_exo.client",
    "get_client": "dask_exo.client",
    "explain": "dask_exo.dataframe.explain",
}  # names that not every program needs, and modules that take a while to import
_PACKAGES = ("client", "pipeline", "training")  # the same

count_requests()
register_defaults()
register()
register_accessors()
register_backend()


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
