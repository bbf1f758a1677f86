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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from dask_exo.cluster.task_status import Activity, OutputDigest
from dask_exo.errors import ClusterError

LARGE = 100_000
"""Size from which an argument is stored once by `Futures.put`: Ray would store it for each call."""

Ref = Any  # opaque and hashable
SubmitOptions = Mapping[str, Any]
"""Options of a task: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, and others that the
cluster knows. Empty means one slot."""


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


@dataclass(frozen=True)
class StoreUsage:
    """Bytes in the object stores of all nodes, and spilled and restored since the cluster began."""

    used: int
    spilled: int
    restored: int


@dataclass(frozen=True)
class DiskUsage:
    """Bytes in a directory for spilled values."""

    path: str
    used: int
    written: int  # since the cluster began
    room: int  # that may still be written before the disk counts as full


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
        """Stop the actor as soon as it is idle."""


class Futures(Protocol):
    """The verbs of a cluster.

    A task is ``fn(*args)``. Refs among ``args`` (not nested ones) are replaced by their values
    before it starts. ``node`` is a soft placement: a dead node does not fail the task. ``options``
    request resources. Submission never blocks and never runs user code in the caller, except in
    the inline implementation.
    """

    @property
    def calls(self) -> int:
        """Tasks submitted so far."""

    @property
    def shares_memory(self) -> bool:
        """True if `get` returns the objects that tasks read, and no copies."""

    @property
    def objects(self) -> int:
        """Refs created so far, without those of generator tasks."""

    @property
    def now(self) -> float:
        """Seconds of the cluster's monotonic clock."""

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        options: SubmitOptions | None = None,
    ) -> Ref:
        """Start one task; return the ref of its result."""

    def split(
        self,
        count: int,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        options: SubmitOptions | None = None,
    ) -> list[Ref]:
        """Start one task that returns a sequence of ``count`` values; return a ref for each."""

    def stream(
        self, count: int, fn: Callable[..., Any], *args: Any, node: str | None = None
    ) -> list[Ref]:
        """Start one task that yields ``count`` values; return a ref for each.

        Each value is stored, and freed by the task, as it is yielded.
        """

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

    def store(self) -> StoreUsage:
        """Return the use of the object stores, and the bytes that they have spilled.

        Raises
        ------
        ClusterError
            The stores do not answer.
        """

    def disks(self) -> list[DiskUsage]:
        """Return the known spill directories; cheap enough to call every second."""

    def memory(self) -> float | None:
        """Return the used share of memory of the fullest machine, if known."""

    def activity(self, refs: Sequence[Ref]) -> Activity:
        """Return the status of the tasks behind ``refs``; called if nothing finishes for long."""

    def recomputed(self) -> list[OutputDigest]:
        """Return output digests of calls that ran again, one for each further attempt.

        The list only grows.
        """


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
