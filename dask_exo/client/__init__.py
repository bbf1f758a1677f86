"""The client of `distributed`, on Ray, and everything that its programs import beside it.

>>> from dask_exo.client import Client, as_completed  # as from `distributed`
"""

from distributed import (
    Event,
    Future,
    Lock,
    Queue,
    Semaphore,
    Variable,
    as_completed,
    default_client,
    fire_and_forget,
    futures_of,
    rejoin,
    secede,
    wait,
    worker_client,
)
from distributed.client import ALL_COMPLETED, FIRST_COMPLETED

from dask_exo.client.client import Client, get_client

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "Client",
    "Event",
    "Future",
    "Lock",
    "Queue",
    "Semaphore",
    "Variable",
    "as_completed",
    "default_client",
    "fire_and_forget",
    "futures_of",
    "get_client",
    "rejoin",
    "secede",
    "wait",
    "worker_client",
]
