"""Partitions of Dask collections as inputs of a pipeline."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import cloudpickle
from dask.core import flatten

from dask_exo.cluster.futures import LARGE
from dask_exo.config import Config
from dask_exo.execution.persisted import Local, Promise, Remote
from dask_exo.pipeline.streaming.types import Block
from dask_exo.planning.annotations import NO_OPTIONS
from dask_exo.planning.plan import Bundle
from dask_exo.scheduler import Scheduler, plan_of


class Recipe:
    """Tasks of a Dask graph that make a partition and need no other task."""

    def __init__(self, bundle: Bundle) -> None:
        self._nodes, self._literals = bundle.nodes, bundle.literals

    def __call__(self) -> Any:
        """Make the partition."""
        values = dict(self._literals)
        for key, node in self._nodes:
            values[key] = node(values)
        return values[self._nodes[-1][0]]


def inputs(
    expr: Any, config: Config, put: Callable[[Any], Any]
) -> tuple[Iterator[Block | None], bool]:
    """Return the partitions of a collection.

    Where each can be made by itself, a stage of the pipeline makes it when it is wanted. Others,
    such as those that a shuffle makes, are computed in the background, and come when they do.

    Parameters
    ----------
    expr : Expr
        Optimized.
    config : Config
    put : callable
        Stores a value.

    Returns
    -------
    blocks : iterator
        None where there is none yet.
    makes : bool
        Whether a stage has to make them.
    """
    work = plan_of(expr, config)
    bundles = {bundle.key: bundle for bundle in work.bundles}
    keys = list(flatten(expr.__dask_keys__()))
    names = [work.results.get(key, key) for key in keys]
    alone = (
        not work.stages
        and not work.given
        and all(name in bundles and _free(bundles[name]) for name in names)
    )
    if alone:
        recipes = (_sent(Recipe(bundles[name]), put) for name in names)
        return (Block(recipe, 0, 0, (i,), small=True) for i, recipe in enumerate(recipes)), True
    return as_completed(list(Scheduler().start(expr, keys).values())), False


class PickledRecipe:
    """A recipe as bytes, which travel with the call of its task."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self) -> Any:
        """Make the partition."""
        return pickle.loads(self._data)()  # noqa: S301  our own driver's bytes


def _sent(recipe: Recipe, put: Callable[[Any], Any]) -> Any:
    """Return a recipe to send with the call if it is short, else a ref of it.

    Arrays in it are not copied to find that out.
    """
    arrays: list[Any] = []
    data = cloudpickle.dumps(recipe, protocol=5, buffer_callback=arrays.append)
    return put(recipe) if arrays or len(data) > LARGE else PickledRecipe(data)


def _free(bundle: Bundle) -> bool:
    """Return whether a task needs neither a value nor a resource request of its own."""
    return not bundle.inputs and bundle.options == NO_OPTIONS


def as_completed(promises: Sequence[Promise]) -> Iterator[Block | None]:
    """Yield blocks of a computation in the background, in the order in which they arrive.

    A promise is dropped with its block, so that the consumer of that can release its value.
    """
    waiting = dict(enumerate(promises))
    del promises
    while waiting:
        come = [i for i, promise in waiting.items() if promise.known]
        for i in come:
            yield _block_of_value(waiting.pop(i).held(), i)
        if waiting and not come:
            yield None


def _block_of_value(held: Local | Remote, number: int) -> Block:
    if isinstance(held, Remote):
        return Block(held.ref, held.nbytes, 0, (number,))
    return Block(partial(_same, held.value), 0, 0, (number,), small=True)


def _same(value: Any) -> Any:
    return value
