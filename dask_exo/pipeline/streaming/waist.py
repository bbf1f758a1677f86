"""What a cluster lends to a pipeline: tasks that give one value after the other, and workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from dask_exo.cluster.task_status import Activity


class Streams(Protocol):
    """Tasks that give pairs: a value, and what is known of it. Each pair waits until the one before
    is taken.
    """

    def resources(self) -> dict[str, float]:
        """Amount of each resource of the whole cluster."""
        ...

    def free(self) -> dict[str, float]:
        """Amount of each resource that nobody has."""
        ...

    def there(self, values: Collection[Any]) -> bool:
        """Whether all refs among some values are of values that there are, and need not be made."""
        ...

    def nodes(self) -> list[dict[str, float]]:
        """Amount of each resource of each node."""
        ...

    def put(self, value: Any) -> Any:
        """Store a value, unless it is a ref already; return its ref."""
        ...

    def task(self, fn: Any, *args: Any, needs: Mapping[str, float], seed: str) -> Any:
        """Start a task; return its stream. What has the same seed draws the same random numbers."""
        ...

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start a process that keeps a ``cls(*args)``, and has what it needs to itself."""
        ...

    def start(self, worker: Any, *args: Any, seed: str) -> Any:
        """Call ``run`` of the instance; return its stream. As to ``seed`` see `task`."""
        ...

    def stop(self, worker: Any) -> None:
        """End a process, whatever it does."""
        ...

    def dismiss(self, worker: Any) -> None:
        """End a process as soon as it has nothing to do."""
        ...

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:
        """Wait until one of ``streams`` has a pair, or has ended; return those."""
        ...

    def read(self, stream: Any) -> Any:
        """What is known of the next value of a stream that has one; None at its end."""
        ...

    def take(self, stream: Any) -> Any:
        """A ref of that value; its task goes on."""
        ...

    def cancel(self, streams: Collection[Any]) -> None:
        """Stop their tasks."""
        ...

    def activity(self, streams: Collection[Any]) -> Activity:
        """What their tasks do at the moment."""
        ...
