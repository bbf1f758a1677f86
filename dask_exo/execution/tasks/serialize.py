"""Serialization of bundles for a task, and handling of the errors that come back."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from dask_exo.cluster.futures import Ref
from dask_exo.errors import ExoError, SerializationError
from dask_exo.execution.persisted import Local, Remote, collecting_refs
from dask_exo.execution.tasks import messages
from dask_exo.execution.values import Held, Values
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle


def build_jobs(bundles: Sequence[Bundle], values: Values) -> tuple[list[messages.Job], list[Ref]]:
    """Return the jobs of some bundles, and the refs that they read, each once.

    Parameters
    ----------
    bundles : sequence of Bundle
        In an order in which they can run: some may read outputs of others.
    values : Values
        Of this run.

    Returns
    -------
    jobs : list of Job
        With the positions of their inputs among ``refs``.
    refs : list
        Arguments of the call.
    """
    places: dict[Ref, int] = {}
    piles: dict[int, tuple[Any, list[int]]] = {}

    def place(ref: Ref) -> int:
        return places.setdefault(ref, len(places))

    def source(held: Held) -> messages.Argument | messages.GatheredBlocks | messages.Value:
        if isinstance(held, Local):
            return messages.Value(held.value)
        if isinstance(held, Remote):
            return messages.Argument(place(held.ref))
        refs, column = held.column.refs, held.column
        if id(refs) not in piles:  # reducers of one node share their refs
            piles[id(refs)] = refs, [place(ref) for ref in refs]
        return messages.GatheredBlocks(
            held.key.stage, held.key.slot, column.slot, piles[id(refs)][1], held.split
        )

    inputs: list[dict[Key, Any]] = []
    made: dict[Key, int] = {}
    for i, bundle in enumerate(bundles):
        sources: dict[Key, Any] = {}
        for key in bundle.sources:
            if key in made:
                values.drop_reader(key)
                sources[key] = messages.JobOutput(made[key])
            else:
                sources[key] = source(values.take(key))
        given = {name: messages.Value(value) for name, value in bundle.literals.items()}
        inputs.append({**given, **{name: sources[key] for name, key in bundle.inputs.items()}})
        made[bundle.key] = i
    jobs = [
        messages.Job(b.key, b.nodes, mine, b.options.retries, values.has_readers(b.key), b.label)
        for b, mine in zip(bundles, inputs, strict=True)
    ]
    return jobs, list(places)


def serialize_call(content: Any, jobs: Sequence[messages.Job], args: list[Ref]) -> bytes:
    """Pickle the content of a task, of which ``jobs`` are a part.

    Refs of the promises in it (see `Promise`) are appended to ``args``.

    Raises
    ------
    SerializationError
        A task cannot be pickled.
    """
    try:
        with collecting_refs(args):
            return messages.dumps(content)
    except ExoError:
        raise
    except Exception as error:
        culprit = next((job.key for job in jobs if not _sendable(job)), jobs[0].key)
        raise SerializationError(
            f"task {culprit!r} cannot be sent to another process: {error}. Open files, locks, "
            f"connections and generators must be made inside the task"
        ) from error


def _sendable(job: messages.Job) -> bool:
    try:
        messages.dumps([job])
    except Exception:  # noqa: BLE001  whatever it is, it is the reason
        return False
    return True


_warned_before: dict[Any, Any] = {}  # as each module has it: one place warns once by default


def raise_remote(came: messages.JobReceipt | messages.MapDetail) -> None:
    """Repeat the warnings of user code in a task, and raise its exception."""
    for one in came.warned:
        warnings.warn_explicit(
            one.message, one.category, one.filename, one.lineno, registry=_warned_before
        )
    if came.failure is not None:
        came.failure.reraise()


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pause Python's garbage collector, for all threads, while many objects are made that stay.

    Otherwise it visits each of them again and again: a fifth of the time of a large graph.
    """
    if not gc.isenabled():  # as somebody else wants it, be it another thread in here
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
