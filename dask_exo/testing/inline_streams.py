"""Tasks of a pipeline as plain generators, in this process."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.errors import WorkerLostError


class Died(BaseException):
    """Exception that a function raises to simulate the death of its process."""


@dataclass(eq=False)
class Stream:
    """A task, and its value that has not been taken."""

    steps: Generator[Any]
    value: Any = None


class InlineStreams:
    """`dask_exo.pipeline.streaming.waist.Streams` without a cluster: tasks run when read.

    A function that raises `Died` loses its task.

    Parameters
    ----------
    nodes : mapping
        Resources of each node.

    Attributes
    ----------
    workers : int
        Number of actors that are started and not stopped.
    """

    def __init__(self, *nodes: Mapping[str, float]) -> None:
        self._nodes = [dict(node) for node in nodes or ({"CPU": 2.0},)]
        self.workers = 0

    def resources(self) -> dict[str, float]:
        """Return the resources of all nodes together."""
        names = {name for node in self._nodes for name in node}
        return {name: sum(node.get(name, 0) for node in self._nodes) for name in names}

    def free(self) -> dict[str, float]:
        """Return all resources: nothing runs in the background."""
        return self.resources()

    def there(self, values: Collection[Any]) -> bool:  # noqa: ARG002
        """Return True: nothing is ever lost."""
        return True

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node."""
        return self._nodes

    def put(self, value: Any) -> Any:
        """Return the value itself: there is no store."""
        return value

    def task(
        self,
        fn: Any,
        *args: Any,
        needs: Mapping[str, float],  # noqa: ARG002
        seed: str,  # noqa: ARG002  this process is not ours
    ) -> Stream:
        """Start a task."""
        return Stream(fn(*args))

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:  # noqa: ARG002
        """Make an instance."""
        self.workers += 1
        return cls(*args)

    def start(self, worker: Any, *args: Any, seed: str) -> Stream:  # noqa: ARG002
        """Call its ``run``."""
        return Stream(worker.run(*args))

    def stop(self, worker: Any) -> None:  # noqa: ARG002
        """Forget an instance."""
        self.workers -= 1

    def dismiss(self, worker: Any) -> None:
        """Forget an instance; it runs nothing in the background."""
        self.stop(worker)

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:  # noqa: ARG002
        """Return all streams: values are computed when read."""
        return list(streams)

    def read(self, stream: Stream) -> Any:
        """Return the metadata of the next value; None at the end."""
        try:
            stream.value = next(stream.steps, None)
            return next(stream.steps, None)
        except Died as error:
            raise WorkerLostError("a worker has died") from error

    def take(self, stream: Stream) -> Any:
        """Return that value."""
        value, stream.value = stream.value, None
        return value

    def cancel(self, streams: Collection[Stream]) -> None:
        """Close the tasks."""
        for stream in streams:
            stream.steps.close()

    def activity(self, streams: Collection[Any]) -> Activity:
        """Return that all tasks are running."""
        nodes = {str(i): node for i, node in enumerate(self._nodes)}
        return Activity([TaskStatus("running") for _ in streams], 0, nodes)
