"""Measurements of a run: memory of the nodes, samples of the object stores, and totals."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from dask.utils import key_split

from dask_exo import events
from dask_exo.cluster.futures import Futures, StoreUsage
from dask_exo.errors import ClusterError
from dask_exo.execution.persisted import Local, Remote
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Plan, Stage

EVERY = 1.0  # seconds between two looks at the object stores: on Ray, one takes 6 ms
LATER = 30.0  # seconds after one that had no answer, as while a node dies


class RunObserver:
    """Observer of the graph's nodes; this one ignores all calls."""

    def started(self, keys: Iterable[Key]) -> None:
        """Receive the keys of submitted nodes."""

    def finished(self, key: Key, inner: Iterable[Key], held: Local | Remote | None) -> None:
        """Receive a finished node, those fused into it, and its value, if it is held."""


def stage_keys(stage: Stage) -> list[Key]:
    """Return the keys of the nodes that a shuffle runs."""
    return [stage.key, *(key for part in stage.parts for key, _ in part.nodes)]


def tasks_per_group(work: Plan) -> dict[str, int]:
    """Return the number of tasks of each group, and of maps of each shuffle."""
    groups = Counter(key_split(bundle.key) for bundle in work.bundles)
    groups.update({stage.label: len(stage.parts) for stage in work.stages})
    return dict(groups)


class StoreSampler:
    """Samples of the object stores while a run goes on.

    Parameters
    ----------
    futures : Futures
    closely : bool
        Whether to sample before and after the run, too. That slows short runs down, so without it
        only longer runs know how much was spilled.
    """

    def __init__(self, futures: Futures, *, closely: bool) -> None:
        self._futures = futures
        self._before: StoreUsage | None = None
        self._last: StoreUsage | None = None
        self._due = futures.now + EVERY / 2
        if closely:
            self._ask()

    @property
    def timeout(self) -> float:
        """Seconds until the next sample."""
        return max(0.0, self._due - self._futures.now)

    def look(self, held_back: Callable[[], tuple[int, str]]) -> None:
        """Take a sample and emit `events.ClusterSeen`, if one is due.

        Parameters
        ----------
        held_back : callable
            Returns the number of tasks in flight, and the bottleneck.
        """
        if self.timeout > 0:
            return
        self._due = self._futures.now + EVERY
        store = self._ask()
        if store is not None:
            seen = store.used, store.spilled, store.restored
            events.emit(events.ClusterSeen(*seen, *held_back()))

    def spilled(self, *, ask: bool) -> tuple[int, int]:
        """Return bytes spilled and restored since the first sample; ``ask`` takes a last one."""
        if self._before is None:
            return 0, 0
        after = (self._ask() if ask else None) or self._last or self._before
        return after.spilled - self._before.spilled, after.restored - self._before.restored

    def _ask(self) -> StoreUsage | None:
        """Sample the stores; if they do not answer, wait longer until the next sample."""
        try:
            self._last = self._futures.store()
        except ClusterError:
            self._due = self._futures.now + LATER
            return None
        self._before = self._before or self._last
        return self._last


@contextlib.contextmanager
def observed(futures: Futures) -> Iterator[StoreSampler]:
    """Give a run a number, and emit its totals at its end.

    Yields
    ------
    StoreSampler
        Samples the object stores meanwhile.
    """
    closely = events.listening()
    with events.new_run():
        started, looks = time.perf_counter(), StoreSampler(futures, closely=closely)
        written = _written(futures) if closely else {}
        calls, objects, repeated = futures.calls, futures.objects, len(futures.recomputed())
        failed = True
        try:
            yield looks
            failed = False
        finally:
            again = Counter[str]()
            for made in futures.recomputed()[repeated:]:
                again[made.name] += made.parts
            if again:
                events.emit(events.CallsRepeated(dict(again)))
            spilled, restored = looks.spilled(ask=not failed)
            now = _written(futures) if closely else {}
            events.emit(
                events.RunFinished(
                    time.perf_counter() - started,
                    futures.calls - calls,
                    futures.objects - objects,
                    spilled,
                    restored,
                    failed,
                    {path: n - written.get(path, 0) for path, n in now.items()},
                )
            )


def _written(futures: Futures) -> dict[str, int]:
    return {disk.path: disk.written for disk in futures.disks()}


TIGHT = 0.9  # of a machine's memory; Ray kills tasks at 0.95 of it by default


class MemoryPressure:
    """Look at the memory of all machines, at most once a second.

    Parameters
    ----------
    futures : Futures
    """

    def __init__(self, futures: Futures) -> None:
        self._futures = futures
        self._until, self._tight = futures.now, False

    @property
    def tight(self) -> bool:
        """Return whether the memory of a machine is nearly full, as of at most a second ago."""
        if self._futures.now >= self._until:
            used = self._futures.memory()
            self._tight = used is not None and used >= TIGHT
            self._until = self._futures.now + EVERY
        return self._tight
