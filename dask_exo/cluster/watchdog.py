"""Waits, and looks into it when nothing happens for too long."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dask_exo.cluster.futures import FetchTimeoutError, Futures, Node, Ref
from dask_exo.cluster.stall_diagnosis import Snapshot, diagnose
from dask_exo.cluster.task_status import Activity
from dask_exo.errors import StalledError

MOMENT = 0.01  # seconds that a value is waited for at least


class Watchdog:
    """Watches one loop that waits again and again.

    Parameters
    ----------
    futures : Futures
    limit : float, optional
        Seconds without an event after which the cluster is asked what it does; never by default.

    Examples
    --------
    >>> from dask_exo.testing import Cost, NodeDeath, SimFutures
    >>> node = Node("a", slots=1, store=100)
    >>> f = SimFutures([node], lambda call: Cost(5000, 1), faults=[NodeDeath(7000, "a")])
    >>> first, second = f.submit(pow, 2, 5), f.submit(pow, 2, 6)
    >>> dog = Watchdog(f, limit=60)
    >>> dog.wait([first]) == ([first], []), f.now  # what runs is no stall
    (True, 5000.0)
    >>> dog.wait([second])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dask_exo.errors.StalledError: nothing has happened for 60 s. Waiting for 1 task: ...
    """

    def __init__(self, futures: Futures, limit: float | None) -> None:
        self._futures, self._limit = futures, limit
        self._before = {node.id for node in _alive(futures)} if limit else set()
        self._since = self._waited = futures.now

    def moved(self) -> None:
        """Something has happened."""
        self._since = self._futures.now

    def wait(
        self,
        refs: Sequence[Ref],
        timeout: float | None = None,
        name: Callable[[Ref], str] = lambda _: "a task",
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait as `Futures.wait` does. What the caller does between two waits does not count.

        Parameters
        ----------
        refs : sequence of Ref
        timeout : float, optional
        name : callable, optional
            What the task behind a ref is called. It is not kept: the caller's refs would live on.

        Raises
        ------
        StalledError
            Nothing has happened since `moved`, or since a task has ended, and nothing can.
        """
        self._since += self._futures.now - self._waited
        end = None if timeout is None else self._futures.now + timeout
        while True:
            left = None if end is None else max(0.0, end - self._futures.now)
            due = self._due()
            pause = min((one for one in (left, due) if one is not None), default=None)
            done, pending = self._futures.wait(refs, timeout=pause)
            self._waited = self._futures.now
            if done:
                self.moved()
            else:
                self.check(lambda: self._futures.activity(refs), lambda: map(name, refs))
            if done or (end is not None and self._futures.now >= end):
                return done, pending

    def get(self, ref: Ref, name: str) -> Any:
        """Wait for the value of a task that has ended, as `Futures.get` does.

        Parameters
        ----------
        ref : Ref
        name : str
            What it is called.

        Raises
        ------
        StalledError
            It was written to disk, and does not come back from there although nothing else does.
        """
        self.moved()
        restored = self._futures.store().restored
        while True:
            due = self._due()
            timeout = None if due is None else max(due, MOMENT)
            with contextlib.suppress(FetchTimeoutError):
                return self._futures.get([ref], timeout)[0]
            before, restored = restored, self._futures.store().restored
            self._look_for(ref, name, others=restored != before)

    def _look_for(self, ref: Ref, name: str, *, others: bool) -> None:
        """Ask where a value is that does not come, and whether others do."""
        seen = self._futures.activity([ref])
        if others or seen.tasks[0].state == "finished":  # it is on its way between nodes
            self.moved()
        self.check(lambda: seen, lambda: [name])

    def check(self, activity: Callable[[], Activity], names: Callable[[], Iterable[str]]) -> None:
        """Look what is done, if it is time to.

        Parameters
        ----------
        activity : callable
            What the tasks do that are waited for.
        names : callable
            What they are called.

        Raises
        ------
        StalledError
            None of them runs, and none can.
        """
        if self._due() != 0:
            return
        seen, store = activity(), self._futures.store()
        nodes, disks = _alive(self._futures), self._futures.disks()
        why = diagnose(
            Snapshot(
                seen,
                list(names()),
                self._before - seen.nodes.keys(),
                store.used,
                sum(node.store for node in nodes),
                next((disk.path for disk in disks if not disk.room), None),
                self._futures.now - self._since,
                store.spilled,
                next((disk.path for disk in disks), None),
            )
        )
        if why is not None:
            raise StalledError(why)
        self.moved()

    def _due(self) -> float | None:
        """Seconds until it has been too long."""
        if not self._limit:
            return None
        return max(0.0, self._since + self._limit - self._futures.now)


def _alive(futures: Futures) -> list[Node]:
    """The nodes; none where a cluster has lost all of them."""
    try:
        return futures.nodes()
    except ConnectionError:
        return []


def fetch_values(
    futures: Futures,
    refs: Sequence[Ref],
    limit: float | None,
    name: Callable[[Ref], str] = lambda _: "a value",
) -> list[Any]:
    """Values of tasks that have ended, as `Futures.get` gives them.

    Parameters
    ----------
    futures : Futures
    refs : sequence of Ref
    limit : float, optional
        Seconds for all of them, and then for each that has not come, after which the cluster is
        asked where it is; None or 0 to wait for ever.
    name : callable, optional
        What the value behind a ref is called.

    Raises
    ------
    StalledError
        One was written to disk, and does not come back.

    Examples
    --------
    >>> from dask_exo.testing import InlineFutures
    >>> f = InlineFutures()
    >>> fetch_values(f, [f.submit(pow, 2, 5), f.put("x")], limit=60)
    [32, 'x']
    """
    if not limit:
        return futures.get(refs)
    with contextlib.suppress(FetchTimeoutError):
        return futures.get(refs, limit)
    watchdog = Watchdog(futures, limit)
    return [watchdog.get(ref, name(ref)) for ref in refs]
