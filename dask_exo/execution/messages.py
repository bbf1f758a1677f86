"""Messages between the driver and its tasks.

The driver sends code, small values, and the positions of other values among the arguments. A task
returns values and a `JobReceipt` for each bundle. Exceptions travel as `Failure`, so that Ray does
not retry user code that raised. All of these are named tuples, which are pickled several times as
fast as dataclasses.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from dask_exo.cluster.task_status import OutputDigest
from dask_exo.dask_adapter import GraphNode
from dask_exo.errors import Failure
from dask_exo.events import CallSpan
from dask_exo.execution.checkpoints import PartCheckpoint
from dask_exo.planning.normalize import Key
from dask_exo.planning.partitioners import Partitioner
from dask_exo.shuffle.spec import Tally


class Argument(NamedTuple):
    """Argument ``place`` of the call."""

    place: int


class GatheredBlocks(NamedTuple):
    """Output ``column`` of a shuffle: block ``slot`` of each of the arguments ``indices``."""

    stage: Key
    column: int
    slot: int
    indices: Sequence[int]
    split: Partitioner


class Value(NamedTuple):
    """A small value, sent with the code."""

    value: Any


class JobOutput(NamedTuple):
    """Output of job ``place`` of the same call."""

    place: int


class Job(NamedTuple):
    """One bundle: its nodes, in order, and where their inputs come from.

    Attributes
    ----------
    returned : bool
        Whether its value is read outside of the call.
    checkpoint : PartCheckpoint, optional
        Checkpoint of its value, if it is an input of a shuffle and checkpoints are on.
    """

    key: Key
    nodes: Sequence[tuple[Key, GraphNode]]
    inputs: dict[Key, Argument | GatheredBlocks | JobOutput | Value]
    retries: int = 0
    returned: bool = True
    checkpoint: PartCheckpoint | None = None

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


class TaskCode(NamedTuple):
    """The code of a task: jobs, their ``dask.config``, and whether outputs get a digest."""

    jobs: list[Job]
    settings: Any
    compares: bool
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
    """Result of one bundle: its value or failure, and measurements.

    Attributes
    ----------
    nbytes : int
        Estimated size of its value.
    value : object
        The value itself if it is ``small``, else None.
    assembled : tuple of AssembledTally
        Rows that it assembled of earlier shuffles.
    warnings : tuple of TaskWarning
        The first few.
    span : CallSpan, optional
        Span of the call, in its last receipt.
    digest : OutputDigest, optional
        Digest of what the whole call has put into the store.
    checkpoint_seconds : float
        Estimated seconds that a checkpoint of the value took.
    """

    seconds: float = 0.0
    nbytes: int = 0
    value: Any = None
    small: bool = False
    assembled: tuple[AssembledTally, ...] = ()
    warnings: tuple[TaskWarning, ...] = ()
    failure: Failure | None = None
    span: CallSpan | None = None
    digest: OutputDigest | None = None
    checkpoint_seconds: float = 0.0


class MapDetail(NamedTuple):
    """Details of a map's `Receipt`: measurements of the call, and the partitions that it divided.

    Attributes
    ----------
    call : JobReceipt
    parts : int
        Number of its partitions.
    start : int
        Number of the first one.
    sent : ndarray, optional
        (R,) bytes for each reducer, if an observer wants them.
    """

    call: JobReceipt
    parts: int = 0
    start: int = 0
    sent: np.ndarray | None = None


def dumps(content: Any) -> bytes:
    """Pickle the content of a task; functions of ``__main__`` and closures by value."""
    data: bytes = cloudpickle.dumps(content)
    return data


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pause Python's garbage collector while many objects are created that stay.

    It would visit each of them repeatedly, which takes a fifth of the time of a large graph.
    """
    if not gc.isenabled():  # as somebody else wants it, be it another thread in here
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
