"""Counters for Prometheus, on Ray's own metrics of each node."""

from __future__ import annotations

from functools import lru_cache

from ray.util import metrics

from dask_exo import events

_exporting = False


def export(*, on: bool) -> None:
    """Start or stop to count events."""
    global _exporting  # noqa: PLW0603  there is one connection to Ray, and it has one such switch
    if on and not _exporting:
        _hear()
    _exporting = on


@lru_cache(1)
def _hear() -> None:
    events.subscribe(_count)


@lru_cache(20)
def _counter(name: str, description: str, tags: tuple[str, ...] = ()) -> metrics.Counter:
    return metrics.Counter(f"dask_exo_{name}", description=description, tag_keys=tags)


def _count(event: events.Event) -> None:
    if not _exporting:
        return
    if isinstance(event, events.TasksFinished):
        _add("tasks_total", "Tasks of graphs, and parts of shuffles.", event.count)
        _add("task_seconds_total", "Seconds of their work.", event.seconds)
    elif isinstance(event, events.ShuffleFinished):
        tags = {"algorithm": event.algorithm}
        _add("shuffles_total", "Shuffles finished.", 1, tags)
        _add("shuffled_bytes_total", "Bytes that maps of shuffles made.", event.nbytes, tags)
    elif isinstance(event, events.RunFinished):
        _add("runs_total", "Computations.", 1, {"failed": str(event.failed).lower()})
        _add("spilled_bytes_total", "Bytes spilled while computations ran.", event.spilled)
        _add("restored_bytes_total", "Bytes read back meanwhile.", event.restored)
    elif isinstance(event, events.Recovered):
        _again(event.what, event.count)
    elif isinstance(event, events.CallsRepeated):
        _again("made again, since it was lost", sum(event.groups.values()))
    elif isinstance(event, events.GaveWay):
        _again("with fewer neighbours, as memory ran out", 1)


def _again(what: str, count: int) -> None:
    _add("recovered_total", "Work that was done again.", count, {"what": what})


def _add(name: str, description: str, amount: float, tags: dict[str, str] | None = None) -> None:
    """Add to a counter; Ray refuses to add nothing."""
    if amount > 0:
        _counter(name, description, tuple(tags or ())).inc(amount, tags or {})
