"""The waist by plain calls: each task runs at once, in the calling thread.

It is the oracle for code that submits tasks, and the quickest way to debug it: a breakpoint in a
task is reached below the line that submitted the task.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask_exo.cluster.futures import DiskUsage, Futures, Node, Ref, StoreUsage, SubmitOptions
from dask_exo.cluster.task_status import Activity, OutputDigest, TaskStatus
from dask_exo.errors import WorkerLostError
from dask_exo.partitions.ownership import as_stored

Produce = Callable[[int, Callable[..., Any], Sequence[Any]], Iterator[Any]]
"""Function that turns one call into ``count`` values: `result`, `returned` or `yielded`."""

END = object()


def name(fn: Callable[..., Any]) -> str:
    """Return the name of a function, also behind `functools.partial`."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__name__", type(fn).__name__))


def result(count: int, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[Any]:
    """Produce the one value that ``fn`` returns."""
    assert count == 1
    yield fn(*args)


def returned(count: int, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[Any]:
    """Produce the ``count`` values of the sequence that ``fn`` returns.

    Raises
    ------
    ValueError
        The sequence has another length.
    """
    values = list(fn(*args))
    if len(values) != count:
        raise ValueError(f"{name(fn)} returned {len(values)} values, submitted with count={count}")
    yield from values


def yielded(count: int, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[Any]:
    """Produce the ``count`` values that the generator function ``fn`` yields, one by one.

    Raises
    ------
    ValueError
        In place of the first missing value; of the last one, if there are more.
    """
    values = iter(fn(*args))
    for i in range(count):
        if (value := next(values, END)) is END:
            raise ValueError(f"{name(fn)} yielded {i} values, submitted with count={count}")
        if i == count - 1 and next(values, END) is not END:
            raise ValueError(f"{name(fn)} yielded more values, submitted with count={count}")
        yield value
    if not count:
        next(values, END)  # it runs, though nobody could see an error


class InlineActor:
    """An actor whose calls run like tasks; implements `dask_exo.cluster.futures.Actor`.

    Parameters
    ----------
    futures : Futures
    """

    def __init__(self, futures: Futures) -> None:
        self._futures = futures

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """See `Futures.submit`."""
        return self._futures.submit(fn, *args)

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """See `Futures.split`."""
        return self._futures.split(count, fn, *args)

    def stop(self) -> None:
        """Do nothing: there is no process."""


class InlineRef:
    """The value of a call, or the exception that it raised; held only by this ref."""

    __slots__ = ("__weakref__", "error", "value")

    def __init__(self) -> None:
        self.value: Any = None
        self.error: Exception | None = None


class InlineFutures:
    """Run each task at once, in the calling thread; implements `Futures`.

    No task sees what another does to a value that both take. A task that raises stores its
    exception in its refs, and so does, with the same exception, each task that takes one of them.
    A stored exception holds the frames of its traceback, so the refs of failed tasks may live
    until the next garbage collection.

    Parameters
    ----------
    nodes : sequence of Node
        Result of `nodes`; tasks are not placed.

    Attributes
    ----------
    calls : int
        Tasks submitted.
    objects : int
        Refs made.

    Examples
    --------
    >>> f = InlineFutures()
    >>> low, high = f.split(2, divmod, 17, 5)
    >>> f.get([low, high, f.submit(pow, low, high)])
    [3, 2, 9]
    >>> f.calls, f.objects, f.live
    (2, 3, 2)
    """

    def __init__(self, nodes: Sequence[Node] = (Node("inline", 1, 2**30),)) -> None:
        self.calls = 0
        self.objects = 0
        self._nodes = list(nodes)
        self._ids = frozenset(node.id for node in nodes)
        self._held: weakref.WeakSet[InlineRef] = weakref.WeakSet()

    @property
    def live(self) -> int:
        """Refs that somebody still holds, so that their values exist."""
        return len(self._held)

    @property
    def now(self) -> float:
        """Seconds of this machine's clock."""
        return time.monotonic()

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        needs: SubmitOptions | None = None,  # noqa: ARG002  every task gets one slot
    ) -> InlineRef:
        """Run one task; return the ref of its result."""
        return self._run(result, 1, fn, args, node)[0]

    def split(
        self,
        count: int,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        needs: SubmitOptions | None = None,  # noqa: ARG002  every task gets one slot
    ) -> list[InlineRef]:
        """Run one task that returns ``count`` values; return a ref for each."""
        return self._run(returned, count, fn, args, node)

    def stream(
        self, count: int, fn: Callable[..., Any], *args: Any, node: str | None = None
    ) -> list[InlineRef]:
        """Run one task that yields ``count`` values, to its end; return a ref for each."""
        return self._run(yielded, count, fn, args, node)

    def worker(self, needs: SubmitOptions) -> InlineActor:  # noqa: ARG002  every task gets one slot
        """Return an actor whose calls run in this process."""
        return InlineActor(self)

    def put(self, value: Any) -> InlineRef:
        """Store a value."""
        (ref,) = self._refs(1)
        ref.value = value
        return ref

    def wait(
        self,
        refs: Sequence[InlineRef],
        timeout: float | None = None,  # noqa: ARG002
    ) -> tuple[list[InlineRef], list[InlineRef]]:
        """Return all ``refs`` as finished, since they are."""
        return list(refs), []

    def get(
        self,
        refs: Sequence[InlineRef],
        timeout: float | None = None,  # noqa: ARG002
    ) -> list[Any]:
        """Return the values of ``refs``, in order; raise the error of the first failed one."""
        return [_value(ref) for ref in refs]

    def cancel(self, refs: Sequence[InlineRef]) -> None:
        """Do nothing: each task has finished."""

    def nodes(self) -> list[Node]:
        """Return the nodes as given."""
        return list(self._nodes)

    def store(self) -> StoreUsage:
        """Return zeros: there is no store."""
        return StoreUsage(0, 0, 0)

    def disks(self) -> list[DiskUsage]:
        """Return no directories: nothing is spilled."""
        return []

    def memory(self) -> float | None:
        """Return None: it is the memory of this process."""
        return None

    def activity(self, refs: Sequence[InlineRef]) -> Activity:
        """Return that all tasks are finished."""
        nodes = {node.id: {"CPU": float(node.slots)} for node in self._nodes}
        return Activity([TaskStatus("finished") for _ in refs], 0, nodes)

    def repeats(self) -> list[OutputDigest]:
        """Return none: nothing is recomputed."""
        return []

    def _refs(self, count: int) -> list[InlineRef]:
        refs = [InlineRef() for _ in range(count)]
        self._held.update(refs)
        self.objects += count
        return refs

    def _run(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        node: str | None,
    ) -> list[InlineRef]:
        if node is not None and node not in self._ids:
            raise ValueError(f"no node is called {node!r}; there are {sorted(self._ids)}")
        self.calls += 1
        refs = self._refs(count)
        done = 0
        try:
            given = [as_stored(_value(a)) if isinstance(a, InlineRef) else a for a in args]
            for done, value in enumerate(produce(count, fn, given), 1):
                refs[done - 1].value = value
        except Exception as error:  # noqa: BLE001 - whoever asks for the value gets it
            for ref in refs[done:]:
                ref.error = error
        return refs


def _value(ref: InlineRef) -> Any:
    if ref.error is not None:
        raise ref.error
    return ref.value


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
