"""Tasks of a pipeline as plain generators, in this process."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.errors import WorkerLostError


class Died(BaseException):
    """What a function raises as if its process died."""


@dataclass(eq=False)
class Stream:
    """A task, and the value of its that nobody has taken."""

    steps: Generator[Any]
    value: Any = None


class InlineStreams:
    """`dask_exo.pipeline.streaming.waist.Streams` without a cluster: a task works when it is asked.

    A function that raises `Died` loses its task.

    Parameters
    ----------
    nodes : mapping
        Resources of each node.

    Attributes
    ----------
    workers : int
        That have been started and not stopped.
    """

    def __init__(self, *nodes: Mapping[str, float]) -> None:
        self._nodes = [dict(node) for node in nodes or ({"CPU": 2.0},)]
        self.workers = 0

    def resources(self) -> dict[str, float]:
        """Amount of each resource of all nodes."""
        names = {name for node in self._nodes for name in node}
        return {name: sum(node.get(name, 0) for node in self._nodes) for name in names}

    def free(self) -> dict[str, float]:
        """All: nothing works unless it is asked to."""
        return self.resources()

    def there(self, values: Collection[Any]) -> bool:  # noqa: ARG002
        """Nothing is ever lost."""
        return True

    def nodes(self) -> list[dict[str, float]]:
        """Amount of each resource of each node."""
        return self._nodes

    def put(self, value: Any) -> Any:
        """Nothing to store: a value stands for itself."""
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
        """The same: it does nothing that it was not asked for."""
        self.stop(worker)

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:  # noqa: ARG002
        """All of them: whatever is asked for is made then."""
        return list(streams)

    def read(self, stream: Stream) -> Any:
        """What is known of the next value; None at the end."""
        try:
            stream.value = next(stream.steps, None)
            return next(stream.steps, None)
        except Died as error:
            raise WorkerLostError("a worker has died") from error

    def take(self, stream: Stream) -> Any:
        """That value."""
        value, stream.value = stream.value, None
        return value

    def cancel(self, streams: Collection[Stream]) -> None:
        """Stop their tasks."""
        for stream in streams:
            stream.steps.close()

    def activity(self, streams: Collection[Any]) -> Activity:
        """All wait to be asked."""
        nodes = {str(i): node for i, node in enumerate(self._nodes)}
        return Activity([TaskStatus("running") for _ in streams], 0, nodes)
