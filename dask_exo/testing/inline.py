"""The waist by plain calls: each task runs at once, in the calling thread.

It is the oracle for code that submits tasks, and the quickest way to debug it: a breakpoint in a
task is reached below the line that submitted the task.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tlz import merge_with

from dask_exo.cluster.futures import Futures, Node, Produce, Ref, StoreUsage, SubmitOptions
from dask_exo.cluster.ownership import as_stored
from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.errors import WorkerLostError


class Died(BaseException):
    """Exception that a generator function raises to simulate the death of its process."""


class InlineStream:
    """A generator task that runs when it is read; see `dask_exo.cluster.futures.OutputStream`."""

    def __init__(self, futures: InlineFutures, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        self._futures = futures
        self._steps = self._run(fn, args)
        self._pair: tuple[Any, Any] | None = None  # read and not taken

    @property
    def next(self) -> Ref:
        """Itself: it is read at any time."""
        return self

    def read(self) -> Any:
        """Compute the next value; return its metadata, None at the end."""
        if self._pair is None:
            try:
                self._pair = next(self._steps, None), next(self._steps, None)
            except Died as error:
                raise WorkerLostError("a worker has died") from error
        return self._pair[1]

    def take(self) -> InlineRef:
        """Return a ref of that value."""
        assert self._pair is not None
        (value, _), self._pair = self._pair, None
        return self._futures.put(value)

    def cancel(self) -> None:
        """Close the generator."""
        self._steps.close()

    def _run(self, fn: Callable[..., Any], args: Sequence[Any]) -> Generator[Any]:
        yield from fn(*self._futures.values_of(args))


class InlineActor:
    """An actor whose calls run like tasks; see `dask_exo.cluster.futures.Actor`.

    The instance of a class is the first argument of each call.
    """

    def __init__(self, futures: Futures, actors: set[Any], *instance: Any) -> None:
        self._futures, self._actors, self._instance = futures, actors, instance
        actors.add(self)

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """See `Futures.submit`."""
        return self._futures.submit(fn, *self._instance, *args)

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """See `Futures.split`."""
        return self._futures.split(count, fn, *self._instance, *args)

    def generate(self, fn: Callable[..., Any], *args: Any, seed: str = "") -> Any:
        """See `Futures.generate`."""
        return self._futures.generate(fn, *self._instance, *args, seed=seed)

    def stop(self) -> None:
        """Forget the actor."""
        self._actors.discard(self)

    def retire(self) -> None:
        """Forget the actor, which is idle."""
        self.stop()


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class InlineRef:
    """The value of a call, or the exception that it raised; held only by this ref."""

    value: Any = None
    error: Exception | None = None


class InlineFutures(Futures):
    """Run each task at once, in the calling thread; implements `Futures`.

    No task sees what another does to a value that both take. A task that raises stores its
    exception in its refs, and so does each task that takes one of them. A stored exception holds
    the frames of its traceback, so the refs of failed tasks may live until the next garbage
    collection. Tasks are not placed on ``nodes``.

    Examples
    --------
    >>> f = InlineFutures()
    >>> low, high = f.split(2, divmod, 17, 5)
    >>> f.get([low, high, f.submit(pow, low, high)])
    [3, 2, 9]
    >>> f.calls, f.objects, f.live
    (2, 3, 2)
    """

    shares_memory = False

    def __init__(self, nodes: Sequence[Node] = (Node("inline", 1, 2**30),)) -> None:
        self.calls: int = 0
        self.objects: int = 0
        self.actors: set[InlineActor] = set()  # not stopped
        self._nodes = list(nodes)
        self._ids = frozenset(node.id for node in nodes)
        self._held: weakref.WeakSet[InlineRef] = weakref.WeakSet()

    @property
    def live(self) -> int:
        """Refs that somebody still holds, so that their values exist."""
        return len(self._held)

    def generate(
        self,
        fn: Callable[..., Any],
        *args: Any,
        options: SubmitOptions | None = None,  # noqa: ARG002  every task gets one slot
        seed: str = "",  # noqa: ARG002  this process is not ours
    ) -> InlineStream:
        """Return a task that runs when it is read; one that raises `Died` is lost."""
        self.calls += 1
        return InlineStream(self, fn, args)

    def actor(
        self,
        options: SubmitOptions,  # noqa: ARG002  every task gets one slot
        cls: type | None = None,
        *args: Any,
    ) -> InlineActor:
        """Return an actor whose calls run in this process."""
        instance = () if cls is None else (cls(*self.values_of(args)),)
        return InlineActor(self, self.actors, *instance)

    def put(self, value: Any) -> InlineRef:
        """Store a value."""
        if isinstance(value, InlineRef):
            return value
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

    def activity(self, refs: Sequence[InlineRef]) -> Activity:
        """Return that tasks are finished, unless they are generators."""
        done = [isinstance(ref, InlineRef) for ref in refs]
        return Activity(
            [TaskStatus("finished" if one else "running") for one in done], 0, self._resources()
        )

    def _resources(self) -> dict[str, Mapping[str, float]]:
        return {n.id: n.resources or {"CPU": float(n.slots)} for n in self._nodes}

    def resources(self, *, free: bool = False) -> dict[str, float]:  # noqa: ARG002  none is in use
        """Return the resources of all nodes together."""
        return dict(merge_with(sum, list(self._resources().values())))

    def values_of(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments of a task, with values in place of refs."""
        return [as_stored(_value(a)) if isinstance(a, InlineRef) else a for a in args]

    def _refs(self, count: int) -> list[InlineRef]:
        refs = [InlineRef() for _ in range(count)]
        self._held.update(refs)
        self.objects += count
        return refs

    def call(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        *,
        node: str | None = None,
        options: SubmitOptions | None = None,  # noqa: ARG002  every task gets one slot
    ) -> list[InlineRef]:
        """Run a task; see `Futures.call`."""
        if node is not None and node not in self._ids:
            raise ValueError(f"no node is called {node!r}; there are {sorted(self._ids)}")
        self.calls += 1
        refs = self._refs(count)
        done = 0
        try:
            for done, value in enumerate(produce(count, fn, self.values_of(args)), 1):
                refs[done - 1].value = value
        except Exception as error:  # noqa: BLE001 - whoever asks for the value gets it
            for ref in refs[done:]:
                ref.error = error
        return refs


def _value(ref: InlineRef) -> Any:
    if ref.error is not None:
        raise ref.error
    return ref.value
