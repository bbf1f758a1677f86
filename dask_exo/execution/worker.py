"""Code that runs inside a task: bundles of the graph, and the map of a shuffle.

Arrays from the object store are read-only. Code runs on them as they are. If it fails because it
writes into one, it runs again on copies, and from then on tasks of that group get copies at once.
No attempt sees what another one wrote.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, TypeVar

import cloudpickle
import numpy as np
from dask.sizeof import sizeof
from dask.utils import format_bytes

from dask_exo.cluster.failpoints import reach
from dask_exo.cluster.futures import shares_process
from dask_exo.cluster.ownership import (
    is_plain_data,
    isolated,
    isolated_view,
    size_of,
    writable,
)
from dask_exo.cluster.sampling import printed, sampling
from dask_exo.cluster.task_status import OutputDigest, report_output
from dask_exo.errors import Failure, StoreFullError
from dask_exo.events import call_span
from dask_exo.execution.messages import (
    Argument,
    AssembledTally,
    GatheredBlocks,
    Job,
    JobOutput,
    JobReceipt,
    MapDetail,
    TaskCode,
    TaskWarning,
    Value,
    driver_settings,
    paused_gc,
    recorded_warnings,
)
from dask_exo.execution.persisted import checked, substituting_values
from dask_exo.partitions.batching import has_rows
from dask_exo.partitions.digest import digest
from dask_exo.partitions.protocol import concat
from dask_exo.planning.normalize import Key, group_of
from dask_exo.planning.plan import label_of
from dask_exo.shuffle.spec import Receipt

T = TypeVar("T")

MOST_WARNINGS = 20  # of one task


def run_bundles(data: bytes | TaskCode, small: int | None, *args: Any) -> list[Any]:
    """Run bundles; return the values that are read outside of the call, then the receipts.

    ``data`` is a `TaskCode`, pickled if it comes from another process. None stands in for a value
    that is small or failed. A small value, of at most ``small`` bytes, is in its receipt; if
    ``small`` is None, every value is.
    """
    values: list[Any] = []
    receipts: list[JobReceipt] = []
    largest = sys.maxsize if small is None else small
    with running(data, args) as code, sampling(__name__, on=code.is_sampled) as take:
        start = begin = time.perf_counter()
        for job, outcome in zip(code.jobs, run_jobs(code.jobs, args, data), strict=True):
            known = small is None or shares_process()  # nothing is sent, or all is
            nbytes = sizeof(outcome.value) if known else size_of(outcome.value, largest)
            in_receipt = nbytes <= largest or outcome.failure is not None or not job.returned
            if job.returned:
                values.append(None if in_receipt else outcome.value)
            end = time.perf_counter()
            receipt = JobReceipt(
                end - start,
                nbytes,
                outcome.value if in_receipt and job.returned else None,
                in_receipt,
                outcome.assembled,
                outcome.warnings,
                outcome.failure,
                checkpoint_seconds=outcome.checkpoint_seconds,
                rows=None if in_receipt or not has_rows(outcome.value) else len(outcome.value),
            )
            receipts.append(receipt)
            start = end
        receipts[-1] = receipts[-1]._replace(span=call_span(start - begin, take()))
    output_digest = _report(code, [value for value in values if value is not None])
    receipts = [r if r.small else r._replace(digest=output_digest) for r in receipts]
    return receipts if small is None else [*values, receipts]


def run_map(owned: Sequence[range], data: bytes | TaskCode, *args: Any) -> list[Any]:
    """Run a map: compute some partitions, divide them; return W packed blocks, then a `Receipt`.

    ``owned`` has the reducers of each of W nodes. ``data`` is a `TaskCode` with a
    `MapCode`, pickled as in `run_bundles`.
    """
    start = time.perf_counter()
    outcomes: list[JobOutcome] = []
    with running(data, args) as code, sampling(__name__, on=code.is_sampled) as take:
        jobs, map_code = code.jobs, code.map
        assert map_code is not None
        partitioner = map_code.partitioner
        if map_code.filtered is not None:
            place, keys = map_code.filtered
            partitioner = replace(partitioner, keep=partial(args[place].contains, columns=keys))

        def cut() -> tuple[Sequence[Any], Any]:
            reach("map", jobs[0].key)
            blocks, tally = partitioner.cut([outcome.value for outcome in outcomes], owned)
            _check_size(max(block.nbytes for block in blocks), map_code.largest_block, jobs)
            return blocks, tally

        for outcome in run_jobs(jobs, args, data):
            if outcome.failure is not None:
                return _failed_map(owned, outcome.failure)
            outcomes.append(outcome)
        result, failure = catch_failure(jobs[0].key, cut)
        if result is None:
            return _failed_map(owned, failure)
        blocks, tally = result
        sizes = np.concatenate([block.sizes for block in blocks]) if map_code.observed else None
        samples = take()
    nbytes = tuple(block.nbytes for block in blocks)
    output_digest = _report(code, blocks)
    seconds = time.perf_counter() - start
    call = JobReceipt(
        assembled=tuple(chain.from_iterable(outcome.assembled for outcome in outcomes)),
        warnings=tuple(chain.from_iterable(out.warnings for out in outcomes))[:MOST_WARNINGS],
        span=call_span(seconds, samples),
        digest=output_digest,
        checkpoint_seconds=sum(outcome.checkpoint_seconds for outcome in outcomes),
    )
    rows = 0 if map_code.filtered is None else sum(len(outcome.value) for outcome in outcomes)
    detail = MapDetail(call, len(jobs), map_code.start, sizes, max(0, rows - tally.rows))
    return [*blocks, Receipt(tally, sum(nbytes), seconds, detail, sizes=nbytes)]


def _failed_map(owned: Sequence[range], failure: Failure | None) -> list[Any]:
    return [*[None] * len(owned), Receipt(detail=MapDetail(JobReceipt(failure=failure)))]


@contextlib.contextmanager
def running(data: bytes | TaskCode, args: Sequence[Any]) -> Iterator[TaskCode]:
    """Unpickle the code of a task, and set its ``dask.config`` as in the driver meanwhile."""
    code = load_call(data, args) if isinstance(data, bytes) else data
    with driver_settings(code.settings):
        yield code


_DISTRIBUTED = b"distributed"
"""In code that may use locks or a client of `distributed`, which need a connection to it. Other
tasks do not import that."""


def load_call(data: Any, args: Sequence[Any]) -> Any:
    """Unpickle the content of a task; promises in it get their values from its arguments.

    Content that was not pickled is copied if that is possible.
    """
    if not isinstance(data, bytes):
        try:
            data = cloudpickle.dumps(data)
        except Exception:  # noqa: BLE001  whatever a class raises in its own methods
            return data
    if _DISTRIBUTED in data and not shares_process():
        import_module("dask_exo.client.client").attach()
    with substituting_values(args), paused_gc():
        return pickle.loads(data)  # noqa: S301  our own driver's bytes


def _report(code: TaskCode, values: Sequence[Any]) -> OutputDigest | None:
    """Report what a call has put into the store, by a digest if that is on."""
    if shares_process():  # nothing is lost, so nothing is recomputed
        return None
    number = digest(*values) if code.compares and values else None
    first = code.jobs[0]
    return report_output(label_of(first.nodes, first.key), len(code.jobs), number)


class CallArguments:
    """Arguments of a call, and blocks of the same shuffle that several of its jobs read."""

    def __init__(self, jobs: Sequence[Job], args: Sequence[Any]) -> None:
        self.args = args
        self._checked: set[int] = set()
        self._slots: dict[Any, set[int]] = defaultdict(set)
        self._cache: dict[Any, tuple[Any, dict[int, int]]] = {}
        for source in chain.from_iterable(job.inputs.values() for job in jobs):
            for piece in source if isinstance(source, list) else ():
                self._slots[piece.stage, tuple(piece.indices)].add(piece.slot)

    def value(self, source: Argument) -> Any:
        """Return an argument, which is checked when it is first read."""
        value = self.args[source.place]
        if isinstance(value, Failure):  # of a task whose ref was known before it ran
            value.reraise()
        if source.place not in self._checked:
            checked(value, source.digest)
            self._checked.add(source.place)
        return value

    def blocks(self, source: GatheredBlocks) -> tuple[Sequence[Any], int]:
        """Return the objects that hold the blocks of an output, and its position in each."""
        packed = [self.args[i] for i in source.indices]
        if source.share is not None:
            return source.share.cut(packed), source.slot
        key = (source.stage, tuple(source.indices))
        if len(packed) == 1 or len(self._slots[key]) == 1:
            return packed, source.slot
        if key not in self._cache:
            slots = sorted(self._slots[key])
            blocks = type(packed[0]).collect(packed, slots)
            self._cache[key] = blocks, {slot: i for i, slot in enumerate(slots)}
        blocks, positions = self._cache[key]
        return (packed, source.slot) if blocks is None else ([blocks], positions[source.slot])


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Value or failure of one job, with its tallies and warnings."""

    value: Any = None
    failure: Failure | None = None
    assembled: tuple[AssembledTally, ...] = ()
    warnings: tuple[TaskWarning, ...] = ()
    checkpoint_seconds: float = 0.0


