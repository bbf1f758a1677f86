"""Errors of dask_exo, one class for each condition that a caller can act on, and their transport.

Each is an `ExoError`, and also the builtin that a caller expects. Messages say what failed, what is
needed and what there is, and which key or argument to change. An exception of user code is not
wrapped: `Failure` brings it to the caller with its own type and traceback.
"""

from __future__ import annotations

import concurrent.futures
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import cloudpickle
from tblib import Traceback

MOST_CAUSES = 16
MOST_FRAMES = 200  # of a traceback: pickle goes one level deeper for each


class ExoError(Exception):
    """Base of the errors of dask_exo."""


class ConfigError(ExoError, ValueError):
    """A configuration key is unknown, or its value is not allowed.

    *When*: before anything runs; also for a key that has no effect beside others.
    *What helps*: the message names the key and the nearest known one; :doc:`configuration` has all.
    """


class ClusterError(ExoError, ConnectionError):
    """A Ray cluster could not be started, or could not be reached at its address.

    *When*: this process needs a cluster. *What helps*: ``dask exo doctor``; see :doc:`install`.
    """


class NotEnabledError(ExoError, RuntimeError):
    """Dask would not run on dask_exo, although `enable` was called.

    *When*: `enable` reads Dask's settings back, and finds others.
    *What helps*: call `enable` after all code that sets Dask's scheduler or ``dask.config``.
    """


class ShuffleMethodError(ExoError, ValueError):
    """``dataframe.shuffle.method`` names a shuffle that neither Dask nor dask_exo has.

    *When*: before anything runs. *What helps*: ``tasks``, and ``exo.shuffle.algorithm``.
    """


class SerializationError(ExoError, TypeError):
    """A task cannot be sent to another process.

    *When*: a task is submitted. *What helps*: open files and connections inside the function.
    """


class ResultError(ExoError, RuntimeError):
    """A task failed with an exception that cannot be sent back; its text is in the message.

    *When*: after the task. *What helps*: exceptions of a class in a module, with ``args``.
    """


class WorkerLostError(ExoError, RuntimeError):
    """The process or node of a task died more often than it is retried.

    *When*: all retries are used up. The message has the exit code or signal, if it is known.
    *What helps*: call the function alone; if memory ran out, smaller partitions.
    """


class ValueLostError(WorkerLostError):
    """A value was lost with its node and cannot be recomputed.

    *When*: the value is read, and an actor computed it, a program put it into the store, or it was
    lost too often. *What helps*: compute again; persist again all that was persisted.
    """


class OwnerUnreachableError(ValueLostError):
    """A node took this program for dead, and could not read a value of it.

    *When*: a task ran several times on nodes that do not reach the program. *What helps*: the
    network between the nodes and the program; compute again.
    """


class OutOfMemoryError(MemoryError, WorkerLostError):  # see `StoreFullError`
    """A task needs more memory than its node has, even if no other task runs there.

    *When*: in that task, or before a shuffle whose outputs fit the memory of no node.
    *What helps*: smaller partitions, more memory, or a smaller ``exo.object-store-memory``.
    """


class StalledError(ExoError, TimeoutError):
    """Nothing has finished for ``exo.fault.stall-timeout``, and nothing can.

    *When*: a program waits for results. *What helps*: the message names the likely cause: a
    resource that no node has, a full store, …
    """


class StoreFullError(MemoryError, ExoError):  # `__new__` needs this order of bases
    """A partition does not fit into the object store.

    *When*: a task returns it. *What helps*: ``exo.object-store-memory``, or smaller partitions.
    """


class SpillError(ExoError, OSError):
    """The spill directory cannot be written, or is full.

    *When*: Ray starts, after the first maps of a shuffle, or when a disk is nearly full.
    *What helps*: ``exo.spill-directory`` on a larger disk, or ``exo.object-store-memory``.
    """


class IntegrityError(ExoError, AssertionError):
    """A shuffle returns other rows than it received, or a stored value has changed.

    *When*: at the end of a computation, instead of its result. *What helps*: compute again. If that
    fails too, a function is not deterministic, or dask_exo has a bug: please report it.
    """


