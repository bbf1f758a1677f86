"""Generator tasks and actors of the simulated cluster, as pipelines use them.

They wait for resources, first come, first served, and take the first node that has them. Resources
are not shared with slots: what other tasks do on a node is not seen here. A task computes its next
value only when the previous one has been taken.

- A task whose process dies restarts, unless it is a call of an actor, which fails.
- A value that was lost with its node is recomputed by each task that takes it, which takes as long
  as all work behind it. If an actor has made it, such a task fails.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tlz import merge_with

from dask_exo.cluster.resources import fits
from dask_exo.cluster.task_status import TaskStatus
from dask_exo.errors import ValueLostError, WorkerLostError
from dask_exo.testing.inline import InlineActor
from dask_exo.testing.simulated.cluster import SimCluster
from dask_exo.testing.simulated.store import FAILED, PENDING, SimRef, SimValue
from dask_exo.testing.simulated.tasks import SimNode


class SimOutput(NamedTuple):
    """A value that a generator task yields, with its metadata, after so many virtual seconds."""

    seconds: float
    nbytes: int
    value: Any
    metadata: Any


Work = Callable[[Callable[..., Any], Sequence[Any]], Iterator[SimOutput]]
"""``work(fn, args)`` yields the outputs of a generator task; refs are replaced by values."""


class GeneratedValue(SimValue):
    """A value of a generator task."""

    __slots__ = ("by_actor", "lost", "stream", "work_seconds")

    def __init__(self, stream: SimStream) -> None:
        super().__init__(stream.cluster.driver, None)
        stream.cluster.ledger.count_refs(1)
        self.stream, self.by_actor = weakref.ref(stream), stream.actor is not None
        self.work_seconds: float = 0.0  # seconds of all work behind it, one task after the other
        self.lost: bool = False  # with its node


class SimStream:
    """A generator task; see `dask_exo.cluster.futures.OutputStream`."""

    generators: SimGenerators
    cluster: SimCluster
    args: Sequence[Any]
    request: dict[str, float]
    actor: SimActor | None

    def __init__(
        self,
        generators: SimGenerators,
        fn: Callable[..., Any],
        args: Sequence[Any],
        request: dict[str, float],
        actor: SimActor | None,
    ) -> None:
        self.generators, self.cluster = generators, generators.cluster
        self.fn, self.args, self.request, self.actor = fn, args, request, actor
        self.node: SimNode | None = None
        self._steps: Iterator[SimOutput] = iter(())
        self._step: SimOutput | None = None
        self._output_count = self._taken_count = self._attempt = 0
        self._work_seconds = 0.0
        self._is_read = self._ended = False
        self._error: Exception | None = None
        self.next: SimRef = SimRef(GeneratedValue(self))

    def begin(self, node: SimNode) -> None:
        """Run on a node, from the beginning."""
        self.node = node
        self.generators.busy[self.actor or self] = None
        inputs = [
            arg.entry
            for arg in self.args
            if type(arg) is SimRef and isinstance(arg.entry, GeneratedValue)
        ]
        lost = [entry for entry in inputs if entry.lost]
        if any(entry.by_actor for entry in lost):
            self.fail(ValueLostError("an input was lost with its node"))
            return
        values = [arg.entry.value if type(arg) is SimRef else arg for arg in self.args]
        self._steps = self.generators.work(self.fn, values)
        self._work_seconds = max((entry.work_seconds for entry in inputs), default=0.0)
        steps = [next(self._steps) for _ in range(self._output_count)]
        delay = sum(step.seconds for step in steps)
        self._work_seconds += delay
        delay += max((entry.work_seconds for entry in lost), default=0.0)
        if self._output_count == self._taken_count:
            self._advance(delay)

    def _advance(self, delay: float = 0.0) -> None:
        """Compute the next value, or end."""
        self._step = next(self._steps, None)
        if self._step is None:
            self._finish(None)
            self.cancel()
            return
        attempt = self._attempt
        at = self.cluster.now + delay + self._step.seconds
        self.cluster.plan(at, lambda: self._store(attempt))

    def _store(self, attempt: int) -> None:
        if attempt != self._attempt:
            return  # its process has died meanwhile
        assert self._step is not None
        assert self.node is not None
        entry = self.next.entry
        assert isinstance(entry, GeneratedValue)
        self._output_count += 1
        self._work_seconds += self._step.seconds
        entry.size, entry.value = self._step.nbytes, self._step.value
        entry.work_seconds = self._work_seconds
        self.node.store.add(entry)
        self.cluster.has_finished |= entry in self.cluster.watched

    def read(self) -> Any:
        """Return the metadata of the next value; None at the end."""
        entry = self.next.entry
        if entry.state != FAILED:
            assert self._step is not None
            self._is_read = True
            return self._step.metadata
        if entry.value is not None:
            raise entry.value
        return None

    def take(self) -> SimRef:
        """Return a ref of that value; the task goes on."""
        ref, self.next = self.next, SimRef(GeneratedValue(self))
        self._taken_count += 1
        self._is_read = False
        if self._ended:
            self._finish(self._error)
        elif self.node is not None:
            self._advance()
        return ref

    def cancel(self) -> None:
        """Stop the task."""
        self._stop()
        self._ended, self.args, self._steps = True, (), iter(())

    def fail(self, error: Exception) -> None:
        """End with an exception, after the value that can be taken."""
        self._error = error
        if self._output_count == self._taken_count:
            self._finish(error)
        self.cancel()

    def restart(self, *, node_lost: bool) -> None:
        """Run again after the death of the process, or of the node with the value made last."""
        self._stop()
        if node_lost and self._output_count > self._taken_count and not self._is_read:
            self._output_count, self.next = self._taken_count, SimRef(GeneratedValue(self))
        self.generators.acquire(self)

    def status(self) -> TaskStatus:
        """Return the status of the task."""
        if self.next.entry.state != PENDING:
            return TaskStatus("finished")
        return TaskStatus("running" if self.node is not None else "pending", self.request)

    def _finish(self, error: Exception | None) -> None:
        """Let `read` return None, or raise."""
        entry = self.next.entry
        entry.state, entry.value = FAILED, error
        self.cluster.has_finished |= entry in self.cluster.watched

    def _stop(self) -> None:
        self._attempt += 1
        node, self.node = self.node, None
        if self.actor is not None:
            self.actor.finish(self)
        else:
            self.generators.release(self, node)


class SimActor(InlineActor):
    """An actor with resources that runs one generator at a time; see `Actor`."""

    def __init__(
        self, generators: SimGenerators, futures: Any, request: dict[str, float], *instance: Any
    ) -> None:
        super().__init__(futures, generators.actors, *instance)
        self.request = request
        self.node: SimNode | None = None
        self.calls: list[SimStream] = []
        self._generators = generators
        self._loaded = self._dead = False
        generators.note_actors()
        generators.acquire(self)

    def begin(self, node: SimNode) -> None:
        """Load the instance on a node."""
        self.node = node
        at = self._generators.cluster.now + self._generators.loading
        self._generators.cluster.plan(at, self._load)

    def _load(self) -> None:
        self._loaded = self.node is not None
        if self._loaded and self.calls:
            self.calls[0].begin(self.node)  # type: ignore[arg-type]

    def generate(self, fn: Callable[..., Any], *args: Any, seed: str = "") -> SimStream:  # noqa: ARG002
        """Call a generator function after the calls before it."""
        stream = SimStream(self._generators, fn, (*self._instance, *args), self.request, self)
        self.calls.append(stream)
        if self._dead:
            stream.fail(WorkerLostError("the actor has died"))
        elif self._loaded and self.calls[0] is stream:
            assert self.node is not None
            stream.begin(self.node)
        return stream

    def finish(self, stream: SimStream) -> None:
        """Begin the next call, if the first one has ended."""
        if stream not in self.calls:
            return
        first = self.calls[0] is stream
        self.calls.remove(stream)
        if not self.calls:
            self._generators.busy.pop(self, None)
        elif first and self._loaded:
            assert self.node is not None
            self.calls[0].begin(self.node)

    def die(self) -> None:
        """Fail all calls."""
        self._dead = True
        self._vacate()
        for stream in list(self.calls):
            stream.fail(WorkerLostError("an actor has died"))

    def stop(self) -> None:
        """Release the resources."""
        super().stop()
        self._vacate()
        self._generators.note_actors()

    def _vacate(self) -> None:
        self._loaded = False
        node, self.node = self.node, None
        self._generators.release(self, node)


class SimGenerators:
    """All generator tasks and actors of a simulated cluster."""

    cluster: SimCluster
    loading: float

    def __init__(self, cluster: SimCluster, work: Work, loading: float) -> None:
        self.cluster, self.work, self.loading = cluster, work, loading
        self.busy: dict[SimStream | SimActor, None] = {}  # in the order in which they began
        self.actors: set[SimActor] = set()  # not stopped
        self.history: list[tuple[float, int]] = []  # virtual second, number of actors since
        self.deaths: int = 0  # of busy processes
        self._free = {machine: Counter(self.whole(machine)) for machine in cluster.machines}
        self._waiting: dict[SimStream | SimActor, None] = {}

    @staticmethod
    def whole(machine: SimNode) -> dict[str, float]:
        """Return the resources of a node."""
        return dict(machine.node.resources or {"CPU": float(machine.node.slots)})

    def resources(self, *, free: bool) -> dict[str, float]:
        """Return the amounts of all live nodes together."""
        alive = [machine for machine in self.cluster.machines if machine.alive]
        each = [self._free[machine] if free else self.whole(machine) for machine in alive]
        return dict(merge_with(sum, each))

    def acquire(self, process: SimStream | SimActor) -> None:
        """Begin a task or an actor as soon as a node has its resources."""
        self._waiting[process] = None
        self._place()

    def release(self, process: SimStream | SimActor, node: SimNode | None) -> None:
        """Take a task or an actor from its node."""
        self.busy.pop(process, None)
        self._waiting.pop(process, None)
        if node is not None:
            self._free[node].update(process.request)
            self._place()

    def note_actors(self) -> None:
        """Record the number of actors."""
        self.history.append((self.cluster.now, len(self.actors)))

    def kill_process(self, node: SimNode | None, *, actors: bool) -> None:
        """Kill the process that has been busy for longest."""
        for process in self.busy:
            if (node is None or process.node is node) and not (
                actors and isinstance(process, SimStream)
            ):
                self._kill([process])
                return

    def kill_node(self, node: SimNode, lost: Iterable[SimValue]) -> None:
        """Kill all processes of a node, and lose its values."""
        for entry in lost:
            if isinstance(entry, GeneratedValue):
                entry.lost = True
        idle = [actor for actor in self.actors if actor.node is node and actor not in self.busy]
        self._kill(
            [*(process for process in self.busy if process.node is node), *idle], node_lost=True
        )

    def restore_node(self, node: SimNode) -> None:
        """Let an empty node join."""
        self._free[node] = Counter(self.whole(node))
        self._place()

    def _kill(self, processes: Sequence[SimStream | SimActor], *, node_lost: bool = False) -> None:
        for process in processes:
            self.deaths += process in self.busy
            if isinstance(process, SimActor):
                process.die()
            else:
                process.restart(node_lost=node_lost)

    def _place(self) -> None:
        for process in list(self._waiting):
            for machine in self.cluster.machines:
                if (
                    process in self._waiting
                    and machine.alive
                    and fits(self._free[machine], process.request)
                ):
                    del self._waiting[process]
                    self._free[machine].subtract(process.request)
                    process.begin(machine)
