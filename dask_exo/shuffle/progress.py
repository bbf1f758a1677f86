"""How far a shuffle is, told now and then while it waits."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from dask_exo import events
from dask_exo.cluster.futures import Futures, Steps
from dask_exo.shuffle.map_stage import Maps

T = TypeVar("T")

EVERY = 0.5  # seconds


def seen(steps: Steps[T], name: str, futures: Futures, maps: Maps) -> Generator[Any, None, T]:
    """Run a coroutine of a shuffle; emit a `ShuffleSeen` about twice a second, and at its end."""
    due = futures.now + EVERY
    try:
        while True:
            asked = next(steps)
            if futures.now >= due:
                due = futures.now + EVERY
                _say(name, maps)
            yield asked
    except StopIteration as stop:
        _say(name, maps)
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _say(name: str, maps: Maps) -> None:
    events.emit(
        events.ShuffleSeen(name, maps.parts, len(maps), maps.merged, maps.merges, maps.nbytes)
    )