class CheckpointError(ExoError, OSError):
    """A checkpoint cannot be written or read, or does not belong to this computation.

    *When*: before a computation, in a task that reads a damaged checkpoint, or if a recomputed
    value differs. *What helps*: ``dask exo checkpoints clean PATH``, or another path.
    """


class NonDeterminismError(ExoError, RuntimeError):
    """A recomputed task returned another value, after its first output had been read.

    *When*: at the end of a computation; in a pipeline with the next block.
    *What helps*: make tasks depend on their arguments only, or set ``exo.fault.nondeterminism``.
    """


class WorkflowError(ExoError, ValueError):
    """An external output would depend on a value that may change when a task runs again.

    *When*: before a computation. *What helps*: ``dask.annotate(checkpoint=True)`` around the task,
    or around tasks between it and the output.
    """


class OutputExistsError(ExoError, FileExistsError):
    """The output already exists.

    *When*: before anything runs. *What helps*: another output, or ``overwrite``.
    """


class OutputError(ExoError, OSError):
    """The output cannot be written.

    *When*: before anything runs, if possible. *What helps*: another path, or more free space.
    """


class InputError(ExoError, ValueError):
    """The input cannot be read: it does not exist, lacks a column, or has an unknown format.

    *When*: before anything runs. *What helps*: the message says what there is.
    """


class SortKeyError(ExoError, TypeError):
    """The values of a sort key have no common order.

    *When*: the sort runs, or before. *What helps*: ``.astype(...)`` or ``.fillna(...)``.
    """


class ColumnError(ExoError, KeyError):
    """There is no column, or index level, of that name.

    *When*: a method is called. *What helps*: the message names the columns, the nearest first.
    """

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class SortArgumentError(ExoError, ValueError):
    """An argument of a sort is not allowed.

    *When*: a method is called; nothing has run. *What helps*: the message says what is needed.
    """


class MergeArgumentError(ExoError, ValueError):
    """An argument of a join is not allowed.

    *When*: a method is called; nothing has run. *What helps*: the message says what is needed.
    """


class PipelineError(ExoError, ValueError):
    """A pipeline has an argument or stage that it does not support.

    *When*: a pipeline is built or starts. *What helps*: the message says what is needed.
    """


class OptionsError(ExoError, ValueError):
    """A resource request cannot be met, or a function cannot be called as its options say.

    *When*: options are given, if possible; else in a computation.
    *What helps*: request less in `dask_exo.options`, or add nodes.
    """


class AggregationError(ExoError, ValueError):
    """An aggregation of groups has an argument that it does not support.

    *When*: a method is called. *What helps*: the message names the aggregations that exist.
    """


class ShuffleArgumentError(ExoError, ValueError):
    """An argument of a shuffle is not allowed.

    *When*: a function is called; nothing has run. *What helps*: the message says what is needed.
    """


class ValidationError(ExoError, AssertionError):
    """A sorted output is not the sorted input.

    *When*: they are compared. *What helps*: sort again; the message names file and row.
    """


class LiveError(ExoError, ConnectionError):
    """No program has a live page, or it does not answer.

    *When*: ``dask exo top`` runs. *What helps*: the whole address in the repr of `enable`.
    """


class MissingPackageError(ExoError, ImportError):
    """A required package is not installed.

    *When*: before anything runs. *What helps*: the message has the command that installs it.
    """


class UnsupportedError(ExoError, NotImplementedError, AttributeError):
    """A part of `distributed` does not exist here.

    *When*: the name is used. *What helps*: :doc:`client` says what to use instead.
    """


class DeviceError(ExoError, RuntimeError):
    """A GPU is requested, and there is none, or no library that uses it.

    *When*: frames are moved to a device; nothing has run.
    *What helps*: a machine with a GPU and cupy; or ``exo.gpu.simulate``, to try without one.
    """


class DeviceMemoryError(MemoryError, ExoError):  # see `StoreFullError`
    """The memory of a device has no room, not even for a single row.

    *When*: in a task, after values were evicted to the host and batches were halved.
    *What helps*: smaller partitions, a larger ``exo.gpu.memory`` or ``exo.gpu.per-task``.
    """


class DeviceTypeError(ExoError, TypeError):
    """Columns in the memory of a device cannot have this type.

    *When*: a frame is moved there, or computed. *What helps*: ``.astype(...)``, or drop them.
    """


