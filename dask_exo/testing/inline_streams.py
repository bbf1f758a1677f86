"""Tasks of a pipeline as plain generators, in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dask_exo.errors import WorkerLostError


class Died(BaseException):
    """What a function raises as if its process died."""


class InlineStreams:
    """`dask_exo.stream.runner.Streams` without a cluster: a task works when it is asked.

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

    def nodes(self) -> list[dict[str, float]]:
        """Amount of each resource of each node."""
        return self._nodes

    def put(self, value: Any) -> Any:
        """Nothing to store: a value stands for itself."""
        return value

    def task(self, fn: Any, *args: Any, needs: Mapping[str, float]) -> Iterator[Any]:  # noqa: ARG002
        """Start a task."""
        stream: Iterator[Any] = iter(fn(*args))
        return stream

    def worker(self, cls: type, needs: Mapping[str, float]) -> Any:  # noqa: ARG002
        """Make an instance."""
        self.workers += 1
        return cls()

    def start(self, worker: Any, *args: Any) -> Iterator[Any]:
        """Call its ``run``."""
        stream: Iterator[Any] = iter(worker.run(*args))
        return stream

    def stop(self, worker: Any) -> None:  # noqa: ARG002
        """Forget an instance."""
        self.workers -= 1

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:  # noqa: ARG002
        """All of them: whatever is asked for is made then."""
        return list(streams)

    def read(self, stream: Any) -> Any:
        """The next value; None at the end."""
        try:
            return next(stream, None)
        except Died as error:
            raise WorkerLostError("a worker has died") from error

    def take(self, stream: Any) -> Any:
        """The next value; None at the end."""
        return self.read(stream)

    def cancel(self, streams: Collection[Any]) -> None:
        """Stop their tasks."""
        for stream in streams:
            stream.close()
