"""One shuffle from start to end: measure the first maps, choose, run, account."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dask_exo import events
from dask_exo.cluster.futures import Futures, Steps
from dask_exo.config import Config
from dask_exo.shuffle import registry
from dask_exo.shuffle.choose import Choice, Limits, Shape
from dask_exo.shuffle.integrity import Tally
from dask_exo.shuffle.map_stage import Maps, Parts
from dask_exo.shuffle.progress import seen
from dask_exo.shuffle.spec import Column, Spec
from dask_exo.shuffle.spill_guard import Watch, check_outputs, check_room
from dask_exo.shuffle.stragglers import Patience


@dataclass(frozen=True)
class Shuffled:
    """A shuffle whose maps (and merges) are done.

    Attributes
    ----------
    columns : list of Column
        (R,) what each reducer has to read.
    choice : Choice
        Algorithm and why.
    calls, nbytes : int
        Totals of the map side.
    tally : Tally
        What the maps sent.
    """

    columns: list[Column]
    choice: Choice
    calls: int
    nbytes: int
    tally: Tally


def exchange(
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
        Of the shuffle, for those who watch.
    """
    started, m, r = time.perf_counter(), len(parts), spec.reducers
    window = spec.slots * limits.tasks_per_slot
    maps = Maps(
        futures, parts, spec, window=window, target=limits.bundle_target, patience=limits.patience
    )
    yield from maps.probe(spec.slots)
    estimate = maps.nbytes * m // max(maps.parts, 1)
    shape = Shape(estimate, m, r, len(spec.nodes), spec.slots, spec.store)
    choice, found = registry.weigh(shape, limits)
    check_outputs(name, shape, spec.nodes)
    check_room(name, shape, found.get(choice.algorithm), spec.disk)
    how = choice.algorithm, choice.reason, m, r
    events.emit(events.ShuffleChosen(name, *how, choice.per_round))
    watch = Watch(name, futures, maps, spec)
    steps = registry.start(choice, futures, maps, spec)
    columns = yield from watch.over(seen(steps, name, futures, maps))
    rounds = 1 if choice.algorithm == "simple" else -(-m // choice.per_round)
    seconds = time.perf_counter() - started
    events.emit(
        events.ShuffleFinished(
            name, *how, rounds, maps.calls, maps.tally.rows, maps.nbytes, seconds
        )
    )
    return Shuffled(columns, choice, maps.calls, maps.nbytes, maps.tally)


def limits_of(config: Config) -> Limits:
    """The limits that are configured; `ConfigError` if there is no such algorithm."""
    registry.check(config.shuffle_algorithm)
    return Limits(
        config.shuffle_algorithm,
        config.shuffle_memory_fraction,
        config.shuffle_round_fraction,
        config.shuffle_most_objects,
        config.bundle_target,
        config.tasks_per_slot,
        Patience(config.late_factor, config.late_floor) if config.shuffle_speculation else None,
        config.shuffle_merge_limit,
    )
