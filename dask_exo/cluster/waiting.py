"""Waiting for tasks: conditions of coroutines, and a watchdog for stalls."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dask.utils import format_bytes

from dask_exo.cluster.futures import FetchTimeoutError, Futures, Node, Ref
from dask_exo.cluster.resources import (
    ONE_CPU,
    Amounts,
    ResourceRequest,
    fits,
    next_cpu_request,
)
from dask_exo.cluster.task_status import Activity, Snapshot, diagnose
from dask_exo.errors import ClusterError, OutOfMemoryError, OwnerUnreachableError, StalledError

MOST_ATTEMPTS = 5  # of a task whose node does not know the program
REACHABLE = 1.0  # seconds before such a task runs again
T = TypeVar("T")

Wait = Callable[[Sequence[Ref], float | None], tuple[list[Ref], list[Ref]]]
"""Function that waits for some refs, at most a number of seconds; see `Futures.wait`."""

MOMENT = 0.01  # shortest wait for a value, in seconds
NODE_INTERVAL = 1.0  # seconds between two looks for a node that has to start


@dataclass(frozen=True)
class Until:
    """Condition that a coroutine waits for: all of some refs, any of others, or a time.

    Or for a state that other coroutines of the same loop change: until ``met`` returns true.
    """

    all: Collection[Ref] = ()
    any: Collection[Ref] = ()
    time: float | None = None
    met: Callable[[], bool] | None = None


Steps = Generator[Collection[Ref] | Until, None, T]
"""A coroutine on the waist: it submits tasks, yields refs to wait for, and returns a `T`."""


def drive(futures: Futures, steps: Steps[T], wait: Wait | None = None) -> T:
    """Run one coroutine alone, to its end; return its result.

    ``wait`` is called instead of `Futures.wait`; it may raise, which ends the coroutine.

    Examples
    --------
    >>> from dask_exo.testing import InlineFutures
    >>> f = InlineFutures()
    >>> def double_twice(x):
    ...     ref = f.submit(lambda v: 2 * v, x)
    ...     yield [ref]
    ...     return f.submit(lambda v: 2 * v, ref)
    >>> f.get([drive(f, double_twice(5))])
    [20]
    """
    wait = wait or futures.wait
    try:
        while True:
            waiting = Waiting(next(steps))
            while not waiting.over(futures.now):
                done, _ = wait(waiting.refs, waiting.timeout(futures.now))
                waiting.finished(done)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class Waiting:
    """The unmet part of the condition that a coroutine waits for."""

    def __init__(self, condition: Collection[Ref] | Until = ()) -> None:
        until = condition if isinstance(condition, Until) else Until(condition)
        self._all, self._any = dict.fromkeys(until.all), dict.fromkeys(until.any)
        self._time, self._state = until.time, until.met
        self._met = not self._all and not self._any and self._state is None

    @property
    def refs(self) -> list[Ref]:
        """Refs that are not finished yet."""
        return [*self._all, *self._any]

    def timeout(self, now: float) -> float | None:
        """Return the seconds until the coroutine continues in any case."""
        return None if self._time is None else max(0.0, self._time - now)

    def finished(self, refs: Collection[Ref]) -> None:
        """Record finished refs; refs that are not awaited are ignored."""
        if not self._met:
            self._met = any(ref in self._any for ref in refs)
            expected = bool(self._all)
            for ref in refs:
                self._all.pop(ref, None)
            self._met |= expected and not self._all

    def over(self, now: float) -> bool:
        """Return whether the condition is met."""
        if self._state is not None:
            self._met |= self._state()
        return self._met or (self._time is not None and now >= self._time)


class Watchdog:
    """Waits on behalf of one loop, and detects stalls.

    It checks the cluster's activity when nothing has happened for ``limit`` seconds, if given.
    """

    def __init__(self, futures: Futures, limit: float | None) -> None:
        self._futures, self._limit = futures, limit
        self._initial_nodes = {node.id for node in _alive(futures)} if limit else set()
        self._since = self._waited = futures.now

    def moved(self) -> None:
        """Record that something has happened."""
        self._since = self._futures.now

    def wait(
        self,
        refs: Sequence[Ref],
        timeout: float | None = None,
        name: Callable[[Ref], str] = lambda _: "a task",
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait as `Futures.wait` does. Time between two waits does not count.

        ``name`` returns the name of the task behind a ref. It is not stored: it may hold refs.

        Raises
        ------
        StalledError
            No task has finished since `moved` or the last one, and no progress is possible.
        """
        self._since += self._futures.now - self._waited
        end = None if timeout is None else self._futures.now + timeout
        while True:
            left = None if end is None else max(0.0, end - self._futures.now)
            due = self._due()
            pause = min((t for t in (left, due) if t is not None), default=None)
            done, pending = self._futures.wait(refs, timeout=pause)
            self._waited = self._futures.now
            if done:
                self.moved()
            else:
                self.check(lambda: self._futures.activity(refs), lambda: map(name, refs))
            if done or (end is not None and self._futures.now >= end):
                return done, pending

    def get(self, ref: Ref, name: str) -> Any:
        """Wait for the value of a finished task, as `Futures.get` does.

        Raises
        ------
        StalledError
            It was spilled, and is not restored although the disks are idle.
        """
        self.moved()
        restored = self._futures.store().restored
        while True:
            due = self._due()
            timeout = None if due is None else max(due, MOMENT)
            with contextlib.suppress(FetchTimeoutError):
                return self._futures.get([ref], timeout)[0]
            previous, restored = restored, self._futures.store().restored
            self._check_location(ref, name, others=restored != previous)

    def _check_location(self, ref: Ref, name: str, *, others: bool) -> None:
        """Check where a late value is, and whether others are being restored."""
        activity = self._futures.activity([ref])
        if others or activity.tasks[0].state == "finished":  # it is on its way between nodes
            self.moved()
        self.check(lambda: activity, lambda: [name])

    def check(self, activity: Callable[[], Activity], names: Callable[[], Iterable[str]]) -> None:
        """Check the activity of the cluster, if that is due.

        Raises
        ------
        StalledError
            None of the awaited tasks is running, and none can start.
        """
        if self._due() != 0:
            return
        current, store = activity(), self._futures.store()
        nodes, disks = _alive(self._futures), self._futures.disks()
        why = diagnose(
            Snapshot(
                current,
                list(names()),
                self._initial_nodes - current.nodes.keys(),
                store.used,
                sum(node.store for node in nodes),
                next((disk.place for disk in disks if not disk.room), None),
                self._futures.now - self._since,
                store.spilled,
                next((disk.place for disk in disks), None),
            )
        )
        if why is not None:
            raise StalledError(why)
        self.moved()

    def _due(self) -> float | None:
        """Return the seconds until the next check; None for never."""
        if not self._limit:
            return None
        return max(0.0, self._since + self._limit - self._futures.now)