def run_jobs(jobs: Sequence[Job], args: Sequence[Any], data: Any) -> Iterator[JobOutcome]:
    """Run jobs one after the other; drop each value after its last use in the call."""
    outputs: dict[int, Any] = {}
    arguments = CallArguments(jobs, args)
    last = {index: i for i, job in enumerate(jobs) for index in job.inner}
    for i, job in enumerate(jobs):
        failures = [outputs[index] for index in job.inner if isinstance(outputs[index], Failure)]
        outcome = JobOutcome(failure=failures[0] if failures else None)
        if not failures:
            outcome = _attempt(jobs, i, arguments, outputs, data)
        outputs.update({i: outcome.failure or outcome.value} if i in last else {})
        for index in job.inner:
            if last[index] == i:
                outputs.pop(index, None)  # after its last use it need not stay in memory
        yield outcome


def _attempt(
    jobs: Sequence[Job], i: int, arguments: CallArguments, outputs: Mapping[int, Any], data: Any
) -> JobOutcome:
    """Run job ``i``, with its retries.

    Neither the next attempt nor another job of the call sees changes that an attempt makes to its
    inputs, or to constants in its code.
    """
    job, start = jobs[i], time.perf_counter()
    assembled: list[AssembledTally] = []
    value, failure, checkpoint_seconds = None, None, 0.0
    values = [arguments.args[s.place] for s in job.inputs.values() if isinstance(s, Argument)]
    shared = len(jobs) > 1 or job.retries > 0 or not all(map(is_plain_data, values))
    shared |= shares_process()
    unused_jobs = iter([job])

    def call(prepare: Callable[[Any], Any]) -> Any:
        assembled.clear()
        job_copy = next(unused_jobs, None) or load_call(data, arguments.args).jobs[i]
        if not job_copy.inputs:
            reach("read", job_copy.key)
        value = _run(job_copy, _inputs(job_copy, arguments, outputs, assembled, prepare), prepare)
        reach("made", job_copy.key)
        return value

    with recorded_warnings() as records:
        for _ in range(job.retries + 1):
            run = partial(write_or_copy, call, group_of(job.key), shared=shared)
            value, failure = catch_failure(job.key, run)
            if failure is None:
                break
        if job.checkpoint is not None and failure is None:
            write = partial(job.checkpoint.write, value, time.perf_counter() - start)
            seconds, failure = catch_failure(job.key, write)
            checkpoint_seconds = seconds or 0.0
    return JobOutcome(
        value, failure, tuple(assembled), distinct_warnings(records), checkpoint_seconds
    )


