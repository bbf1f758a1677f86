"""What runs inside a task: bundles of the graph, and the map of a shuffle.

The driver sends `Work` (code, small values, and where the others are among the arguments); the
task sends back values and a `Done` for each bundle. Exceptions travel as `Failure`, so that Ray
does not retry what user code raised.
"""

from __future__ import annotations

import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle
import dask.config
from dask.sizeof import sizeof

from dask_exo.dask_adapter import GraphNode
from dask_exo.errors import StoreFullError
from dask_exo.failure import Failure
from dask_exo.frame.copies import plain
from dask_exo.graph.in_place import write_or_copy
from dask_exo.graph.normalize import Key, group_of
from dask_exo.graph.promise import landing
from dask_exo.graph.splits import Split
from dask_exo.shuffle.integrity import Tally
from dask_exo.shuffle.spec import Receipt

MOST_WARNINGS = 20  # of one task


@dataclass(frozen=True, slots=True)
class Argument:
    """Argument ``index`` of the call."""

    index: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """Output ``column`` of a shuffle: block ``slot`` of each of the arguments ``indices``."""

    stage: Key
    column: int
    slot: int
    indices: Sequence[int]
    split: Split


@dataclass(frozen=True, slots=True)
class Value:
    """A small value, sent with the code."""

    value: Any


@dataclass(frozen=True, slots=True)
class Job:
    """One bundle: its nodes, in order, and where their inputs come from."""

    key: Key
    nodes: Sequence[tuple[Key, GraphNode]]
    inputs: dict[Key, Argument | Gathered | Value]
    retries: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrived:
    """What one assembled shuffle output had in it."""

    stage: Key
    tally: Tally


class Warned(NamedTuple):
    """A warning that user code gave, as `warnings.warn_explicit` takes it."""

    message: Warning
    category: type[Warning]
    filename: str
    lineno: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one bundle.

    Attributes
    ----------
    seconds : float
        Time it took.
    nbytes : int
        Estimated size of its value.
    value : object
        The value itself where it is small, else None.
    small : bool
        Whether ``value`` is it.
    arrived : tuple of Arrived
    warned : tuple of Warned
        At most `MOST_WARNINGS`.
    failure : Failure, optional
    """

    seconds: float = 0.0
    nbytes: int = 0
    value: Any = None
    small: bool = False
    arrived: tuple[Arrived, ...] = ()
    warned: tuple[Warned, ...] = ()
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Detail:
    """What a map call adds to its `Receipt`: the parts it made, and what it read for them."""

    parts: int = 0
    arrived: tuple[Arrived, ...] = ()
    warned: tuple[Warned, ...] = ()
    failure: Failure | None = None


def dumps(jobs: Sequence[Job]) -> bytes:
    """Code of several jobs as bytes; functions of ``__main__`` and closures by value."""
    data: bytes = cloudpickle.dumps(jobs)
    return data


def run_apart(data: bytes, small: int, *args: Any) -> list[Any]:
    """Run jobs; return the value of each (None if small or failed), then a list of `Done`."""
    values, done = _run_all(data, small, args)
    return [*values, done]


def run_together(data: bytes, *args: Any) -> list[Done]:
    """Run jobs whose values should be small; return a list of `Done` with the values in it."""
    _, done = _run_all(data, sys.maxsize, args)
    return done


def run_map(owned: Sequence[range], data: bytes, *args: Any) -> list[Any]:
    """Make some parts of a shuffle and cut them: W packed blocks, then a `Receipt`.

    Parameters
    ----------
    owned : (W,)
        Reducers of each node.
    data : bytes
        Jobs of the parts, the `Split`, and the bytes that a block may have.
    """
    start = time.perf_counter()
    with landing(args):
        jobs, split, limit = pickle.loads(data)  # noqa: S301  our own driver's bytes
    outs = []
    for i in range(len(jobs)):
        outs.append(_attempt(jobs, i, args, lambda: pickle.loads(data)[0]))  # noqa: S301
        if outs[-1].failure is not None:
            return [*[None] * len(owned), Receipt(detail=Detail(failure=outs[-1].failure))]
    try:
        blocks, sent = split.cut([out.value for out in outs], owned)
        nbytes = [block.nbytes for block in blocks]
        _check_size(max(nbytes), limit, jobs)
    except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
        failure = Failure.of(jobs[0].key, error)
        return [*[None] * len(owned), Receipt(detail=Detail(failure=failure))]
    seconds = time.perf_counter() - start
    arrived = tuple(one for out in outs for one in out.arrived)
    warned = tuple(one for out in outs for one in out.warned)[:MOST_WARNINGS]
    return [*blocks, Receipt(sent, sum(nbytes), seconds, Detail(len(jobs), arrived, warned))]


def _run_all(data: bytes, small: int, args: Sequence[Any]) -> tuple[list[Any], list[Done]]:
    with landing(args):
        jobs: list[Job] = pickle.loads(data)  # noqa: S301  our own driver's bytes
    values: list[Any] = []
    done: list[Done] = []
    for i in range(len(jobs)):
        start = time.perf_counter()
        out = _attempt(jobs, i, args, lambda: pickle.loads(data))  # noqa: S301
        nbytes = sizeof(out.value)
        seconds = time.perf_counter() - start
        here = nbytes <= small or out.failure is not None
        values.append(None if here else out.value)
        done.append(
            Done(
                seconds,
                nbytes,
                out.value if here else None,
                small=here,
                arrived=out.arrived,
                warned=out.warned,
                failure=out.failure,
            )
        )
    return values, done


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one job: a value or a failure, and what happened on the way."""

    value: Any
    failure: Failure | None
    arrived: tuple[Arrived, ...]
    warned: tuple[Warned, ...]


