"""Every error raised on purpose: one class for each thing a caller can act on.

Each is an `ExoError`, and also the builtin a caller expects. Messages say what failed,
where, what is needed against what is there, and which key or argument to change. An
exception raised by user code is not wrapped: it reaches the caller with its own type and
traceback, and a note that names the key.
"""

from __future__ import annotations

import concurrent.futures


class ExoError(Exception):
    """Base of the errors of dask_exo."""


class ConfigError(ExoError, ValueError):
    """A configuration key is unknown, or its value is not one it can have."""


class ClusterError(ExoError, ConnectionError):
    """A Ray cluster could not be started, or not be reached at its address."""


class NotEnabledError(ExoError, RuntimeError):
    """Dask would not run on dask_exo, although `enable` was asked for."""


class ShuffleMethodError(ExoError, ValueError):
    """``dataframe.shuffle.method`` names a shuffle that neither Dask nor dask_exo has."""


class SerializationError(ExoError, TypeError):
    """A task cannot be sent to another process."""


class ResultError(ExoError, RuntimeError):
    """A task failed with an exception that cannot be sent back; its text is in the message."""


class WorkerLostError(ExoError, RuntimeError):
    """The process or node of a task died more often than it is retried."""


class OutOfMemoryError(MemoryError, WorkerLostError):  # see `StoreFullError`
    """A task needs more memory than there is, also with fewer or no others beside it."""


class StalledError(ExoError, TimeoutError):
    """Nothing has happened for ``exo.fault.stall-timeout``, and nothing can."""


class StoreFullError(MemoryError, ExoError):  # the order in which it can be made by `__new__`
    """A partition does not fit into the object store."""


class SpillError(ExoError, OSError):
    """The directory for spilled objects cannot be written, or is full."""


class IntegrityError(ExoError, AssertionError):
    """Rows that went into a shuffle are not those that came out."""


class OutputExistsError(ExoError, FileExistsError):
    """The place to write to is already there."""


class OutputError(ExoError, OSError):
    """The output cannot be written."""


class InputError(ExoError, ValueError):
    """The input cannot be read as asked: nothing there, no such column, unknown format."""


class SortKeyError(ExoError, TypeError):
    """The values of a sort key cannot be ordered against each other."""


class ColumnError(ExoError, KeyError):
    """There is no column, or index level, of that name."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class SortArgumentError(ExoError, ValueError):
    """An argument of a sort is not one that it can have."""


class MergeArgumentError(ExoError, ValueError):
    """An argument of a join is not one that it can have."""


class PipelineError(ExoError, ValueError):
    """A pipeline is asked for something that it cannot do."""


class OptionsError(ExoError, ValueError):
    """What a function asks for cannot be had, or it cannot be called as its options say."""


class AggregationError(ExoError, ValueError):
    """An aggregation of groups is asked for something that it cannot do."""


class ShuffleArgumentError(ExoError, ValueError):
    """An argument of a shuffle is not one that it can have."""


class ValidationError(ExoError, AssertionError):
    """A sorted output is not the sorted input."""


class UnsupportedError(ExoError, NotImplementedError, AttributeError):
    """A part of `distributed` that does not exist here."""


class DeviceError(ExoError, RuntimeError):
    """A GPU is asked for where there is none, or no library to use it."""


class DeviceTypeError(ExoError, TypeError):
    """Columns in the memory of a device cannot have this type."""


class DeviceOperationError(ExoError, NotImplementedError, AttributeError):
    """Frames in the memory of a device do not have this operation."""


class NoClientError(ExoError, ValueError):
    """There is no client, since this process is not connected to a Ray cluster."""


class CancelledError(ExoError, concurrent.futures.CancelledError):
    """A computation, or a future of it, was stopped before its end."""
