"""The outputs of a shuffle are kept before anybody works on them.

If the tasks that read them kept them, one by one, a program that dies in the middle of that work
would leave a shuffle of which a part is there, and the next program would need its whole map side
again for the rest.
"""

from __future__ import annotations

import pickle
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import dask.config

from dask_exo.cluster.futures import Futures, Ref, Steps, Until
from dask_exo.execution.checkpoints.outputs import CheckpointKey, ShuffleCheckpoint
from dask_exo.execution.tasks import messages
from dask_exo.execution.tasks.serialize import raise_remote
from dask_exo.execution.tasks.worker import distinct
from dask_exo.planning.partitioners import Partitioner
from dask_exo.planning.plan import OutputKey
from dask_exo.remote_error import Failure
from dask_exo.shuffle.spec import ReducerInput

TOGETHER = 32 * 2**20  # bytes of outputs that one task keeps


class Output(NamedTuple):
    """One that a task keeps: its block of each argument, its place, and where it is kept."""

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
    """Assemble the outputs of a shuffle, each only to keep it.

    Parameters
    ----------
    futures : Futures
    columns : sequence of (OutputKey, ReducerInput)
        (R,) what is to be read for each output.
    keeping : ShuffleCheckpoint
        Those that are kept.
    split : Partitioner
        How an output is put together.
    nbytes : int
        Of an output, about.
    window : int
        Tasks in flight.
    settings : dict
        What tasks find in ``dask.config``.

    Raises
    ------
    CheckpointError
        One is not equal to what was kept before.
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
    """Outputs that one task keeps: neighbours whose blocks lie in the same objects."""
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
    """Those that have not ended; raise what made one of the others fail."""
    done, pending = futures.wait(in_flight, timeout=0)
    for one in futures.get(done):
        raise_remote(one)
    return list(pending)


def _keep(data: bytes, outputs: Sequence[Output], *packed: Any) -> messages.JobReceipt:
    """Task: keep some outputs."""
    split, settings = pickle.loads(data)  # noqa: S301  our own driver's bytes
    start, failure = time.perf_counter(), None
    with dask.config.set(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for one in outputs:
                value, _ = split.assemble(packed, one.slot, one.place)
                one.label.keep(value)
        except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
            failure = Failure.of(outputs[0].label.group, error)
    return messages.JobReceipt(
        time.perf_counter() - start, warned=distinct(caught), failure=failure
    )
