"""The part of `distributed` that existing code uses, on Ray: a client, its futures, and locks.

>>> from dask_exo.client import Client, as_completed  # as from `distributed`
"""

from dask_exo.client.client import Client, default_client, get_client, rejoin, secede, worker_client
from dask_exo.client.future import Future
from dask_exo.client.sync_primitives import Event, Lock, Queue, Semaphore, Variable
from dask_exo.client.wait import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    as_completed,
    fire_and_forget,
    futures_of,
    wait,
)

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
