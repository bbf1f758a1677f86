"""One shuffle from start to end: measure the first maps, choose an algorithm, run, report."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from dask_exo import events
from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.config import Config
from dask_exo.shuffle import registry
from dask_exo.shuffle.choose import Choice, Limits, Shape
from dask_exo.shuffle.integrity import Tally
from dask_exo.shuffle.map_stage import MapStage, Parts
from dask_exo.shuffle.spec import ReducerInput, Spec
from dask_exo.shuffle.spill_guard import SpillWatch, check_disk_space, check_outputs
from dask_exo.shuffle.stragglers import SpeculationPolicy

T = TypeVar("T")

PROGRESS_INTERVAL = 0.5  # seconds


@dataclass(frozen=True)
class Shuffled:
    """Result of a shuffle: its maps and merges have finished, its reducers have not started.

    Attributes
    ----------
    inputs : list of ReducerInput
        (R,) what each reducer has to read.
    choice : Choice
        Algorithm and why.
    calls, nbytes : int
        Totals of the map side.
    tally : Tally
        Rows and keys that the maps sent.
    """

    inputs: list[ReducerInput]
    choice: Choice
    calls: int
    nbytes: int
    tally: Tally


def run_shuffle(
    futures: Futures, parts: Parts, spec: Spec, limits: Limits, name: str = "shuffle"
) -> Steps[Shuffled]:
    """Shuffle ``parts`` by the algorithm that suits their measured size.

    Parameters
    ----------
    futures : Futures
    parts : Parts
        (M,)
    spec : Spec
    limits : Limits
    name : str
        Name of the shuffle in events and errors.
    """
    started, m, r = time.perf_counter(), len(parts), spec.reducers
    window = spec.slots * limits.tasks_per_slot
    maps = MapStage(
        futures, parts, spec, window=window, target=limits.bundle_target, policy=limits.speculation
    )
    yield from maps.probe(spec.slots)
    estimate = maps.nbytes * m // max(maps.parts, 1)
    shape = Shape(estimate, m, r, len(spec.nodes), spec.slots, spec.store)
    choice, costs = registry.choose_algorithm(shape, limits)
    check_outputs(name, shape, spec.nodes)
    check_disk_space(name, shape, costs.get(choice.algorithm), spec.disk)
    how = choice.algorithm, choice.reason, m, r
    events.emit(events.ShuffleChosen(name, *how, choice.per_round))
    watch = SpillWatch(name, futures, maps, spec)
    steps = registry.start(choice, futures, maps, spec)
    inputs = yield from watch.run(_with_progress(steps, name, futures, maps))
    rounds = 1 if choice.algorithm == "simple" else -(-m // choice.per_round)
    seconds = time.perf_counter() - started
    events.emit(
        events.ShuffleFinished(
            name, *how, rounds, maps.calls, maps.tally.rows, maps.nbytes, seconds
        )
    )
    return Shuffled(inputs, choice, maps.calls, maps.nbytes, maps.tally)


def limits_of(config: Config) -> Limits:
    """Return the configured limits; raise `ConfigError` for an unknown algorithm."""
    registry.check(config.shuffle_algorithm)
    return Limits(
        config.shuffle_algorithm,
        config.shuffle_memory_fraction,
        config.shuffle_round_fraction,
        config.shuffle_most_objects,
        config.bundle_target,
        config.tasks_per_slot,
        SpeculationPolicy(config.late_factor, config.late_floor)
        if config.shuffle_speculation
        else None,
        config.shuffle_merge_limit,
    )


def _with_progress(
    steps: Steps[T], name: str, futures: Futures, maps: MapStage
) -> Generator[Any, None, T]:
    """Run a coroutine of a shuffle; emit a `ShuffleSeen` about twice a second, and at its end."""
    due = futures.now + PROGRESS_INTERVAL
    try:
        while True:
            condition = next(steps)
            if futures.now >= due:
                due = futures.now + PROGRESS_INTERVAL
                _emit_progress(name, maps)
            yield condition
    except StopIteration as stop:
        _emit_progress(name, maps)
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _emit_progress(name: str, maps: MapStage) -> None:
    events.emit(
        events.ShuffleSeen(name, maps.parts, len(maps), maps.merged, maps.merges, maps.nbytes)
    )
