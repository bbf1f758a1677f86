"""Locks, events, queues, variables and semaphores that tasks and driver share by name."""

from dask_exo.client.leases import Lock, Semaphore
from dask_exo.client.sync_primitives import Event, Queue, Variable

__all__ = ["Event", "Lock", "Queue", "Semaphore", "Variable"]
