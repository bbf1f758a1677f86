"""The waist: the few verbs by which all code uses a cluster.

Algorithms, policies and the driver loop see a cluster only through `Futures`.
Four implementations exist: `dask_exo.cluster.on_ray.RayFutures` (a Ray cluster),
`dask_exo.cluster.local.LocalFutures` (threads of this process), `dask_exo.testing.InlineFutures`
(plain calls) and `dask_exo.testing.SimFutures` (a simulated cluster with a virtual clock). The same
code runs on all of them.

A *ref* names a value that may not exist yet. It is opaque and hashable, and may be an argument of
later calls. Its value exists as long as a process holds the ref. References: distributed futures,
Exoshuffle section 3.3.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from dask_exo.cluster.resources import Wants
from dask_exo.cluster.task_status import Activity, OutputDigest
from dask_exo.errors import ClusterError

LARGE = 100_000
"""Size from which an argument is stored once by `Futures.put`: Ray would store it for each call."""

Ref = Any  # opaque and hashable
SubmitOptions = Mapping[str, Any]
"""Options of a task: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, and others that the
cluster knows. Empty means one slot."""

collected_refs: ContextVar[list[Any] | None] = ContextVar("collected_refs", default=None)
"""Arguments of the task whose code is being pickled: its refs are added to them."""

substitutes: ContextVar[Sequence[Any]] = ContextVar("substitutes", default=())
"""Values of these arguments, in the task."""


class FetchTimeoutError(TimeoutError):
    """Values did not arrive within the timeout of `Futures.get`."""


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    id: str
    slots: int  # tasks that it runs at the same time
    store: int  # bytes of its object store
    disk: int | None = None  # free bytes for spilled values, if known
    resources: Mapping[str, float] | None = field(default=None, hash=False)  # if known
    address: str = ""  # of its machine, if that may be another one


@dataclass(frozen=True)
class StoreUsage:
    """Bytes in the object stores of all nodes, and those spilled and restored so far."""

    used: int
    spilled: int
    restored: int


@dataclass(frozen=True)
class DiskUsage:
    """Bytes in a directory for spilled values."""

    path: str
    used: int
    room: int  # that may still be written before the disk counts as full
    node: str = ""  # address of its machine, if that is another one

    @property
    def place(self) -> str:
        """Return the path and the machine, for messages."""
        return repr(self.path) + (f" on {self.node}" if self.node else "")


Produce = Callable[[int, Callable[..., Any], Sequence[Any]], Iterator[Any]]
"""Function that turns one call into ``count`` values: `result`, `returned` or `yielded`."""

_END = object()


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
    """Produce the ``count`` values of the sequence that ``fn`` returns."""
    values = list(fn(*args))
    if len(values) != count:
        raise ValueError(f"{name(fn)} returned {len(values)} values, submitted with count={count}")
    yield from values


def yielded(count: int, fn: Callable[..., Any], args: Sequence[Any]) -> Iterator[Any]:
    """Produce the ``count`` values that the generator function ``fn`` yields, one by one.

    Raise `ValueError` in place of the first missing value; of the last one, if there are more.
    """
    values = iter(fn(*args))
    for i in range(count):
        if (value := next(values, _END)) is _END:
            raise ValueError(f"{name(fn)} yielded {i} values, submitted with count={count}")
        if i == count - 1 and next(values, _END) is not _END:
            raise ValueError(f"{name(fn)} yielded more values, submitted with count={count}")
        yield value
    if not count:
        next(values, _END)  # it runs, though nobody could see an error


class OutputStream(Protocol):
    """Outputs of a generator task: pairs of a value and its metadata.

    The task waits until a pair is taken before it computes the next one.
    """

    @property
    def next(self) -> Ref:
        """Ref that is finished as soon as `read` does not block."""

    def read(self) -> Any:
        """Return the metadata of the next value; None at the end.

        Raises
        ------
        WorkerLostError
            The process has died; `ValueLostError` if it is alive, and an argument was lost.
        """

    def take(self) -> Ref:
        """Take the value whose metadata was read."""

    def cancel(self) -> None:
        """Stop the task."""


class Actor(Protocol):
    """A process that holds its resources and runs one call at a time; see `Futures.actor`."""

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """Call a function on the actor; see `Futures.submit`."""

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """Call a function on the actor; see `Futures.split`."""

    def generate(self, fn: Callable[..., Any], *args: Any, seed: str = "") -> OutputStream:
        """Call a generator function on the actor; see `Futures.generate`."""

    def stop(self) -> None:
        """Stop the actor and its unfinished calls. Its finished outputs stay."""

    def retire(self) -> None:
        """Stop the actor as soon as it is idle; one without a class may serve an equal request."""


class Futures(Protocol):
    """The verbs of a cluster.

    A task is ``fn(*args)``. Refs among ``args`` (not nested ones) are replaced by their values
    before it starts. ``node`` is a soft placement: a dead node does not fail the task. ``options``
    request resources. Submission never blocks and never runs user code in the caller, except in
    the inline implementation.
    """

    calls: int  # tasks submitted so far
    objects: int  # refs created so far, without those of generator tasks
    shares_memory: bool  # `get` returns the objects that tasks read, and no copies
    elastic: bool = False  # nodes may join or leave while a program runs

    @property
    def now(self) -> float:
        """Seconds of the cluster's monotonic clock; by default that of this machine."""
        return time.monotonic()

    def call(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        *,
        node: str | None = None,
        options: SubmitOptions | None = None,
    ) -> list[Ref]:
        """Start one task of ``count`` values; return a ref for each.

        `submit`, `split` and `stream` are this verb with a function to produce the values.
        """

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        options: SubmitOptions | None = None,
    ) -> Ref:
        """Start one task; return the ref of its result."""
        return self.call(result, 1, fn, args, node=node, options=options)[0]

    def split(
        self,
        count: int,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        options: SubmitOptions | None = None,
    ) -> list[Ref]:
        """Start one task that returns a sequence of ``count`` values; return a ref for each."""
        return self.call(returned, count, fn, args, node=node, options=options)

    def stream(
        self,
        count: int,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        options: SubmitOptions | None = None,
    ) -> list[Ref]:
        """Start one task that yields ``count`` values; return a ref for each.

        Each value is stored, and freed by the task, as it is yielded.
        """
        return self.call(yielded, count, fn, args, node=node, options=options)

    def generate(
        self,
        fn: Callable[..., Any],
        *args: Any,
        options: SubmitOptions | None = None,
        seed: str = "",
    ) -> OutputStream:
        """Start one task that yields any number of values, and after each its metadata.

        Tasks with equal seeds draw equal random numbers: they are attempts at the same work.
        """

    def actor(self, options: SubmitOptions, cls: type | None = None, *args: Any) -> Actor:
        """Start an actor with the requested resources; its calls wait until it runs.

        If it dies, it is restarted, and its unfinished calls run again. An actor of a class
        creates an instance ``cls(*args)``, and passes it to each call as first argument. It is not
        restarted.
        """

    def stop_retired(self) -> None:
        """Stop the actors that were retired and have not stopped: their resources are needed."""
        return  # only Ray's take long to start

    def put(self, value: Any) -> Ref:
        """Store a value once, so that many tasks can read it by its ref; return a ref as it is."""

    def wait(
        self, refs: Sequence[Ref], timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """Wait until one of ``refs`` is finished, or a timeout; return finished ones and others.

        Without ``refs``, wait for the timeout.
        """

    def get(self, refs: Sequence[Ref], timeout: float | None = None) -> list[Any]:
        """Return the values of ``refs``, in order; raise the error of a failed one.

        Raises
        ------
        FetchTimeoutError
            Some have not arrived after ``timeout`` seconds.
        """

    def cancel(self, refs: Sequence[Ref]) -> None:
        """Stop the tasks behind ``refs`` that have not finished."""

    def nodes(self) -> list[Node]:
        """Return the nodes that run tasks, in a fixed order."""

    def resources(self, *, free: bool = False) -> dict[str, float]:
        """Return the amount of each resource of the whole cluster, or of its free part."""

    def share(self, who: str, weight: float) -> float:  # noqa: ARG002  most have one program
        """Return the part of the cluster that a computation may use now, beside other programs.

        Programs that compute share it in proportion to their weights. A weight of 0 ends ``who``.
        """
        return 1.0

    def rescue(self, refs: Collection[Ref]) -> None:
        """Copy those of some values to other nodes that only nodes have which are about to end."""

    def ask(self, who: str, wants: Wants) -> bool:  # noqa: ARG002  most clusters do not grow
        """Ask for nodes that run so many tasks at the same time; empty wants take it back.

        They replace what ``who`` has asked for before. Return whether the cluster may get nodes
        for all of them.
        """
        return False

    def store(self) -> StoreUsage:
        """Return the use of the object stores, and the bytes that they have spilled.

        Raises
        ------
        ClusterError
            The stores do not answer.
        """

    def disks(self) -> list[DiskUsage]:
        """Return the known spill directories; cheap enough to call every second."""
        return []

    def memory(self) -> float | None:
        """Return the used share of memory of the fullest machine, if known."""
        return None

    def activity(self, refs: Sequence[Ref]) -> Activity:
        """Return the status of the tasks behind ``refs``; called if nothing finishes for long."""

    def recomputed(self) -> list[OutputDigest]:
        """Return output digests of calls that ran again, one for each further attempt.

        The list only grows.
        """
        return []


_provider: Callable[[], Futures] | None = None


def provide(provider: Callable[[], Futures]) -> None:
    """Set the function that `default` calls."""
    global _provider  # noqa: PLW0603  there is one for the process
    _provider = provider


def default() -> Futures:
    """Return the default cluster."""
    if _provider is None:
        raise ClusterError("no cluster is known: import dask_exo, or pass futures=")
    return _provider()


_here: ContextVar[str | None] = ContextVar("here", default=None)
_shared: ContextVar[bool] = ContextVar("shared", default=False)


def current_node() -> str | None:
    """Return the id of the node on which this task runs, if known."""
    return _here.get()


def shares_process() -> bool:
    """Return whether this task runs beside others, and its caller, in threads of one process.

    Such a task must not change what is global to the process: settings, filters of warnings.
    """
    return _shared.get()


@contextmanager
def on_node(node: str, *, shared: bool = False) -> Iterator[None]:
    """Set the results of `current_node`, `shares_process`; for implementations of `Futures`."""
    tokens = _here.set(node), _shared.set(shared)
    try:
        yield
    finally:
        _here.reset(tokens[0])
        _shared.reset(tokens[1])