def catch_failure(key: Key, call: Callable[[], T]) -> tuple[T | None, Failure | None]:
    """Call a function; return its value, or the failure that the driver will raise."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  the driver raises it
        failure = Failure.of(key, error, printed())
        traceback.clear_frames(error.__traceback__)  # its frames hold values of the object store
        return None, failure


def distinct_warnings(records: Sequence[warnings.WarningMessage]) -> tuple[TaskWarning, ...]:
    """Return the first few distinct warnings of a task."""
    unique: dict[Any, TaskWarning] = {}
    for record in records:
        message = (
            record.message
            if isinstance(record.message, Warning)
            else record.category(record.message)
        )
        place = (str(message), record.category, record.filename, record.lineno)
        unique.setdefault(
            place, TaskWarning(message, record.category, record.filename, record.lineno)
        )
    return tuple(unique.values())[:MOST_WARNINGS]


def _run(job: Job, values: dict[Key, Any], prepare: Callable[[Any], Any]) -> Any:
    """Run the nodes of a job; drop each of ``values`` after its last use."""
    if not job.nodes:
        (value,) = values.values()
        return value
    last_use = {name: i for i, (_, node) in enumerate(job.nodes) for name in node.dependencies}
    readers = Counter(name for _, node in job.nodes for name in node.dependencies)
    for i, (key, node) in enumerate(job.nodes):
        inputs = values
        if any(readers[name] > 1 for name in node.dependencies):
            inputs = {name: values[name] for name in node.dependencies}
            inputs.update(
                (n, prepare(isolated_view(v))) for n, v in inputs.items() if readers[n] > 1
            )
        values[key] = node(inputs)
        del inputs
        for name in node.dependencies:
            if last_use[name] == i:
                del values[name]  # after its last use it need not stay in memory
    return values[job.nodes[-1][0]]


def _inputs(
    job: Job,
    arguments: CallArguments,
    outputs: Mapping[int, Any],
    assembled: list[AssembledTally],
    prepare: Callable[[Any], Any],
) -> dict[Key, Any]:
    values: dict[Key, Any] = {}
    for name, source in job.inputs.items():
        if isinstance(source, Value):
            values[name] = prepare(source.value)
        elif isinstance(source, JobOutput):
            values[name] = prepare(outputs[source.place])
        elif isinstance(source, Argument):
            values[name] = prepare(arguments.value(source))
        else:
            reach("reduce", name)
            values[name] = prepare(_assemble(source, arguments, assembled))
    return values


def _assemble(
    pieces: Sequence[GatheredBlocks], arguments: CallArguments, assembled: list[AssembledTally]
) -> Any:
    """Assemble an output of a shuffle; record the tallies of the rows that no other task counts."""
    outputs = []
    for piece in pieces:
        packed, slot = arguments.blocks(piece)
        output, tally = piece.split.assemble(packed, slot, piece.column)
        outputs.append(output)
        if not piece.is_copy:
            assembled.append(AssembledTally(piece.stage, tally))
    return outputs[0] if len(outputs) == 1 else concat(outputs)


def _check_size(nbytes: int, limit: int, jobs: Sequence[Job]) -> None:
    if nbytes > limit:
        raise StoreFullError(
            f"partition {jobs[0].key!r} makes a shuffle block of {format_bytes(nbytes)}, but the "
            f"object store of a node takes {format_bytes(limit)} at a time. Raise "
            f"exo.object-store-memory, or make smaller partitions (blocksize=, "
            f".repartition(partition_size=))"
        )


MOST_GROUPS = 10_000  # that a process remembers as writing

_ALL = ""  # the group of all tasks
_writing_groups: set[str] = set()  # groups that have written into their inputs in this process

# numpy: "assignment destination is read-only", "cannot set WRITEABLE flag to True of this array";
# Cython, and with it scipy and scikit-learn: "buffer source array is read-only"; pybind11: "array
# is not writeable"; numba: "Cannot modify readonly array"; Python: "underlying buffer is not
# writable"
_COMPLAINT = re.compile(r"read[ -]?only|not writ(e?)able|non-writ(e?)able|writeable flag", re.I)

# PyTorch warns once in each process, before it writes all the same
_PYTORCH = "The given NumPy array is not writable"


def write_or_copy(
    call: Callable[[Callable[[Any], Any]], T], group: str, *, shared: bool = True
) -> T:
    """Run code on read-only inputs; if it fails to write into them, run it again on copies.

    ``call`` applies the function that it gets to each input. All tasks of a group write, or none.
    If inputs are ``shared``, another task or attempt reads them, too.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.frombuffer(bytes(16))
    >>> write_or_copy(lambda prepare: np.add(x, 1, out=prepare(x)), "add")
    array([1., 1.])
    """
    if not _writing_groups.isdisjoint((group, _ALL)) or (
        shares_process() and "torch" in sys.modules
    ):
        return call(_copied)
    try:
        with _errors_of_pytorch():
            return call(isolated if shared else _unchanged)
    except Exception as error:
        # of each complaint, whether it is a warning: the exceptions would hold this frame
        complaints = [isinstance(e, Warning) for e in _chain(error) if _complains(e)]
        if not complaints:
            raise
        if any(complaints):
            group = _ALL
        traceback.clear_frames(error.__traceback__)
    if len(_writing_groups) < MOST_GROUPS:
        _writing_groups.add(group)
    return call(_copied)


@contextlib.contextmanager
def _errors_of_pytorch() -> Iterator[None]:
    """Raise what PyTorch warns of, in a process of its own: filters of warnings are global."""
    if shares_process():
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("error", _PYTORCH)
        yield


def _unchanged(value: Any) -> Any:
    return value


def _copied(value: Any) -> Any:
    return writable(isolated(value))


def _complains(error: BaseException) -> bool:
    return not isinstance(error, OSError) and _COMPLAINT.search(str(error)) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its cause or context, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
