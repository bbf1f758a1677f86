"""Translation of Ray's exceptions to those of dask_exo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import ray.exceptions

from dask_exo.errors import (
    CancelledError,
    ExoError,
    OutOfMemoryError,
    SpillError,
    StoreFullError,
    ValueLostError,
    WorkerLostError,
)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate Ray's exceptions to ours, which say what to change."""
    try:
        yield
    except ray.exceptions.TaskCancelledError as error:
        raise CancelledError("the task was cancelled, or one whose result it needs") from error
    except ray.exceptions.OutOfDiskError as error:
        raise SpillError(
            "the disk for spilled objects is full: free space there, or set exo.spill-directory "
            f"to a larger one ({first_line(error)})"
        ) from error
    except ray.exceptions.ObjectStoreFullError as error:
        raise StoreFullError(
            "a value does not fit into the object store: raise exo.object-store-memory, or make "
            f"smaller partitions ({first_line(error)})"
        ) from error
    except ray.exceptions.OutOfMemoryError as error:
        raise OutOfMemoryError(
            "a task was stopped because its node ran out of memory, more often than it is "
            "retried: make smaller partitions, or run fewer tasks at a time with exo.num-cpus "
            f"({first_line(error)})"
        ) from error
    except ray.exceptions.ObjectLostError as error:
        raise ValueLostError(
            "a value was lost with its node and is not made again, since a worker that is kept (a "
            "class, a GPU) has made it, a program has put it into the store, or it was lost more "
            "often than that is retried: compute again, and persist anew what was persisted"
        ) from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise WorkerLostError(
            "the worker or node of a task died more often than it is retried: make smaller "
            f"partitions if it ran out of memory ({first_line(error)})"
        ) from error
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, ray.exceptions.TaskCancelledError):
            raise CancelledError("a task whose result this one needs was cancelled") from error
        if isinstance(cause, (MemoryError, ExoError)) or not isinstance(cause, OSError):
            raise cause from error
        raise SpillError(
            f"a worker could not reach its storage: {cause}. Look at exo.spill-directory and the "
            f"disks with `dask exo doctor`"
        ) from error


@contextlib.contextmanager
def lost() -> Iterator[None]:
    """Translate as `translated` does, and also the death of an actor."""
    try:
        with translated():
            yield
    except ray.exceptions.RayActorError as error:
        raise WorkerLostError(
            f"a worker has died: make smaller partitions if it ran out of memory "
            f"({first_line(error)})"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an exception, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
