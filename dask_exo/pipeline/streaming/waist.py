"""`Streams`: the cluster as a pipeline sees it, with tasks that yield values, and actors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from dask_exo.cluster.task_status import Activity


class Streams(Protocol):
    """Tasks that yield pairs of a value and its metadata, and wait until a pair is taken."""

    def resources(self) -> dict[str, float]:
        """Return the amount of each resource of the whole cluster."""
        ...

    def free(self) -> dict[str, float]:
        """Return the amount of each resource that is not in use."""
        ...

    def there(self, values: Collection[Any]) -> bool:
        """Return whether the values of all refs among ``values`` are stored."""
        ...

    def nodes(self) -> list[dict[str, float]]:
        """Return the amount of each resource of each node."""
        ...

    def put(self, value: Any) -> Any:
        """Store a value, unless it is a ref already; return its ref."""
        ...

    def task(self, fn: Any, *args: Any, needs: Mapping[str, float], seed: str) -> Any:
        """Start a task; return its stream. Equal seeds draw equal random numbers."""
        ...

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start an actor of ``cls(*args)`` with resources of its own; return its handle."""
        ...

    def start(self, worker: Any, *args: Any, seed: str) -> Any:
        """Call ``run`` of an actor; return its stream. For ``seed`` see `task`."""
        ...

    def stop(self, worker: Any) -> None:
        """End an actor at once."""
        ...

    def dismiss(self, worker: Any) -> None:
        """End an actor as soon as it is idle."""
        ...

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:
        """Wait until one of ``streams`` has a pair, or has ended; return those."""
        ...

    def read(self, stream: Any) -> Any:
        """Return the metadata of the next value of a stream that has one; None at its end."""
        ...

    def take(self, stream: Any) -> Any:
        """Return a ref of that value; its task goes on."""
        ...

    def cancel(self, streams: Collection[Any]) -> None:
        """Stop the tasks of streams."""
        ...

    def activity(self, streams: Collection[Any]) -> Activity:
        """Return what the tasks of streams do at the moment."""
        ...
