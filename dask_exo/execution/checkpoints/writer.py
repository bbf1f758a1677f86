"""Tasks that checkpoint the outputs of a shuffle before other tasks read them.

If the readers wrote the checkpoints one by one, a program that dies meanwhile would leave a shuffle
with some outputs, and the next program would have to recompute all maps for the others.
"""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import dask.config

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps, Until
from dask_exo.execution.checkpoints.outputs import CheckpointKey, ShuffleCheckpoint
from dask_exo.execution.tasks import messages
from dask_exo.execution.tasks.serialize import raise_remote
from dask_exo.execution.tasks.worker import catch_failure, distinct
from dask_exo.planning.partitioners import Partitioner
from dask_exo.planning.plan import OutputKey
from dask_exo.shuffle.spec import ReducerInput

TOGETHER = 32 * 2**20  # bytes of outputs that one task writes


class Output(NamedTuple):
    """An output that a task writes: its block in each argument, its number, and its checkpoint."""

    slot: int
    place: int
    label: CheckpointKey


def checkpoint_outputs(  # noqa: PLR0913  what is kept, where, and how many at a time
    futures: Futures,
    columns: Sequence[tuple[OutputKey, ReducerInput]],
    keeping: ShuffleCheckpoint,
    split: Partitioner,
    *,
    nbytes: int,
    window: int,
    settings: Any,
) -> Steps[None]:
    """Assemble the outputs of a shuffle and write their checkpoints.

    Parameters
    ----------
    futures : Futures
    columns : sequence of (OutputKey, ReducerInput)
        (R,) what is to be read for each output.
    keeping : ShuffleCheckpoint
        Checkpoint of the shuffle.
    split : Partitioner
        Assembles an output.
    nbytes : int
        Approximate size of an output.
    window : int
        Tasks in flight.
    settings : dict
        ``dask.config`` of the tasks.

    Raises
    ------
    CheckpointError
        An output differs from the checkpoint of an earlier program.
    """
    data = messages.dumps((split, settings))
    in_flight: list[Ref] = []
    for column, outputs in _calls(columns, keeping, max(1, TOGETHER // max(nbytes, 1))):
        if len(in_flight) >= window:
            yield Until(any=list(in_flight))
            in_flight = _settled(futures, in_flight)
        in_flight.append(futures.submit(_keep, data, outputs, *column.refs, node=column.node))
    while in_flight:
        yield Until(any=list(in_flight))
        in_flight = _settled(futures, in_flight)


def _calls(
    columns: Sequence[tuple[OutputKey, ReducerInput]], keeping: ShuffleCheckpoint, most: int
) -> Iterator[tuple[ReducerInput, list[Output]]]:
    """Group the outputs by task: neighbours whose blocks are stored in the same objects."""
    first: ReducerInput | None = None
    outputs: list[Output] = []
    for place, (key, column) in enumerate(columns):
        label = keeping.labels.get(key.slot)
        if label is None:
            continue
        if first is not None and (first.refs is not column.refs or len(outputs) == most):
            yield first, outputs
            first, outputs = None, []
        first = first or column
        outputs.append(Output(column.slot, place, label))
    if first is not None:
        yield first, outputs


def _settled(futures: Futures, in_flight: list[Ref]) -> list[Ref]:
    """Return the unfinished tasks; raise the error of one that failed."""
    done, pending = futures.wait(in_flight, timeout=0)
    for one in futures.get(done):
        raise_remote(one)
    return list(pending)


def _keep(data: bytes, outputs: Sequence[Output], *packed: Any) -> messages.JobReceipt:
    """Write the checkpoints of some outputs."""
    split, settings = pickle.loads(data)  # noqa: S301  our own driver's bytes
    start = time.perf_counter()

    def write() -> None:
        for output in outputs:
            value, _ = split.assemble(packed, output.slot, output.place)
            output.label.keep(value)

    with dask.config.set(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, failure = catch_failure(outputs[0].label.group, write)
    return messages.JobReceipt(
        time.perf_counter() - start, warned=distinct(caught), failure=failure
    )
