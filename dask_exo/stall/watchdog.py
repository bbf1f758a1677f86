"""Waits, and looks into it when nothing happens for too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dask_exo.activity import Activity
from dask_exo.errors import StalledError
from dask_exo.futures import Futures, Node, Ref
from dask_exo.stall.diagnose import Snapshot, diagnose


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
