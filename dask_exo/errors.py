"""Errors of dask_exo: one class for each condition that a caller can act on.

Each is an `ExoError`, and also the builtin a caller expects. Messages say what failed,
where, what is needed against what is there, and which key or argument to change. An
exception raised by user code is not wrapped: it reaches the caller with its own type and
traceback, and a note that names the key.
"""

from __future__ import annotations

import concurrent.futures
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

import cloudpickle
from tblib import Traceback


class ExoError(Exception):
    """Base of the errors of dask_exo."""


class ConfigError(ExoError, ValueError):
    """A configuration key is unknown, or its value is not one it can have.

    *When*: when a computation starts, or by `enable` and `Client`, before anything runs. Also
    for a key that has no effect: one of a private Ray where ``exo.address`` is set, or another
    size than that of the Ray that runs already.

    *What helps*: the message names the key, and the nearest one that there is.
    :doc:`configuration` has all of them.
    """


class ClusterError(ExoError, ConnectionError):
    """A Ray cluster could not be started, or not be reached at its address.

    *When*: when this process connects to Ray; and by what needs a cluster where there is none.

    *What helps*: ``dask exo doctor`` examines machine and cluster; :doc:`install` has a table
    of what is seen where a token is missing.
    """


class NotEnabledError(ExoError, RuntimeError):
    """Dask would not run on dask_exo, although `enable` was called.

    *When*: by `enable`, if Dask's settings, read back, are not those that it has made.

    *What helps*: call `enable` after whatever sets Dask's scheduler, and outside of
    ``dask.config.set`` blocks.
    """


class ShuffleMethodError(ExoError, ValueError):
    """``dataframe.shuffle.method`` names a shuffle that neither Dask nor dask_exo has.

    *When*: before anything runs.

    *What helps*: leave ``dataframe.shuffle.method`` at ``tasks``; ``exo.shuffle.algorithm``
    picks how it is done.
    """


class SerializationError(ExoError, TypeError):
    """A task cannot be sent to another process.

    *When*: when a task is submitted.

    *What helps*: make files, locks, connections and generators inside of the function, not
    outside of it.
    """


class ResultError(ExoError, RuntimeError):
    """A task failed with an exception that cannot be sent back; its text is in the message.

    *When*: when the task has failed; its own traceback is in the text.

    *What helps*: raise exceptions that can be pickled: of a class in a module, whose arguments
    are in ``args``.
    """


class WorkerLostError(ExoError, RuntimeError):
    """The process or node of a task died more often than it is retried.

    *When*: when Ray's and our retries are used up. Often the reason is memory: the system stops
    the process that uses most.

    *What helps*: smaller partitions, or fewer tasks at a time (``exo.num-cpus``).
    """


class ValueLostError(WorkerLostError):
    """A value was lost with its node and cannot be recomputed.

    *When*: where it is read. An actor (a class, a GPU) computed it, a program put it into the
    store, or it was lost more often than it is recomputed.

    *What helps*: compute again, and persist anew what was persisted.
    """


class OutOfMemoryError(MemoryError, WorkerLostError):  # see `StoreFullError`
    """A task needs more memory than its node has, even if no other task runs there.

    *When*: when a node runs out of memory while the task runs there alone; and before a
    shuffle whose outputs fit the memory of no node.

    *What helps*: smaller partitions, nodes with more memory, or a smaller store
    (``exo.object-store-memory``).
    """


class StalledError(ExoError, TimeoutError):
    """Nothing has finished for ``exo.fault.stall-timeout``, and nothing can.

    *When*: while a computation, a future or a pipeline is waited for, and none of its tasks runs.

    *What helps*: the message names the likely cause: a resource that no node has, nodes that have
    died, a store or disk that is full.
    """


class StoreFullError(MemoryError, ExoError):  # the order in which it can be made by `__new__`
    """A partition does not fit into the object store.

    *When*: by the task that makes the value, with its size and that of the store.

    *What helps*: ``exo.object-store-memory``, or smaller partitions (``blocksize=``,
    ``.repartition(partition_size=)``).
    """


class SpillError(ExoError, OSError):
    """The directory for spilled objects cannot be written, or is full.

    *When*: when Ray is started; by a shuffle whose first maps show that the disks have no room
    for it; while it runs, before a disk is full.

    *What helps*: ``exo.spill-directory`` on a larger disk, or a larger
    ``exo.object-store-memory``.
    """


