"""What observers are told of a run: that it begins, how the cluster is meanwhile, what it took."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from dask.utils import key_split

from dask_exo.futures import Futures, Store
from dask_exo.graph.plan import Plan
from dask_exo.report import events

EVERY = 1.0  # seconds between two looks at the object stores: on Ray, one takes 6 ms


def groups_of(work: Plan) -> dict[str, int]:
    """Tasks of each group, and parts of each shuffle."""
    groups = Counter(key_split(bundle.key) for bundle in work.bundles)
    groups.update({stage.label: len(stage.parts) for stage in work.stages})
    return dict(groups)


class Looks:
    """Looks at the object stores now and then while a run goes on.

    Parameters
    ----------
    futures : Futures
    closely : bool
        Whether to look before and after it, too. A run that is shorter than two looks would take
        longer by that, so without it only longer ones know what was spilled.
    """

    def __init__(self, futures: Futures, *, closely: bool) -> None:
        self._futures, self._closely = futures, closely
        self._before = futures.store() if closely else None
        self._due = futures.now + EVERY / 2

    @property
    def timeout(self) -> float:
        """Seconds until the next one."""
        return max(0.0, self._due - self._futures.now)

    def look(self, held_back: Callable[[], tuple[int, str]]) -> None:
        """Say how the cluster is, if that was not said lately; see `events.ClusterSeen`.

        Parameters
        ----------
        held_back : callable
            Returns how many tasks are in flight, and what keeps more from starting.
        """
        if self.timeout > 0:
            return
        in_flight, waits = held_back()
        store = self._futures.store()
        self._before = self._before or store
        self._due = self._futures.now + EVERY
        events.emit(events.ClusterSeen(store.used, store.spilled, store.restored, in_flight, waits))

    def spilled(self) -> Store:
        """What was spilled and restored since the first look."""
        if self._before is None:
            return Store(0, 0, 0)
        after = self._futures.store()
        return Store(
            after.used,
            after.spilled - self._before.spilled,
            after.restored - self._before.restored,
        )


@contextlib.contextmanager
def observed(groups: Mapping[str, int], futures: Futures) -> Iterator[Looks]:
    """Tell observers of a run and of what it took; yield what looks at the stores meanwhile."""
    closely = events.listening()
    with events.a_run():
        events.emit(events.RunStarted(dict(groups)))
        started, looks = time.perf_counter(), Looks(futures, closely=closely)
        written = _written(futures) if closely else {}
        calls, objects = futures.calls, futures.objects
        failed = True
        try:
            yield looks
            failed = False
        finally:
            after = looks.spilled()
            now = _written(futures) if closely else {}
            events.emit(
                events.RunFinished(
                    time.perf_counter() - started,
                    futures.calls - calls,
                    futures.objects - objects,
                    after.spilled,
                    after.restored,
                    failed,
                    {path: n - written.get(path, 0) for path, n in now.items()},
                )
            )


def _written(futures: Futures) -> dict[str, int]:
    return {disk.path: disk.written for disk in futures.disks()}
