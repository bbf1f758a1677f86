"""The shuffle algorithms by name, and the start of the one that is chosen.

Every module of this folder is an algorithm: it has ``run``, ``cost`` and, if ``run`` takes knobs
that others do not have, ``tune``. `register` adds algorithms of other packages.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.errors import ConfigError
from dask_exo.shuffle.choose import Choice, Knobs, Limits, Shape, ShuffleCost, choose, round_knobs
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.spec import ReducerInput, Spec

Run = Callable[..., Steps[list[ReducerInput]]]
"""``run(futures, maps, spec, **knobs) -> (R,) inputs``; its knobs are keyword-only parameters."""

A = TypeVar("A", bound=Run)


@dataclass(frozen=True)
class Algorithm:
    """A shuffle algorithm; see `register`."""

    run: Run
    cost: Callable[[Shape, Limits], ShuffleCost] | None = None
    tune: Callable[[Shape, Limits], Knobs] | None = None
    avoids_slow_nodes: bool = False

    @property
    def knobs(self) -> list[str]:
        """Names of its knobs."""
        parameters = inspect.signature(self.run).parameters.values()
        return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]

    def tuned(self, shape: Shape, limits: Limits) -> dict[str, Any]:
        """Return the knobs that all algorithms share, and those of its ``tune``."""
        own = self.tune(shape, limits) if self.tune is not None else {}
        return {**round_knobs(shape, limits)._asdict(), **own}


_algorithms: dict[str, Algorithm] = {}


def register(
    algorithm: A,
    *,
    name: str | None = None,
    cost: Callable[[Shape, Limits], ShuffleCost] | None = None,
    tune: Callable[[Shape, Limits], Knobs] | None = None,
    avoids_slow_nodes: bool = False,
) -> A:
    """Add an algorithm; also as a decorator.

    Parameters
    ----------
    algorithm : callable
        ``algorithm(futures, maps, spec, **knobs)``, a coroutine that returns the (R,) inputs of the
        reducers.
    name : str, optional
        By default that of the function (``two_level`` is ``"two-level"``).
    cost : callable, optional
        ``cost(shape, limits) -> ShuffleCost``, for `explain` and to check the room on the disks.
    tune : callable, optional
        ``tune(shape, limits)`` returns knobs by name, besides those of `RoundKnobs`.
    avoids_slow_nodes : bool
        Whether it can take rows that are packed for different reducers, as `MergeStage` can.
        Only then slow nodes get no work.
    """
    name = (name or algorithm.__name__).replace("_", "-")
    entry = Algorithm(algorithm, cost, tune, avoids_slow_nodes)
    knobs = entry.tuned(Shape(1, 1, 1, 1, 1, 1), Limits())
    if unknown := set(entry.knobs) - set(knobs):
        raise ConfigError(
            f"shuffle algorithm {name!r} has unknown keywords: {', '.join(unknown)}. Use some of "
            f"{', '.join(knobs)}, or return them from tune"
        )
    _algorithms[name] = entry
    return algorithm


def names() -> list[str]:
    """Return the names of all algorithms.

    Examples
    --------
    >>> names()[:6]
    ['magnet', 'push', 'riffle', 'simple', 'streaming', 'two-level']
    """
    return list(_algorithms)


def check(name: str) -> None:
    """Raise `ConfigError` if there is no such algorithm.

    Examples
    --------
    >>> check("pull")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    dask_exo.errors.ConfigError: exo.shuffle.algorithm='pull' is no shuffle algorithm: there are ...
    """
    if name not in ("auto", *_algorithms):
        raise ConfigError(
            f"exo.shuffle.algorithm={name!r} is no shuffle algorithm: there are "
            f"{', '.join(['auto', *_algorithms])}"
        )


def choose_algorithm(shape: Shape, limits: Limits) -> tuple[Choice, dict[str, ShuffleCost]]:
    """Choose the algorithm and the knobs of one shuffle; also estimate the cost of each algorithm.

    Examples
    --------
    >>> shape = Shape(10**10, parts=100, reducers=100, nodes=1, slots=2, store=2 * 10**9)
    >>> choice, costs = choose_algorithm(shape, Limits())
    >>> choice.algorithm, costs["simple"].restored // 10**9, costs["push"].restored // 10**9
    ('push', 8, 8)
    """
    costs = {name: a.cost(shape, limits) for name, a in _algorithms.items() if a.cost is not None}
    name, reason = choose(shape, limits, {name: cost.seconds for name, cost in costs.items()})
    return Choice(name, reason, _algorithms[name].tuned(shape, limits)), costs


def start(
    choice: Choice, futures: Futures, maps: MapStage, spec: Spec
) -> Steps[list[ReducerInput]]:
    """Start the algorithm that was chosen, with the knobs that it takes."""
    algorithm = _algorithms[choice.algorithm]
    if algorithm.avoids_slow_nodes:
        spec = maps.exclude_slow_nodes()
    return algorithm.run(futures, maps, spec, **{k: choice.knobs[k] for k in algorithm.knobs})


for _found in pkgutil.iter_modules(__path__):
    _module = import_module(f"{__name__}.{_found.name}")
    register(
        _module.run,
        name=_found.name,
        cost=_module.cost,
        tune=getattr(_module, "tune", None),
        avoids_slow_nodes=getattr(_module, "AVOIDS_SLOW_NODES", False),
    )
