"""Messages between the driver and its tasks.

The driver sends code, small values, and the positions of other values among the arguments. A task
returns values and a `JobReceipt` for each bundle. Exceptions are sent as `Failure`, so that Ray
does not retry user code that raised. All messages are named tuples, which are pickled several
times as fast as dataclasses.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import cloudpickle
import dask.config
import numpy as np

from dask_exo.cluster.futures import shares_process
from dask_exo.cluster.task_status import OutputDigest
from dask_exo.dask_adapter import GraphNode
from dask_exo.errors import Failure
from dask_exo.events import CallSpan
from dask_exo.execution.checkpoints import PartCheckpoint
from dask_exo.planning.normalize import Key
from dask_exo.planning.partitioners import Partitioner
from dask_exo.shuffle.blocks import Share
from dask_exo.shuffle.spec import Tally


class Argument(NamedTuple):
    """Argument ``place`` of the call, and the digest to check it by, if any."""

    place: int
    digest: OutputDigest | None = None


class GatheredBlocks(NamedTuple):
    """Output ``column`` of a shuffle: block ``slot`` of each of the arguments ``indices``."""

    stage: Key
    column: int
    slot: int
    indices: Sequence[int]
    split: Partitioner
    share: Share | None = None  # of its rows; None for all
    is_copy: bool = False  # another task assembles the same rows


class Value(NamedTuple):
    """A small value, sent with the code."""

    value: Any


class JobOutput(NamedTuple):
    """Output of job ``place`` of the same call."""

    place: int


class Job(NamedTuple):
    """One bundle: its nodes, in order, and where their inputs come from."""

    key: Key
    nodes: Sequence[tuple[Key, GraphNode]]
    inputs: dict[Key, Argument | list[GatheredBlocks] | JobOutput | Value]
    retries: int = 0
    returned: bool = True  # its value is read outside of the call
    checkpoint: PartCheckpoint | None = None  # of its value, if it is an input of a shuffle

    @property
    def inner(self) -> list[int]:
        """Jobs of the same call whose outputs it reads."""
        return [s.place for s in self.inputs.values() if isinstance(s, JobOutput)]


class MapCode(NamedTuple):
    """Work of a map on its partitions, of which the first has the number ``start``."""

    partitioner: Partitioner
    largest_block: int
    start: int
    observed: bool  # an observer wants the bytes of each reducer
    filtered: tuple[int, tuple[Any, ...]] | None = None  # argument with a filter, and its columns


class TaskCode(NamedTuple):
    """The code of a task: jobs, and their ``dask.config``."""

    jobs: list[Job]
    settings: Any
    compares: bool  # outputs get a digest
    is_sampled: bool = False  # an observer wants samples of what it does
    map: MapCode | None = None


class AssembledTally(NamedTuple):
    """Tally of the rows of one assembled shuffle output."""

    stage: Key
    tally: Tally


class TaskWarning(NamedTuple):
    """A warning of user code, as `warnings.warn_explicit` takes it."""

    message: Warning
    category: type[Warning]
    filename: str
    lineno: int


class JobReceipt(NamedTuple):
    """Result of one bundle: its value or failure, and measurements."""

    seconds: float = 0.0
    nbytes: int = 0  # estimated size of its value
    value: Any = None  # if it is small
    small: bool = False
    assembled: tuple[AssembledTally, ...] = ()  # of earlier shuffles
    warnings: tuple[TaskWarning, ...] = ()  # the first few
    failure: Failure | None = None
    span: CallSpan | None = None  # of the call, in its last receipt
    digest: OutputDigest | None = None  # of what the whole call has put into the store
    checkpoint_seconds: float = 0.0  # estimate of what writing its checkpoint took
    rows: int | None = None  # of a frame in the store


class MapDetail(NamedTuple):
    """Measurements of a map call, and the partitions that it divided; part of its `Receipt`."""

    call: JobReceipt
    parts: int = 0  # number of its partitions
    start: int = 0  # number of the first one
    sent: np.ndarray | None = None  # (R,) bytes for each reducer, if an observer wants them
    left_out: int = 0  # rows that a filter did not let pass


def is_picklable(value: Any) -> bool:
    """Return whether a value can be sent to another process."""
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  of any kind
        return False
    return True


def driver_settings(settings: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """Set ``dask.config`` as in the driver; threads of the driver's process have it already."""
    shared = shares_process() or threading.current_thread() is not threading.main_thread()
    return contextlib.nullcontext() if shared else dask.config.set(settings)


@contextlib.contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """Record all warnings of a task, for the driver to repeat.

    Filters of warnings are global, so those of a thread of the driver's process are not recorded:
    the driver sees them as they are.
    """
    if shares_process():
        yield []
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pause Python's garbage collector while many objects are created that stay.

    It would visit each of them repeatedly, which takes a fifth of the time of a large graph.
    """
    if not gc.isenabled():  # paused elsewhere, perhaps by another thread that runs this code
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