class DeviceOperationError(ExoError, NotImplementedError, AttributeError):
    """Frames in the memory of a device do not have this operation.

    *When*: the operation is called, or Dask infers its metadata; nothing has run.
    *What helps*: do that step on the host, between ``.to_backend("pandas")`` and
    ``.to_backend("exo-cupy")``; see :doc:`gpu`.
    """


class NoClientError(ExoError, ValueError):
    """There is no client, since this process is not connected to a Ray cluster.

    *When*: code needs a client. *What helps*: a `dask_exo.Client`, or `dask_exo.enable`.
    """


class CancelledError(ExoError, concurrent.futures.CancelledError):
    """A computation, or a future of it, was stopped before its end.

    *When*: ``cancel``, ``close`` or Ctrl-C has stopped it. *What helps*: nothing is wrong.
    """


class Link(NamedTuple):
    """One exception of a chain of causes, pickled without its cause."""

    pickled: bytes
    trace: dict[str, Any] | None  # its traceback, of `tblib.Traceback.as_dict`
    cause: bool  # whether it is the ``__cause__`` of the previous one, not the context
    left_out: int = 0  # frames in the middle of the traceback


@dataclass(frozen=True)
class Failure:
    """The exception of a failed task."""

    key: Any  # of the task
    links: tuple[Link, ...]  # the exception and its causes; empty if it cannot be pickled
    text: str  # the traceback
    printed: str = ""  # the last lines that the worker printed

    @classmethod
    def of(cls, key: Any, error: BaseException, printed: str = "") -> Failure:
        """Pickle ``error`` and its causes."""
        return cls(key, tuple(_links(error)), "".join(traceback.format_exception(error)), printed)

    def reraise(self) -> NoReturn:
        """Raise `error`."""
        raise self.error()

    def error(self) -> BaseException:
        """Return the exception as the task raised it, with a note that names the key."""
        if not self.links:
            last = self.text.strip().splitlines()[-1]
            return ResultError(
                f"task {self.key!r} failed with an exception that cannot be pickled: {last} "
                f"(raise one of a class in a module, with its arguments in args)\n{self.text}"
            )
        errors = [_unpack(link) for link in self.links]
        for error, cause, link in zip(errors, errors[1:], self.links[1:], strict=False):
            if link.cause:
                error.__cause__ = cause
            else:
                error.__context__ = cause
        errors[0].add_note(f"dask_exo: raised by task {self.key!r}")
        return errors[0]


def _links(error: BaseException) -> Iterator[Link]:
    """Yield the exception, its cause or context, and so on, while they can be pickled."""
    current: BaseException | None = error
    cause = False
    for _ in range(MOST_CAUSES):
        pickled = None if current is None else _pickled(current)
        if current is None or pickled is None:
            return
        trace, left_out = _shortened(current.__traceback__)
        state = None if trace is None else Traceback(trace).as_dict()
        yield Link(pickled, state, cause, left_out)
        cause = current.__cause__ is not None
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden


def _shortened(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Return a traceback without the middle of a deep recursion, and the frames left out."""
    frames = []
    frame = trace
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    left_out = len(frames) - MOST_FRAMES
    if left_out <= 0:
        return trace, 0
    half = MOST_FRAMES // 2
    short = None
    for frame in reversed(frames[:half] + frames[-half:]):
        short = TracebackType(short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return short, left_out


def _unpack(link: Link) -> BaseException:
    error: BaseException = pickle.loads(link.pickled)  # noqa: S301  our own worker's bytes
    if link.left_out:
        error.add_note(f"dask_exo: {link.left_out} frames in the middle are left out")
    trace = None if link.trace is None else Traceback.from_dict(link.trace).as_traceback()
    return error.with_traceback(trace)


class _Bare:
    """Unpickles to an exception of the same type and arguments, without the rest of its state."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._error), self._error.args


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception, or at least its type and arguments; None if neither can be loaded."""
    for form in (error, _Bare(error)):
        try:
            data: bytes = cloudpickle.dumps(form)
            # no local for the result: its traceback, with tblib, would refer back to this frame
            loads = isinstance(pickle.loads(data), BaseException)  # noqa: S301  our own bytes
        except Exception:  # noqa: BLE001  any error: try the next form
            continue
        if loads:
            return data
    return None
