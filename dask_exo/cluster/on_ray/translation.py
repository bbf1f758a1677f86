"""Translation between Ray and dask_exo: exceptions, and the serialization of values."""

from __future__ import annotations

import contextlib
import copyreg
import io
import pickle
import re
from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import ray
import ray.cloudpickle
import ray.exceptions
from ray.exceptions import LocalRayletDiedError, NodeDiedError, WorkerCrashedError

from dask_exo.cluster.futures import collected_refs, substitutes
from dask_exo.errors import (
    CancelledError,
    ClusterError,
    ExoError,
    OutOfMemoryError,
    OwnerUnreachableError,
    SerializationError,
    SpillError,
    StoreFullError,
    ValueLostError,
    WorkerLostError,
)

DIED = "the worker or node of a task died more often than it is retried: compute again"
_ENDS = re.compile(r"(?<=\*{3} )SIG\w+(?= received)|(?<=receives a )SIG\w+|exit code -?\d+")


def ended(text: str, where: str = "", *, oom: bool = False) -> str:
    """Say how a process ended, by texts about it, and what helps; ``oom``: memory ran out then."""
    ends = _ENDS.findall(text)
    if not ends and (oom or "NODE_OUT_OF_MEMORY" in text):
        advice = "make smaller partitions, or run fewer tasks at a time with exo.num-cpus"
        return f"with SIGKILL{where}, as memory ran out: {advice}"
    how = ends[-1] if ends else "no message, as after SIGKILL or os._exit,"
    return f"with {how}{where}: call its function alone; that, or what it calls, ends the process"


def check_connection() -> None:
    """Raise an error if Ray was shut down: it would start a new cluster for any call."""
    if not ray.is_initialized():
        raise ClusterError(
            "this process is not connected to Ray any more, and its values there are lost: compute "
            "again, and call ray.shutdown() after the last computation"
        )


@contextlib.contextmanager
def translated(death: Callable[[], str] = lambda: DIED) -> Iterator[None]:
    """Translate Ray's exceptions to ours; ``death`` describes that of the worker of a task."""
    check_connection()
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
        raise _value_lost(error) from error
    except (WorkerCrashedError, NodeDiedError, LocalRayletDiedError) as error:
        what = death()
        raise WorkerLostError(what) from error
    except ray.exceptions.RayTaskError as error:
        raise _cause(error) from error
    except ray.exceptions.RaySystemError as error:
        raise _unreadable(error) from error
    except SystemError as error:  # a signal's handler has raised another one while Ray waited
        raise error.__cause__ or error from None


def _value_lost(error: ray.exceptions.ObjectLostError) -> ValueLostError:
    # a node that has just joined, or is very busy, takes an owner that it does not know for dead;
    # the message names the owner
    is_dead = isinstance(error, ray.exceptions.OwnerDiedError)
    if is_dead and ray.get_runtime_context().get_worker_id() in str(error):
        return OwnerUnreachableError(
            f"a node could not read a value of this program, which it took for dead: look at the "
            f"network between them, and compute again ({first_line(error)})"
        )
    return ValueLostError(
        "a value was lost with its node and is not recomputed, since an actor (a class, a GPU) "
        "computed it, a program put it into the store, or it was lost too often: compute "
        "again, and persist again what was persisted"
    )


def _unreadable(error: Any) -> Exception:
    """Return an error that explains why Ray could not unpickle a value, if that is the reason."""
    if "_deserialize_object" not in str(error):
        return error
    reason = type(error.client_exc).__name__
    return SerializationError(
        f"a value cannot be unpickled ({reason}: {first_line(error.client_exc)}): its class does "
        f"not permit it, or the value has changed on the disk of spilled values. Compute or "
        f"persist it again, and look at that disk"
    )


def _cause(error: Any) -> Exception:
    cause: Exception = error.cause if isinstance(error.cause, Exception) else error
    if isinstance(cause, ray.exceptions.RaySystemError):
        return _unreadable(cause)
    if isinstance(cause, ray.exceptions.TaskCancelledError):
        return CancelledError("a task whose result this one needs was cancelled")
    if isinstance(cause, (MemoryError, ExoError)) or not isinstance(cause, OSError):
        return cause
    return SpillError(
        f"a worker could not reach its storage: {cause}. Look at exo.spill-directory and the disks "
        f"with `dask exo doctor`"
    )


@contextlib.contextmanager
def lost(death: Callable[[], str] = lambda: DIED) -> Iterator[None]:
    """Translate like `translated`, and also the death of an actor or of a former Ray."""
    try:
        with translated(death):
            yield
    except ray.exceptions.RayActorError as error:
        what = ended(str(error))
        raise WorkerLostError(f"a worker has died {what} ({first_line(error)})") from error
    except ValueError as error:
        if "owner is unknown" not in str(error):
            raise
        raise ValueLostError("a value was lost with its Ray: compute it again") from error


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an exception, or its name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_AS_THEY_ARE = frozenset({type(None), bool, int, float, str, bytes, ray.ObjectRef})
_LONG = 65_536  # bytes of a pickle that is not copied into another


class _Pickler(cloudpickle.Pickler):
    """Pickles values by the same cloudpickle as code, and refs as Ray does.

    A class of ``__main__``, of a notebook or of a function is pickled by value, with a number by
    which a process that has the class already finds it. Each copy of cloudpickle has numbers of its
    own: if Ray pickled values with its copy, an instance would come back as one of another class,
    and an `enum` member not equal to itself. Dask's tokens are made with the same copy as code.
    """

    dispatch_table: ClassVar[Any] = ChainMap(
        cloudpickle.Pickler.dispatch_table.maps[0], *ray.cloudpickle.Pickler.dispatch_table.maps
    )


def _reduce_ref(ref: Any) -> Any:
    """Make a ref in the code of a task an argument, in a tuple, where Ray does not fetch it."""
    refs = collected_refs.get()
    if refs is None:
        return ref.__reduce__()
    refs.append((ref,))
    return _ref_in_argument, (len(refs) - 1,)


def _ref_in_argument(index: int) -> Any:
    return substitutes.get()[index][0]


copyreg.pickle(ray.ObjectRef, _reduce_ref)


class _Sealed:
    """Wrapper that unpickles as its value, with buffers out of band."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(self._value)
        data = file.getbuffer()
        body = pickle.PickleBuffer(data) if len(data) > _LONG else bytes(data)
        return _opened, (body, *buffers)


def _opened(data: Any, *buffers: Any) -> Any:
    return pickle.loads(data, buffers=buffers)  # noqa: S301  our own process' bytes


def sealed(value: Any) -> Any:
    """Wrap a value for Ray; receivers get the value itself.

    Refs stay as they are: Ray must see them among the arguments of a task.
    """
    kind = type(value)
    is_plain_array = kind is np.ndarray and not value.dtype.hasobject
    return value if is_plain_array or kind in _AS_THEY_ARE else _Sealed(value)
