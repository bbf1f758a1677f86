"""The waist on threads of this process at first, and on another cluster as soon as there is one.

A computation can so begin while Ray starts. Tasks that run stay where they are; values of this
process are copied into the store of the cluster when a task there needs them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dask_exo.cluster.futures import (
    Actor,
    DiskUsage,
    Futures,
    Node,
    OutputStream,
    Produce,
    Ref,
    StoreUsage,
    SubmitOptions,
)
from dask_exo.cluster.local import LOCAL_NODE, LocalFutures
from dask_exo.cluster.ownership import isolated
from dask_exo.cluster.resources import Wants
from dask_exo.cluster.spilling import StoredRef
from dask_exo.cluster.task_status import Activity, OutputDigest

POLL = 0.01  # seconds between two looks at tasks of this process, while others run elsewhere


class HandoverFutures(Futures):
    """Run tasks on ``local`` until `move` has connected to another cluster; implements `Futures`.

    Refs of this process are `StoredRef`; all others belong to the other cluster.

    Examples
    --------
    >>> from dask_exo.testing import InlineFutures
    >>> there: Future[Futures] = Future()
    >>> f = HandoverFutures(LocalFutures(slots=2, memory=2**30), lambda: there)
    >>> four = f.submit(pow, 2, 2)
    >>> f.move()
    >>> there.set_result(InlineFutures())
    >>> f.get([f.submit(pow, four, 2)]), f.shares_memory
    ([16], False)
    """

    local: LocalFutures

    def __init__(self, local: LocalFutures, connect: Callable[[], Future[Futures]]) -> None:
        self.local, self._connect = local, connect
        self._awaited: Future[Futures] | None = None
        self._cluster: Futures | None = None  # from the first submission after it was there
        self._copies: weakref.WeakKeyDictionary[StoredRef, Ref] = weakref.WeakKeyDictionary()

    def move(self) -> None:
        """Connect to the other cluster; submit there as soon as that has succeeded."""
        self._awaited = self._connect()

    @property
    def shares_memory(self) -> bool:  # type: ignore[override]
        """Return whether tasks run on threads of this process."""
        return self._cluster is None

    @property
    def calls(self) -> int:  # type: ignore[override]
        """See `Futures.calls`."""
        return sum(one.calls for one in self._both)

    @property
    def objects(self) -> int:  # type: ignore[override]
        """See `Futures.objects`."""
        return sum(one.objects for one in self._both)

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
        """See `Futures.call`."""
        target, inputs, node = self._place(args, node)
        return target.call(produce, count, fn, inputs, node=node, options=options)

    def generate(
        self,
        fn: Callable[..., Any],
        *args: Any,
        options: SubmitOptions | None = None,
        seed: str = "",
    ) -> OutputStream:
        """See `Futures.generate`."""
        target, inputs, _ = self._place(args, None)
        return target.generate(fn, *inputs, options=options, seed=seed)

    def actor(self, options: SubmitOptions, cls: type | None = None, *args: Any) -> Actor:
        """See `Futures.actor`."""
        target, inputs, _ = self._place(args, None)
        return target.actor(options, cls, *inputs)

    def stop_retired(self) -> None:
        """See `Futures.stop_retired`."""
        self._both[-1].stop_retired()

    def put(self, value: Any) -> Ref:
        """See `Futures.put`."""
        return value if isinstance(value, StoredRef) else self._both[-1].put(value)

    def wait(
        self, refs: Sequence[Ref], timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """See `Futures.wait`."""
        here, there = _divided(refs)
        if not there or not here:
            return self._both[-1 if there else 0].wait(refs, timeout)
        end = None if timeout is None else self.now + timeout
        finished: set[Ref] = set()
        while not finished:
            finished.update(self.local.wait(here, timeout=0)[0])
            pause = 0 if finished or timeout == 0 else POLL
            finished.update(self._both[-1].wait(there, timeout=pause)[0])
            if end is not None and self.now >= end:
                break
        return [r for r in refs if r in finished], [r for r in refs if r not in finished]

    def get(self, refs: Sequence[Ref], timeout: float | None = None) -> list[Any]:
        """See `Futures.get`; once the tasks have moved, every value is a copy."""
        here, there = _divided(refs)
        end = None if timeout is None else self.now + timeout
        values = self.local.get(here, timeout)
        if self._cluster is None:
            return values
        left = None if end is None else max(0.0, end - self.now)
        others = iter(self._cluster.get(there, left) if there else ())
        copies = map(isolated, values)
        return [next(copies) if isinstance(ref, StoredRef) else next(others) for ref in refs]

    def cancel(self, refs: Sequence[Ref]) -> None:
        """See `Futures.cancel`."""
        here, there = _divided(refs)
        self.local.cancel(here)
        if there:
            self._both[-1].cancel(there)

    def nodes(self) -> list[Node]:
        """Return the nodes on which tasks run now."""
        return self._both[-1].nodes()

    def resources(self, *, free: bool = False) -> dict[str, float]:
        """See `Futures.resources`; of the nodes on which tasks run now."""
        return self._both[-1].resources(free=free)

    @property
    def elastic(self) -> bool:  # type: ignore[override]
        """See `Futures.elastic`."""
        return self._both[-1].elastic

    def share(self, who: str, weight: float) -> float:
        """See `Futures.share`."""
        return self._both[-1].share(who, weight)

    def rescue(self, refs: Collection[Ref]) -> None:
        """See `Futures.rescue`."""
        self._both[-1].rescue(_divided(list(refs))[1])

    def ask(self, who: str, wants: Wants) -> bool:
        """See `Futures.ask`."""
        return self._both[-1].ask(who, wants)

    def store(self) -> StoreUsage:
        """See `Futures.store`; the sum of both."""
        usages = [one.store() for one in self._both]
        return StoreUsage(
            sum(usage.used for usage in usages),
            sum(usage.spilled for usage in usages),
            sum(usage.restored for usage in usages),
        )

    def disks(self) -> list[DiskUsage]:
        """See `Futures.disks`."""
        return [disk for one in self._both for disk in one.disks()]

    def memory(self) -> float | None:
        """See `Futures.memory`."""
        return max(one.memory() or 0.0 for one in self._both)

    def activity(self, refs: Sequence[Ref]) -> Activity:
        """See `Futures.activity`."""
        here, there = _divided(refs)
        activity = self.local.activity(here)
        if self._cluster is None:
            return activity
        other = self._cluster.activity(there)
        own, others = iter(activity.tasks), iter(other.tasks)
        tasks = [next(own) if isinstance(ref, StoredRef) else next(others) for ref in refs]
        return replace(other, tasks=tasks, nodes={**activity.nodes, **other.nodes})

    def recomputed(self) -> list[OutputDigest]:
        """See `Futures.recomputed`."""
        return self._both[-1].recomputed()

    @property
    def _both(self) -> list[Futures]:
        """The threads, and the other cluster if there is one."""
        return [self.local] if self._cluster is None else [self.local, self._cluster]

    def _place(
        self, args: Sequence[Any], node: str | None
    ) -> tuple[Futures, Sequence[Any], str | None]:
        """Return where a call runs, its arguments there, and its node.

        Wait for arguments that tasks of this process still compute. A failed one fails the call.
        """
        if self._cluster is None and self._awaited is not None and self._awaited.done():
            if self._awaited.exception() is None:
                self._cluster = self._awaited.result()
            self._awaited = None
        own = [arg for arg in args if isinstance(arg, StoredRef)]
        if self._cluster is None:
            return self.local, args, node
        for ref in own:
            self.local.wait([ref])
        if any(ref.error is not None for ref in own):
            return self.local, args, None
        moved = [self._copy(arg) if isinstance(arg, StoredRef) else arg for arg in args]
        return self._cluster, moved, None if node == LOCAL_NODE else node

    def _copy(self, ref: StoredRef) -> Ref:
        """Return a ref of the same value in the other cluster."""
        assert self._cluster is not None
        if ref not in self._copies:
            (value,) = self.local.get([ref])
            self._copies[ref] = self._cluster.put(value)
        return self._copies[ref]


def _divided(refs: Sequence[Ref]) -> tuple[list[StoredRef], list[Ref]]:
    """Return the refs of this process, and the others."""
    here = [ref for ref in refs if isinstance(ref, StoredRef)]
    return here, [ref for ref in refs if not isinstance(ref, StoredRef)]
