"""Bundles on their way to a task: serialization, submission, and the errors that come back."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import cloudpickle

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref, SubmitOptions
from dask_exo.errors import (
    ExoError,
    Failure,
    OutOfMemoryError,
    OwnerUnreachableError,
    SerializationError,
    WorkerLostError,
)
from dask_exo.execution import messages
from dask_exo.execution.actor_pool import PooledActor
from dask_exo.execution.persisted import Local, Remote, collecting_refs, promises_exist
from dask_exo.execution.ready_queue import HeldValues, Location
from dask_exo.execution.worker import run_bundles
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle


def build_jobs(
    bundles: Sequence[Bundle], values: HeldValues, *, check: bool
) -> tuple[list[messages.Job], list[Ref]]:
    """Return the jobs of some bundles, and the refs that they read, each once.

    Bundles are in an order in which they can run: some may read outputs of others. With ``check``,
    the call checks its arguments by their digests.
    """
    places: dict[Ref, int] = {}
    shared_refs: dict[int, tuple[Any, list[int]]] = {}

    def place(ref: Ref) -> int:
        return places.setdefault(ref, len(places))

    def source(
        location: Location,
    ) -> messages.Argument | list[messages.GatheredBlocks] | messages.Value:
        if isinstance(location, Local):
            return messages.Value(location.value)
        if isinstance(location, Remote):
            return messages.Argument(place(location.ref), location.digest if check else None)
        stage, split = location.stage, location.split
        return [
            messages.GatheredBlocks(
                stage, number, column.slot, shared(column.refs), split, share, is_copy
            )
            for number, column, share, is_copy in location.pieces
        ]

    def shared(refs: Sequence[Ref]) -> list[int]:
        if id(refs) not in shared_refs:  # reducers of one node share their refs
            shared_refs[id(refs)] = refs, [place(ref) for ref in refs]
        return shared_refs[id(refs)][1]

    inputs: list[dict[Key, Any]] = []
    positions: dict[Key, int] = {}
    for i, bundle in enumerate(bundles):
        sources: dict[Key, Any] = {}
        for key in bundle.sources:
            if key in positions:
                values.drop_reader(key)
                sources[key] = messages.JobOutput(positions[key])
            else:
                sources[key] = source(values.take(key))
        literals = {name: messages.Value(value) for name, value in bundle.literals.items()}
        inputs.append({**literals, **{name: sources[key] for name, key in bundle.inputs.items()}})
        positions[bundle.key] = i
    jobs = [
        messages.Job(
            b.key, b.nodes, sources, b.options.retries, values.has_readers(b.key), b.checkpoint
        )
        for b, sources in zip(bundles, inputs, strict=True)
    ]
    return jobs, list(places)


def serialize_call(
    code: messages.TaskCode, args: list[Ref], *, by_reference: bool
) -> bytes | messages.TaskCode:
    """Pickle the code of a task; append the refs of the promises in it to ``args``.

    For a task that shares the memory of the driver, ``by_reference``, return the code as it is,
    unless it may contain promises.
    """
    if by_reference and not promises_exist():
        return code

    def culprit() -> str:
        jobs = (job for job in code.jobs if not messages.is_picklable(job))
        return f"task {next(jobs, code.jobs[0]).key!r}"

    return serialize(code, args, culprit)


def serialize(content: Any, refs: list[Ref], culprit: Callable[[], str]) -> bytes:
    """Pickle what a task gets; append the refs of the promises in it to ``refs``.

    Raise `SerializationError` with the name of the ``culprit`` if that fails.
    """
    try:
        with collecting_refs(refs):
            data: bytes = cloudpickle.dumps(content)
            return data
    except ExoError:
        raise
    except Exception as error:
        raise SerializationError(
            f"{culprit()} cannot be sent to another process: {error}. Open files, locks, "
            f"connections and generators must be created inside the task"
        ) from error


_warned_before: dict[Any, Any] = {}  # like each module's: by default a line of code warns once


def raise_remote(receipt: messages.JobReceipt) -> None:
    """Repeat the warnings that user code issued in a task, and raise its exception."""
    for warning in receipt.warnings:
        warnings.warn_explicit(
            warning.message,
            warning.category,
            warning.filename,
            warning.lineno,
            registry=_warned_before,
        )
    if receipt.failure is not None:
        raise_failure(receipt.failure)


def raise_failure(failure: Failure) -> NoReturn:
    """Tell observers that a task has failed, and raise its exception."""
    events.emit(events.TaskFailed(failure.key, failure.text, failure.printed))
    failure.reraise()


@dataclass(slots=True)
class TaskCall:
    """Bundles that run as one task."""

    bundles: list[Bundle]
    data: bytes | messages.TaskCode  # pickled, unless the task shares the driver's memory
    args: Sequence[Ref]  # inputs, held as long as the task may have to be resubmitted
    read: list[int]  # bytes that each bundle reads from the object store
    returned: list[Key]  # values that are read outside of the call
    small: int | None  # largest value, in bytes, to return in a receipt; None for all values
    needs: SubmitOptions | None
    node: str | None
    expected_bytes: int
    actor: PooledActor | None
    unreachable: int = 0  # attempts that could not read a value of this program
    refs: dict[Key, Ref] = field(default_factory=dict)  # of values that are not in receipts

    def send(self, futures: Futures) -> Ref:
        """Submit the task; return the ref of its receipts."""
        target: Any = futures
        placement: dict[str, Any] = {"node": self.node, "options": self.needs}
        if self.actor is not None:
            target, placement = self.actor.handle, {}
        if self.small is None:
            receipts: Ref = target.submit(run_bundles, self.data, None, *self.args, **placement)
            return receipts
        count = len(self.returned) + 1
        *refs, receipts = target.split(
            count, run_bundles, self.data, self.small, *self.args, **placement
        )
        self.refs = dict(zip(self.returned, refs, strict=True))
        return receipts

    def finished(
        self, receipts: Sequence[messages.JobReceipt], labels: Mapping[str, str], small: int
    ) -> Iterator[events.TasksFinished]:
        """Yield an event for each group; a ``small`` result may stand for what was written."""
        sizes = {b.key: receipt.nbytes for b, receipt in zip(self.bundles, receipts, strict=True)}
        groups: dict[str, list[tuple[Key, float, int]]] = defaultdict(list)
        moved = Counter[str]()
        for bundle, receipt, read in zip(self.bundles, receipts, self.read, strict=True):
            name, nbytes = labels[bundle.group], receipt.nbytes
            groups[name].append((bundle.key, receipt.seconds, nbytes))
            inner = sum(sizes.get(source, 0) for source in bundle.sources)
            moved[name] += max(read + inner, nbytes if nbytes > small else 0)
        span, gpus = receipts[-1].span, self.bundles[0].options.gpus
        for name, tasks in groups.items():
            seconds, nbytes = sum(task[1] for task in tasks), sum(task[2] for task in tasks)
            here = span and span._replace(seconds=seconds)
            yield events.TasksFinished(
                name, len(tasks), seconds, nbytes, here, tuple(tasks), gpus, moved[name]
            )
            span = span and span._replace(start=span.start + seconds, requests={}, samples=None)


def receipts(futures: Futures, refs: Sequence[Ref], name: Callable[[Ref], str]) -> list[Any]:
    """Fetch the receipts of finished tasks; the error of a task that may be resubmitted."""
    try:
        return futures.get(refs)
    except Exception as error:
        if len(refs) == 1:
            if isinstance(error, (OutOfMemoryError, OwnerUnreachableError)):
                return [error]
            if isinstance(error, WorkerLostError):
                raise type(error)(f"task {name(refs[0])}: {error}") from error.__cause__
            error.add_note(f"dask_exo: no result of task {name(refs[0])}")
            raise
    return [receipts(futures, [ref], name)[0] for ref in refs]