class IntegrityError(ExoError, AssertionError):
    """Rows that went into a shuffle are not those that came out.

    *When*: when a computation is over, in the place of its result: rows are counted and key
    hashes summed on both sides of each shuffle.

    *What helps*: compute again. If it fails again, two parts of one task differ (a function
    that is not deterministic, on a cluster that loses nodes), or dask_exo has a fault: please
    report it.
    """


class CheckpointError(ExoError, OSError):
    """A checkpoint cannot be written or read, or does not belong to what is computed now.

    *When*: before a computation, if ``exo.checkpoint.path`` cannot be used; in a task that reads a
    damaged checkpoint; and if a recomputed value differs from the stored one.

    *What helps*: ``dask exo checkpoints clean PATH``, and the same code again; or another path.
    """


class NonDeterminismError(ExoError, RuntimeError):
    """A recomputed task returned another value, after its first output had been read.

    *When*: at the end of a computation in which workers or nodes were lost; in a pipeline with the
    next piece.

    *What helps*: let tasks depend on their arguments only. ``exo.fault.nondeterminism`` makes it a
    warning, or nothing.
    """


class OutputExistsError(ExoError, FileExistsError):
    """The place to write to is already there.

    *When*: before anything runs.

    *What helps*: another output, or ``overwrite``.
    """


class OutputError(ExoError, OSError):
    """The output cannot be written.

    *When*: before anything runs, if it can be known, else when files are written. What was
    written is removed.

    *What helps*: another place, or more room.
    """


class InputError(ExoError, ValueError):
    """The input cannot be read as asked: nothing there, no such column, unknown format.

    *When*: when the input is looked at, before anything runs.

    *What helps*: the message names the path or column, and what there is.
    """


class SortKeyError(ExoError, TypeError):
    """The values of a sort key cannot be ordered against each other.

    *When*: when the sort runs, or before, if dtypes show it.

    *What helps*: convert the column with ``.astype(...)``, or ``.fillna(...)`` it.
    """


class ColumnError(ExoError, KeyError):
    """There is no column, or index level, of that name.

    *When*: when a method is called; nothing has run.

    *What helps*: the message names the columns that there are, the nearest first.
    """

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class SortArgumentError(ExoError, ValueError):
    """An argument of a sort is not one that it can have.

    *When*: when a method is called; nothing has run.

    *What helps*: the message says what is needed.
    """


class MergeArgumentError(ExoError, ValueError):
    """An argument of a join is not one that it can have.

    *When*: when a method is called; nothing has run.

    *What helps*: the message says what is needed.
    """


class PipelineError(ExoError, ValueError):
    """A pipeline has an argument or stage that it does not support.

    *When*: when a pipeline is built, or when it starts; a stage that no node can run is found
    before anything runs.

    *What helps*: the message says what is needed and what the cluster has.
    """


class OptionsError(ExoError, ValueError):
    """A resource request cannot be met, or a function cannot be called as its options say.

    *When*: when options are given, if numbers alone show it; else when a computation starts, or
    a function returns what cannot be put together.

    *What helps*: request less in `dask_exo.options`, or add nodes.
    """


class AggregationError(ExoError, ValueError):
    """An aggregation of groups has an argument that it does not support.

    *When*: when a method is called; nothing has run.

    *What helps*: the message names the aggregations that there are.
    """


class ShuffleArgumentError(ExoError, ValueError):
    """An argument of a shuffle is not one that it can have.

    *When*: when a function is called; nothing has run.

    *What helps*: the message says what is needed.
    """


class ValidationError(ExoError, AssertionError):
    """A sorted output is not the sorted input.

    *When*: when an output is compared with its input: order, number of rows, sums.

    *What helps*: sort again; the message says which file and row.
    """


class LiveError(ExoError, ConnectionError):
    """No program shows what it does, or it does not answer.

    *When*: by ``dask exo top``.

    *What helps*: give it the whole address that the repr of `enable` shows, token included.
    """


class MissingPackageError(ExoError, ImportError):
    """A package is needed that is not installed.

    *When*: when what needs it is asked for, before anything runs.

    *What helps*: the message has the command that installs it.
    """


class UnsupportedError(ExoError, NotImplementedError, AttributeError):
    """A part of `distributed` that does not exist here.

    *When*: when the name is used.

    *What helps*: :doc:`client` says what to use instead.
    """


class DeviceError(ExoError, RuntimeError):
    """A GPU is requested, and there is none, or no library to use it.

    *When*: when frames are moved to a device, before anything runs.

    *What helps*: a machine with a GPU and cupy; or ``exo.gpu.simulate``, to try without one.
    """


