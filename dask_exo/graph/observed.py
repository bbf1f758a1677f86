"""What observers are told of a run: that it begins, and what it took."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

from dask.utils import key_split

from dask_exo.futures import Futures
from dask_exo.graph.plan import Plan
from dask_exo.report import events


@contextlib.contextmanager
def observed(work: Plan, futures: Futures) -> Iterator[None]:
    """Tell observers of a run and of what it took; without any, it is not even asked for."""
    if not events.listening():
        yield
        return
    groups = Counter(key_split(bundle.key) for bundle in work.bundles)
    groups.update({stage.name: len(stage.parts) for stage in work.stages})
    events.emit(events.RunStarted(dict(groups)))
    started, before, written = time.perf_counter(), futures.store(), _written(futures)
    calls, objects, repeated = futures.calls, futures.objects, len(futures.repeats())
    failed = True
    try:
        yield
        failed = False
    finally:
        after = futures.store()
        again = Counter[str]()
        for made in futures.repeats()[repeated:]:
            again[made.name] += made.parts
        if again:
            events.emit(events.CallsRepeated(dict(again)))
        events.emit(
            events.RunFinished(
                time.perf_counter() - started,
                futures.calls - calls,
                futures.objects - objects,
                after.spilled - before.spilled,
                after.restored - before.restored,
                failed,
                {path: n - written.get(path, 0) for path, n in _written(futures).items()},
            )
        )


def _written(futures: Futures) -> dict[str, int]:
    return {disk.path: disk.written for disk in futures.disks()}
