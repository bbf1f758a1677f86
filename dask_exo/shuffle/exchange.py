"""One shuffle from start to end: measure the first maps, choose, run, account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dask_exo.futures import Futures, Steps
from dask_exo.shuffle.choose import Choice, choose
from dask_exo.shuffle.integrity import Tally
from dask_exo.shuffle.maps import Maps, Parts
from dask_exo.shuffle.push import push
from dask_exo.shuffle.simple import simple
from dask_exo.shuffle.spec import Column, Spec


@dataclass(frozen=True)
class Limits:
    """What a shuffle may take; see ``exo.yaml``."""

    algorithm: str = "auto"
    memory_fraction: float = 0.5
    round_fraction: float = 0.08
    bundle_target: float = 0.05
    tasks_per_slot: int = 3


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
    futures: Futures,
    parts: Parts,
    spec: Spec,
    limits: Limits,
    chosen: Callable[[Choice], Any] = lambda _: None,
) -> Steps[Shuffled]:
    """Shuffle ``parts`` by the algorithm that suits their measured size.

    Parameters
    ----------
    futures : Futures
    parts : Parts
        (M,)
    spec : Spec
    limits : Limits
    chosen : callable, optional
        Told the choice before it is acted on.
    """
    window = spec.slots * limits.tasks_per_slot
    maps = Maps(futures, parts, spec, window=window, target=limits.bundle_target)
    yield from maps.probe(spec.slots)
    estimate = maps.nbytes * len(parts) // max(maps.parts, 1)
    choice = choose(
        nbytes=estimate,
        parts=len(parts),
        slots=spec.slots,
        store=spec.store,
        memory_fraction=limits.memory_fraction,
        round_fraction=limits.round_fraction,
        wanted=limits.algorithm,
        reducers=spec.reducers,
    )
    chosen(choice)
    if choice.algorithm == "push":
        columns = yield from push(
            futures, maps, spec, per_round=choice.per_round, width=choice.width
        )
    else:
        columns = yield from simple(maps, spec)
    return Shuffled(columns, choice, maps.calls, maps.nbytes, maps.tally)
