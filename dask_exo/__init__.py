"""Existing Dask code on Ray's shared-memory object store, with every shuffle an Exoshuffle.

>>> import dask, dask_exo
>>> with dask.config.set(scheduler=dask_exo.get):
...     dask.delayed(sum)([1, 2]).compute(scheduler="sync")
3
"""

from dask_exo.config import register_defaults
from dask_exo.get import Scheduler, disable, enable, get, register

__all__ = ["Scheduler", "disable", "enable", "get"]

register_defaults()
register()
