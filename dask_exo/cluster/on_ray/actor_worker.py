"""Actors on Ray, which are restarted when they die."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import ray

from dask_exo.cluster.futures import Ref, SubmitOptions, on_node
from dask_exo.cluster.on_ray.ray_errors import translated
from dask_exo.cluster.on_ray.serialization import sealed
from dask_exo.cluster.on_ray.task_attempt import attempt

REPLACED = 3  # restarts of an actor, and retries of a call, after a death


class _Process:
    """Actor that calls functions."""

    def __init__(self) -> None:
        self._node = str(ray.get_runtime_context().get_node_id())

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        with on_node(self._node), attempt(fn.__name__):
            return sealed(fn(*args))

    def split(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        with on_node(self._node), attempt(fn.__name__):
            return list(map(sealed, fn(*args)))


_remote_process: Any = ray.remote(_Process)


class CallCounter(Protocol):
    """Counts of calls and of the objects that they return."""

    calls: int
    objects: int


class RayActor:
    """`dask_exo.cluster.futures.Actor` on Ray.

    Parameters
    ----------
    needs : mapping
        Ray's options for an actor.
    counted : CallCounter
    """

    def __init__(self, needs: SubmitOptions, counted: CallCounter) -> None:
        self._counted = counted
        with translated():
            self._actor = _remote_process.options(
                **needs, max_restarts=REPLACED, max_task_retries=REPLACED
            ).remote()

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """See `Actor.submit`."""
        return self._call(self._actor.call, 1, fn, args)

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """See `Actor.split`."""
        refs: list[Ref] = self._call(self._actor.split, count, fn, args)
        return refs

    def stop(self) -> None:
        """See `Actor.stop`."""
        with contextlib.suppress(Exception):  # it has died, or Ray is gone
            ray.kill(self._actor)

    def _call(self, method: Any, count: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._counted.calls += 1
        self._counted.objects += count
        with translated():
            named = method.options(num_returns=count, name=fn.__name__)
            return named.remote(fn, *map(sealed, args))
