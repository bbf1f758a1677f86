"""The shuffle algorithms by name. Others can be added from outside."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from dask_exo.cluster.futures import Futures, Steps
from dask_exo.errors import ConfigError
from dask_exo.shuffle.algorithms.magnet import magnet
from dask_exo.shuffle.algorithms.push import push
from dask_exo.shuffle.algorithms.riffle import riffle
from dask_exo.shuffle.algorithms.simple import simple
from dask_exo.shuffle.algorithms.streaming import streaming
from dask_exo.shuffle.algorithms.two_level import two_level
from dask_exo.shuffle.choose import Choice
from dask_exo.shuffle.map_stage import Maps
from dask_exo.shuffle.spec import Column, Spec

Algorithm = Callable[..., Steps[list[Column]]]
"""``algorithm(futures, maps, spec, **knobs) -> (R,) columns``; its knobs are those fields of a
`Choice` that it has as keyword-only parameters."""

A = TypeVar("A", bound=Algorithm)

_algorithms: dict[str, Algorithm] = {}
_revising: set[str] = set()


def register(algorithm: A, *, revising: bool = False) -> A:
    """Add an algorithm under its name (``two_level`` is ``"two-level"``); also as a decorator.

    Parameters
    ----------
    algorithm : callable
    revising : bool
        Whether it can take rows that are packed for different reducers, as it has to where slow
        nodes are avoided. `Merged` and `columns_of` can.

    Raises
    ------
    ConfigError
        It has a keyword that is no knob.
    """
    unknown = set(_knobs(algorithm)) - set(Choice.__dataclass_fields__)
    if unknown:
        known = ", ".join(Choice.__dataclass_fields__)
        raise ConfigError(f"{algorithm.__name__} asks for {', '.join(unknown)}; there are {known}")
    name = algorithm.__name__.replace("_", "-")
    _algorithms[name] = algorithm
    (_revising.add if revising else _revising.discard)(name)
    return algorithm


def names() -> list[str]:
    """Of all algorithms.

    Examples
    --------
    >>> names()[:6]
    ['simple', 'push', 'magnet', 'riffle', 'two-level', 'streaming']
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


def start(choice: Choice, futures: Futures, maps: Maps, spec: Spec) -> Steps[list[Column]]:
    """Begin the algorithm that was chosen, with the knobs that it takes."""
    algorithm = _algorithms[choice.algorithm]
    knobs: dict[str, Any] = {name: getattr(choice, name) for name in _knobs(algorithm)}
    if choice.algorithm in _revising:
        spec = maps.avoid_slow()
    return algorithm(futures, maps, spec, **knobs)


def _knobs(algorithm: Algorithm) -> list[str]:
    parameters = inspect.signature(algorithm).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


for _one in (simple, push, magnet, riffle, two_level):
    register(_one, revising=True)
register(streaming)