class DeviceMemoryError(MemoryError, ExoError):  # the order in which it can be made by `__new__`
    """The memory of a device has no room, not even for a single row.

    *When*: in a task, after what was used longest ago has gone to the host and the batch has been
    halved again and again.

    *What helps*: smaller partitions, a larger ``exo.gpu.memory`` or share of the GPU
    (``exo.gpu.per-task``).
    """


class DeviceTypeError(ExoError, TypeError):
    """Columns in the memory of a device cannot have this type.

    *When*: when a frame is moved to a device, or a result would need such a column.

    *What helps*: convert the column with ``.astype(...)``, or leave it out.
    """


class DeviceOperationError(ExoError, NotImplementedError, AttributeError):
    """Frames in the memory of a device do not have this operation.

    *When*: when the operation is called, on made-up rows if need be, before anything runs.

    *What helps*: do that step on the host, between ``.to_backend("pandas")`` and
    ``.to_backend("exo-cupy")``. :doc:`gpu` has the list of what exists.
    """


class NoClientError(ExoError, ValueError):
    """There is no client, since this process is not connected to a Ray cluster.

    *When*: by `get_client` and by what needs a client.

    *What helps*: create a `dask_exo.Client`, or call `dask_exo.enable`.
    """


class CancelledError(ExoError, concurrent.futures.CancelledError):
    """A computation, or a future of it, was stopped before its end.

    *When*: by whoever waits for it.

    *What helps*: nothing is wrong: somebody has called ``cancel`` or ``close``, or has pressed
    Ctrl-C.
    """


MOST_CAUSES = 16
MOST_FRAMES = 200  # of a traceback: pickle goes one level deeper for each


@dataclass(frozen=True)
class Link:
    """One exception of a chain of causes.

    Attributes
    ----------
    pickled : bytes
        The exception without its causes.
    trace : dict or None
        Its traceback, as a dictionary of `tblib.Traceback`.
    cause : bool
        Whether it is the ``__cause__`` of the one before, and not only its ``__context__``.
    left_out : int
        Frames in the middle of the traceback that are not in ``trace``.
    """

    pickled: bytes
    trace: dict[str, Any] | None
    cause: bool
    left_out: int = 0


@dataclass(frozen=True)
class Failure:
    """The exception of a failed task.

    Attributes
    ----------
    key : object
        Dask key of the task.
    links : tuple of Link
        The exception and its causes; empty if it cannot be pickled.
    text : str
        The traceback as text.
    """

    key: Any
    links: tuple[Link, ...]
    text: str

    @classmethod
    def of(cls, key: Any, error: BaseException) -> Failure:
        """Pack ``error`` and its causes."""
        text = "".join(traceback.format_exception(error))
        return cls(key, tuple(_links(error)), text)

    def reraise(self) -> NoReturn:
        """Raise the exception as the task raised it, with a note that names the key."""
        raise self.error()

    def error(self) -> BaseException:
        """Make the exception as the task raised it, with a note that names the key."""
        if not self.links:
            last = self.text.strip().splitlines()[-1]
            return ResultError(
                f"task {self.key!r} failed with an exception that cannot be pickled: {last} "
                f"(raise one of a class in a module, with its arguments in args)\n{self.text}"
            )
        errors = [_unpack(link) for link in self.links]
        for error, behind, link in zip(errors, errors[1:], self.links[1:], strict=False):
            if link.cause:
                error.__cause__ = behind
            else:
                error.__context__ = behind
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
    frames = list(_frames(trace))
    left_out = len(frames) - MOST_FRAMES
    if left_out <= 0:
        return trace, 0
    half = MOST_FRAMES // 2
    short = None
    for one in reversed(frames[:half] + frames[-half:]):
        short = TracebackType(short, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return short, left_out


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _unpack(link: Link) -> BaseException:
    error: BaseException = pickle.loads(link.pickled)  # noqa: S301  our own worker's bytes
    if link.left_out:
        error.add_note(f"dask_exo: {link.left_out} frames in the middle are left out")
    trace = None if link.trace is None else Traceback.from_dict(link.trace).as_traceback()
    return error.with_traceback(trace)


class _Bare:
    """Unpickles to an exception of the same type and arguments, and no more of its state."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self._error), self._error.args


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an exception whole, or at least bare; None if neither survives both ways."""
    for form in (error, _Bare(error)):
        try:
            data: bytes = cloudpickle.dumps(form)
            # not kept: where tblib is registered its traceback would lead back to this frame
            survives = isinstance(pickle.loads(data), BaseException)  # noqa: S301  our own bytes
        except Exception:  # noqa: BLE001  any error: try the next form
            continue
        if survives:
            return data
    return None
