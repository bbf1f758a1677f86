"""The waist: the few verbs that everything which runs asks for.

Algorithms, policies and the driver loop see a cluster only through `Futures`.
Three implementations exist: `dask_exo.cluster.on_ray.RayFutures` (a Ray cluster),
`dask_exo.testing.InlineFutures` (plain calls) and `dask_exo.testing.SimFutures`
(a simulated cluster with a virtual clock). The same code runs on all three.

A *ref* stands for a value that may not exist yet. It is opaque, hashable, may
be an argument of later calls, and its value lives as long as somebody holds the
ref. References: distributed futures, Exoshuffle section 3.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeVar

from dask_exo.cluster.task_status import Activity, OutputDigest
from dask_exo.errors import ClusterError

T = TypeVar("T")

LARGE = 100_000
"""Bytes of an argument that Ray would store for each call, so that it is better put once."""

Ref = Any  # opaque and hashable
Wait = Callable[[Sequence[Ref], float | None], tuple[list[Ref], list[Ref]]]
"""Waits for some refs, so many seconds at most; see `Futures.wait`."""
SubmitOptions = Mapping[str, Any]
"""What a task asks of its place: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``, and
whatever else the cluster knows. Empty means one slot."""


class FetchTimeoutError(TimeoutError):
    """Some values have not come in the time that `Futures.get` was given."""


@dataclass(frozen=True)
class Until:
    """What a coroutine waits for, if not just for all of some refs: whichever comes first.

    Attributes
    ----------
    all : collection of refs
        All of these are finished.
    any : collection of refs
        One of these is.
    time : float, optional
        So late is it, by `Futures.now`.
    """

    all: Collection[Ref] = ()
    any: Collection[Ref] = ()
    time: float | None = None


Steps = Generator[Collection[Ref] | Until, None, T]
"""A coroutine on the waist: it submits, yields refs it must see finished, returns a `T`."""


@dataclass(frozen=True)
class Node:
    """One machine of the cluster.

    Attributes
    ----------
    id : str
        Name of the node, as `Futures.submit` takes it for placement.
    slots : int
        Tasks it runs side by side.
    store : int
        Size of its object store in bytes.
    disk : int, optional
        Bytes free for what does not fit the store, if that is known.
    resources : mapping, optional
        Amount of each resource ("CPU", "GPU", others), if that is known.
    """

    id: str
    slots: int
    store: int
    disk: int | None = None
    resources: Mapping[str, float] | None = field(default=None, hash=False)


@dataclass(frozen=True)
class StoreUsage:
    """Totals over the object stores of all nodes, in bytes.

    Attributes
    ----------
    used : int
        In the stores at the moment.
    spilled, restored : int
        Written to disk and read back since the cluster began.
    """

    used: int
    spilled: int
    restored: int


@dataclass(frozen=True)
class DiskUsage:
    """A directory for what does not fit the object stores.

    Attributes
    ----------
    path : str
    used : int
        Bytes of values that are there now.
    written : int
        Bytes of all values that have been seen there since the cluster began.
    room : int
        Bytes that may still be written there, before the disk counts as full.
    """

    path: str
    used: int
    written: int
    room: int


class Actor(Protocol):
    """A process that is kept, and has what it was started for to itself; one call at a time.

    What a call leaves behind in the process is there for the next one. A worker that dies is
    started anew, and so are the calls that it had.
    """

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """Call there; see `Futures.submit`."""
        ...

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """Call there; see `Futures.split`."""
        ...

    def stop(self) -> None:
        """End it, with the calls that have not ended. What it has returned stays."""
        ...


class Futures(Protocol):
    """What a cluster can be asked for.

    A task is ``fn(*args)``; refs among ``args`` (not nested ones) are replaced by their
    values before it starts. ``node`` asks for a place, softly: a dead node does not fail
    the task; ``needs`` asks for its resources. Submission never blocks and never runs user
    code in the caller, but for the inline implementation.

    Attributes
    ----------
    calls, objects : int
        Tasks submitted and refs made, so far.
    """

    calls: int

    @property
    def objects(self) -> int:
        """Refs made, so far."""
        ...

    @property
    def now(self) -> float:
        """Seconds on the cluster's clock, which never goes back."""
        ...

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        needs: SubmitOptions | None = None,
    ) -> Ref:
        """Start one task; return the ref of its result."""
        ...

    def split(
        self,
        count: int,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        needs: SubmitOptions | None = None,
    ) -> list[Ref]:
        """Start one task that returns a sequence of ``count`` values; return a ref for each."""
        ...

    def stream(
        self, count: int, fn: Callable[..., Any], *args: Any, node: str | None = None
    ) -> list[Ref]:
        """Start one task that yields ``count`` values, each stored (and freed by the task)
        as it is yielded; return a ref for each.
        """
        ...

    def worker(self, needs: SubmitOptions) -> Actor:
        """Start a worker that has what it needs; calls wait until it is there."""
        ...

    def put(self, value: Any) -> Ref:
        """Store a value once, so that many tasks can take it by ref."""
        ...

    def wait(
        self, refs: Sequence[Ref], timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """Block until at least one of ``refs`` is finished (or ``timeout`` seconds have
        passed); return those finished and the others.
        """
        ...

    def get(self, refs: Sequence[Ref], timeout: float | None = None) -> list[Any]:
        """Values of ``refs``, in order; raises what made one of them fail.

        Raises
        ------
        FetchTimeoutError
            They have not all come after ``timeout`` seconds.
        """
        ...

    def cancel(self, refs: Sequence[Ref]) -> None:
        """Stop the tasks behind ``refs`` where that is still possible."""
        ...

    def nodes(self) -> list[Node]:
        """The nodes that run tasks, in a fixed order."""
        ...

    def store(self) -> StoreUsage:
        """How full the object stores are, and what they have spilled.

        Raises
        ------
        ClusterError
            They do not answer.
        """
        ...

    def disks(self) -> list[DiskUsage]:
        """Where they spill to, as far as that is known; cheap enough to ask every second."""
        ...

    def memory(self) -> float | None:
        """Used share of the memory of the fullest machine, as far as known; asked every second."""
        ...

    def activity(self, refs: Sequence[Ref]) -> Activity:
        """What the tasks behind ``refs`` do at the moment; asked where nothing happens for long."""
        ...

    def repeats(self) -> list[OutputDigest]:
        """What calls of this program have made that ran again, once for each time.

        The list only grows.
        """
        ...


_provider: Callable[[], Futures] | None = None


def provide(provider: Callable[[], Futures]) -> None:
    """Say what `default` returns."""
    global _provider  # noqa: PLW0603  there is one for the process
    _provider = provider


def default() -> Futures:
    """The cluster that is meant where none is named."""
    if _provider is None:
        raise ClusterError("no cluster is known: import dask_exo, or pass futures=")
    return _provider()


def drive(futures: Futures, steps: Steps[T], wait: Wait | None = None) -> T:
    """Run one coroutine alone, to its end.

    Parameters
    ----------
    futures : Futures
        The cluster that ``steps`` submits to.
    steps : generator
        Yields collections of refs; goes on when all of one are finished, or see `Until`.
    wait : callable, optional
        Waits instead of `Futures.wait`, and may raise what ends it all.

    Returns
    -------
    object
        What ``steps`` returns.

    Examples
    --------
    >>> from dask_exo.testing import InlineFutures
    >>> f = InlineFutures()
    >>> def double_twice(x):
    ...     ref = f.submit(lambda v: 2 * v, x)
    ...     yield [ref]
    ...     return f.submit(lambda v: 2 * v, ref)
    >>> f.get([drive(f, double_twice(5))])
    [20]
    """
    wait = wait or futures.wait
    try:
        while True:
            waiting = Waiting(next(steps))
            while not waiting.over(futures.now):
                done, _ = wait(waiting.refs, waiting.timeout(futures.now))
                waiting.finished(done)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


class Waiting:
    """What a coroutine still waits for.

    Parameters
    ----------
    asked : collection of refs, or Until

    Examples
    --------
    >>> waiting = Waiting(Until(all=["a", "b"], any=["c"], time=9.0))
    >>> waiting.refs, waiting.timeout(7.5), waiting.over(7.5), waiting.over(9.0)
    (['a', 'b', 'c'], 1.5, False, True)
    >>> waiting.finished(["b"]), waiting.refs, waiting.over(8.0)
    (None, ['a', 'c'], False)
    >>> waiting.finished(["c"]), waiting.over(8.0)
    (None, True)
    """

    def __init__(self, asked: Collection[Ref] | Until = ()) -> None:
        until = asked if isinstance(asked, Until) else Until(asked)
        self._all, self._any = dict.fromkeys(until.all), dict.fromkeys(until.any)
        self._time = until.time
        self._met = not self._all and not self._any

    @property
    def refs(self) -> list[Ref]:
        """Those that are not finished yet."""
        return [*self._all, *self._any]

    def timeout(self, now: float) -> float | None:
        """Seconds after which to go on in any case."""
        return None if self._time is None else max(0.0, self._time - now)

    def finished(self, refs: Collection[Ref]) -> None:
        """Take note of finished refs, also of those that nobody waits for here."""
        if not self._met:
            self._met = any(ref in self._any for ref in refs)
            had = bool(self._all)
            for ref in refs:
                self._all.pop(ref, None)
            self._met |= had and not self._all

    def over(self, now: float) -> bool:
        """Whether to go on."""
        return self._met or (self._time is not None and now >= self._time)


_here: ContextVar[str | None] = ContextVar("here", default=None)


def current_node() -> str | None:
    """Id of the node on which this task runs, if that is known."""
    return _here.get()


@contextmanager
def on_node(node: str) -> Iterator[None]:
    """Run tasks as on a node; for those who implement `Futures`."""
    token = _here.set(node)
    try:
        yield
    finally:
        _here.reset(token)


def split_evenly(count: int, groups: int) -> list[range]:
    """Cut ``range(count)`` into contiguous ranges of (nearly) one length.

    Examples
    --------
    >>> split_evenly(5, 2)
    [range(0, 2), range(2, 5)]
    """
    return split_by_weight(count, [1] * groups)


def split_by_weight(count: int, weights: Sequence[int]) -> list[range]:
    """Cut ``range(count)`` into contiguous ranges as long as their weights, about.

    Examples
    --------
    >>> split_by_weight(10, [1, 3, 1])
    [range(0, 2), range(2, 8), range(8, 10)]
    """
    total = sum(weights)
    cuts = [count * upto // total for upto in accumulate(weights, initial=0)]
    return [range(a, b) for a, b in pairwise(cuts)]