def _attempt(
    jobs: Sequence[Job], i: int, args: Sequence[Any], reload: Callable[[], Sequence[Job]]
) -> Outcome:
    """Run job ``i``, as often as it may be retried.

    What an attempt does to its inputs and to the constants in its code is seen neither by the next
    one nor by the other jobs of the call.
    """
    job = jobs[i]
    arrived: list[Arrived] = []
    value, failure = None, None
    sent = [args[s.index] for s in job.inputs.values() if isinstance(s, Argument)]
    shared = len(jobs) > 1 or job.retries > 0 or not all(map(plain, sent))
    unused = iter([job])

    def call(bring: Callable[[Any], Any]) -> Any:
        arrived.clear()
        return _run(next(unused, None) or again(), args, arrived, bring)

    def again() -> Job:
        with landing(args):
            return reload()[i]

    with warnings.catch_warnings(record=True) as caught, dask.config.set(dict(job.settings)):
        warnings.simplefilter("always")
        for _ in range(job.retries + 1):
            try:
                value = write_or_copy(call, group_of(job.key), shared=shared)
                failure = None
                break
            except Exception as error:  # noqa: BLE001  reported to the driver, which raises it
                failure = Failure.of(job.key, error)
                traceback.clear_frames(error.__traceback__)  # they hold what is in the store
    return Outcome(value, failure, tuple(arrived), _distinct(caught))


def _distinct(caught: Sequence[warnings.WarningMessage]) -> tuple[Warned, ...]:
    found: dict[Any, Warned] = {}
    for one in caught:
        message = one.message if isinstance(one.message, Warning) else one.category(one.message)
        place = (str(message), one.category, one.filename, one.lineno)
        found.setdefault(place, Warned(message, one.category, one.filename, one.lineno))
    return tuple(found.values())[:MOST_WARNINGS]


def _run(job: Job, args: Sequence[Any], arrived: list[Arrived], bring: Callable[[Any], Any]) -> Any:
    values: dict[Key, Any] = {}
    for name, source in job.inputs.items():
        if isinstance(source, Value):
            values[name] = bring(source.value)
        elif isinstance(source, Argument):
            arg = args[source.index]
            if isinstance(arg, Failure):  # of a task whose ref was known before it ran
                arg.reraise()
            values[name] = bring(arg)
        else:
            packed = [args[i] for i in source.indices]
            output, tally = source.split.assemble(packed, source.slot, source.column)
            values[name] = bring(output)
            arrived.append(Arrived(source.stage, tally))
    if not job.nodes:
        (value,) = values.values()
        return value
    last_use = {name: i for i, (_, node) in enumerate(job.nodes) for name in node.dependencies}
    for i, (key, node) in enumerate(job.nodes):
        values[key] = node(values)
        for name in node.dependencies:
            if last_use[name] == i:
                del values[name]  # a partition that is used up need not stay in memory
    return values[job.nodes[-1][0]]


def _check_size(nbytes: int, limit: int, jobs: Sequence[Job]) -> None:
    if nbytes > limit:
        raise StoreFullError(
            f"partition {jobs[0].key!r} makes a shuffle block of {nbytes / 1e6:.0f} MB; a node's "
            f"object store takes {limit / 1e6:.0f} MB at a time. Raise exo.object-store-memory, "
            f"or make smaller partitions (blocksize=, .repartition(partition_size=))"
        )