def _alive(futures: Futures) -> list[Node]:
    """Return the nodes; none if the cluster has lost all of them."""
    try:
        return futures.nodes()
    except ConnectionError:
        return []


def await_nodes(futures: Futures, requests: Collection[Amounts], limit: float | None) -> list[Node]:
    """Return the nodes, once each of some requests fits one of them.

    Wait for nodes only where the cluster starts them on demand, at most ``limit`` seconds.

    Raises
    ------
    ClusterError
        They have not joined within the limit; or there is no node at all.
    """
    who, end, told = f"start {uuid.uuid4().hex}", futures.now + (limit or 0.0), False
    try:
        while futures.elastic and limit:
            nodes = _alive(futures)
            missing = _missing(nodes, requests)
            if not missing:
                return nodes
            if not futures.ask(who, dict.fromkeys(missing, 1)):
                break  # the caller knows what to say
            what = " and ".join(map(str, map(ResourceRequest, missing)))
            keys = f"within {limit:.0f} s (exo.fault.node-timeout)"
            if futures.now >= end:
                raise ClusterError(
                    f"no node with {what} has joined the cluster {keys}: look at `ray status`, at "
                    f"the most nodes that its configuration allows, or wait longer"
                )
            if not told:
                sys.stderr.write(f"dask_exo: waits for a node with {what} to start, {keys}\n")
                told = True
            futures.wait([], NODE_INTERVAL)
    finally:
        if told:
            futures.ask(who, {})
    return futures.nodes()


def _missing(nodes: Sequence[Node], requests: Collection[Amounts]) -> list[Amounts]:
    """Return the requests that fit no node."""
    if not nodes:
        return list(requests) or [ONE_CPU.amounts]
    if any(node.resources is None for node in nodes):
        return []
    known = [node.resources or {} for node in nodes]
    return [one for one in requests if not any(fits(node, dict(one)) for node in known)]


def fetch_values(
    futures: Futures,
    refs: Sequence[Ref],
    limit: float | None,
    name: Callable[[Ref], str] = lambda _: "a value",
) -> list[Any]:
    """Get the values of finished tasks, as `Futures.get` does, but detect stalls.

    The cluster's activity is checked after ``limit`` seconds for all values, and then for each
    missing one; None or 0 waits without limit.

    Raises
    ------
    StalledError
        A value was spilled, and is not restored.
    """
    if not limit:
        return futures.get(refs)
    with contextlib.suppress(FetchTimeoutError):
        return futures.get(refs, limit)
    watchdog = Watchdog(futures, limit)
    return [watchdog.get(ref, name(ref)) for ref in refs]


def await_reachable(futures: Futures, attempts: int, error: OwnerUnreachableError) -> None:
    """Wait before a task runs again whose node could not read a value of this program.

    Raise ``error`` after `MOST_ATTEMPTS`.
    """
    if attempts >= MOST_ATTEMPTS:
        raise error
    futures.wait([], timeout=REACHABLE)


def widen_request(
    needs: Mapping[str, Any] | None, nodes: Sequence[Node], what: str, error: OutOfMemoryError
) -> dict[str, Any]:
    """Return the request of a task whose node ran out of memory: more slots, so fewer neighbours.

    Raise `OutOfMemoryError` if the task had a whole node.
    """
    largest = max(nodes, key=lambda node: node.slots)
    options = dict(needs or {})
    slots = next_cpu_request(float(options.get("num_cpus") or 1), largest.slots)
    if slots is None:
        memory = (largest.resources or {}).get("memory")
        capacity = "" if memory is None else f" It has {format_bytes(int(memory))} for tasks."
        raise OutOfMemoryError(
            f"{what} was stopped because its node ran out of memory, even with no other "
            f"task beside it.{capacity} Make smaller partitions: npartitions= of the shuffle "
            f"before it, blocksize= where it is read, or .repartition(partition_size=); or take "
            f"nodes with more memory, or a smaller store (exo.object-store-memory). ({error})"
        ) from error
    return {**options, "num_cpus": slots}
