"""The waist on threads of this process: values by reference, and spilled beyond a memory limit.

No process is started, nothing is copied into a store, and a value that fits in memory is never
serialized. Tasks share Python's interpreter lock, so code that holds it runs on one core.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from typing import Any

from dask_exo.cluster.futures import (
    DiskUsage,
    FetchTimeoutError,
    Futures,
    Node,
    Produce,
    StoreUsage,
    SubmitOptions,
    on_node,
    result,
    returned,
)
from dask_exo.cluster.ownership import as_stored
from dask_exo.cluster.resources import Resources, fits, resources_of
from dask_exo.cluster.spilling import SpillingStore, StoredRef, used_share
from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.errors import WorkerLostError

LOCAL_NODE = "local"  # id of this process as a node
THREADS = 10_000  # at most; tasks that wait for others do not count as running

_actors = count()


@dataclass(slots=True, eq=False, repr=False)
class LocalTask:
    """A call on its way: it waits for ``missing`` arguments, then for its resources."""

    produce: Produce
    fn: Callable[..., Any]
    args: Sequence[Any]
    refs: Sequence[StoredRef]
    needs: Resources
    missing: int = 0
    state: str = "pending"


_task: ContextVar[LocalTask | None] = ContextVar("task", default=None)


class LocalFutures(Futures):
    """Run tasks on threads of this process; implements `Futures`.

    Parameters
    ----------
    slots : int
        Tasks that run at the same time.
    memory : int
        Bytes of values that stay in memory; the others are spilled to files.
    spill_directory : str, optional
        By default one for temporary files.
    """

    calls: int
    objects: int

    shares_memory = True

    def __init__(self, slots: int, memory: int, spill_directory: str | None = None) -> None:
        self.calls = self.objects = 0
        self._total = {"CPU": float(slots)}
        self._node = Node(LOCAL_NODE, slots, memory, None, self._total)
        self._store = SpillingStore(memory, spill_directory)
        self._free: dict[str, float] = dict(self._total)
        self._changed = threading.Condition()
        self._ready: dict[frozenset[tuple[str, float]], deque[LocalTask]] = {}
        self._tasks: dict[int, LocalTask] = {}  # unfinished ones, by the number of a ref
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="dask_exo-local")

    def generate(
        self,
        fn: Callable[..., Any],
        *args: Any,
        options: SubmitOptions | None = None,
        seed: str = "",  # noqa: ARG002  tasks of one process share its generators
    ) -> LocalStream:
        """See `Futures.generate`."""
        return LocalStream(self, partial(self.split, options=options), fn, args)

    def actor(self, options: SubmitOptions, cls: type | None = None, *args: Any) -> LocalActor:
        """See `Futures.actor`; an actor is a thread at a time, and never dies."""
        return LocalActor(self, resources_of(options), cls, args)

    def put(self, value: Any) -> StoredRef:
        """See `Futures.put`."""
        if isinstance(value, StoredRef):
            return value
        self.objects += 1
        ref = StoredRef()
        self._store.put(ref, value)
        ref.done = True
        return ref

    def wait(
        self, refs: Sequence[StoredRef], timeout: float | None = None
    ) -> tuple[list[StoredRef], list[StoredRef]]:
        """See `Futures.wait`."""
        if not refs:
            time.sleep(timeout or 0)
            return [], []
        self._wait(lambda: any(ref.done for ref in refs), timeout)
        done = [ref for ref in refs if ref.done]
        finished = set(done)
        return done, [ref for ref in refs if ref not in finished]

    def get(self, refs: Sequence[StoredRef], timeout: float | None = None) -> list[Any]:
        """See `Futures.get`."""
        if not self._wait(lambda: all(ref.done for ref in refs), timeout):
            raise FetchTimeoutError(f"values did not arrive within {timeout} s")
        return [self._value(ref) for ref in refs]

    def cancel(self, refs: Sequence[StoredRef]) -> None:
        """Drop tasks that have not started; the others run to their end."""
        for task in {id(t): t for r in refs if (t := self._tasks.get(r.number))}.values():
            with self._changed:
                if task.state != "pending":
                    continue
                task.state = "cancelled"
            self._end(task, WorkerLostError("the task was cancelled before it ran: compute again"))

    def nodes(self) -> list[Node]:
        """Return this process as the only node."""
        return [self._node]

    def resources(self, *, free: bool = False) -> dict[str, float]:
        """See `Futures.resources`."""
        amounts = self._free if free else self._total
        return {name: amounts[name] for name in self._total}

    @property
    def busy(self) -> float:
        """Slots of the tasks that run now."""
        return self._total["CPU"] - self._free["CPU"]

    def store(self) -> StoreUsage:
        """See `Futures.store`."""
        return self._store.usage()

    def disks(self) -> list[DiskUsage]:
        """See `Futures.disks`."""
        return self._store.disks()

    def memory(self) -> float | None:
        """See `Futures.memory`."""
        return used_share()

    def activity(self, refs: Sequence[StoredRef]) -> Activity:
        """See `Futures.activity`."""
        return Activity([self._status(ref) for ref in refs], 0, {LOCAL_NODE: self._total})

    # -- tasks

    def _status(self, ref: StoredRef) -> TaskStatus:
        task = self._tasks.get(ref.number)
        if task is None:
            return TaskStatus("finished")
        return TaskStatus(
            "running" if task.state == "running" else "pending", task.needs, LOCAL_NODE
        )

    def _value(self, ref: StoredRef) -> Any:
        if ref.error is not None:
            raise ref.error
        return self._store.get(ref)

    def call(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        *,
        node: str | None = None,  # noqa: ARG002  there is one
        options: SubmitOptions | None = None,
    ) -> list[StoredRef]:
        """See `Futures.call`."""
        return self.start(produce, count, fn, args, resources_of(options or {}))

    def start(
        self,
        produce: Produce,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        needs: Resources,
    ) -> list[StoredRef]:
        """Start a call that needs some resources; return the refs of its values."""
        refs = [StoredRef() for _ in range(count)]
        task = LocalTask(produce, fn, args, refs, needs)
        with self._changed:
            self.calls += 1
            self.objects += count
            for ref in refs:
                self._tasks[ref.number] = task
            inputs = {arg.number: arg for arg in args if isinstance(arg, StoredRef)}
            for arg in inputs.values():
                if not arg.done:
                    arg.dependents.append(task)
                    task.missing += 1
            if not task.missing:
                self._enqueue(task)
        self._dispatch()
        return refs

    def _enqueue(self, task: LocalTask) -> None:
        key = frozenset(task.needs.items())
        self._ready.setdefault(key, deque()).append(task)

    def _dispatch(self) -> None:
        """Start the ready tasks for which there are free resources."""
        with self._changed:
            for waiting in self._ready.values():
                while waiting and fits(self._free, waiting[0].needs):
                    task = waiting.popleft()
                    if task.state == "pending":
                        task.state = "running"
                        self._acquire(task.needs)
                        self._pool.submit(self._execute, task)

    def _execute(self, task: LocalTask) -> None:
        """Run a task in its thread."""
        token, error = _task.set(task), None
        try:
            with on_node(LOCAL_NODE, shared=True):
                self._call(task)
        except Exception as caught:  # noqa: BLE001  raised where the value is read
            error = caught
        except BaseException as caught:  # noqa: BLE001
            error = WorkerLostError(
                f"a task raised {type(caught).__name__}: {caught}. Raise an Exception instead"
            )
        _task.reset(token)
        self._release(task.needs)
        self._end(task, error)

    def _call(self, task: LocalTask) -> None:
        args = [as_stored(self._value(a)) if isinstance(a, StoredRef) else a for a in task.args]
        task.args = ()  # an argument may be used up before the last value exists
        values = task.produce(len(task.refs), task.fn, args)
        del args
        for ref, value in zip(task.refs, values, strict=True):
            self._store.put(ref, value)
            self._finish(ref)

    def _end(self, task: LocalTask, error: BaseException | None) -> None:
        """Finish the values that a task has not made; start others in its place."""
        for ref in task.refs:
            if not ref.done:
                ref.error = error
                self._finish(ref)
        task.args = ()
        self._dispatch()

    def _finish(self, ref: StoredRef) -> None:
        with self._changed:
            ref.done = True
            del self._tasks[ref.number]
            for task in ref.dependents:
                task.missing -= 1
                if not task.missing:
                    self._enqueue(task)
            dependents, ref.dependents = ref.dependents, []
            self._changed.notify_all()
        if dependents:
            self._dispatch()

    def _acquire(self, needs: Resources) -> None:
        with self._changed:
            for name, amount in needs.items():
                if name in self._free:  # not the turn of an actor that was stopped meanwhile
                    self._free[name] -= amount

    def _release(self, needs: Resources) -> None:
        self._acquire({name: -amount for name, amount in needs.items()})

    def _wait(self, met: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition; a task that waits releases its resources meanwhile."""
        if met() or timeout == 0:
            return met()
        task = _task.get()
        with self._changed:
            if task is not None:
                self._release(task.needs)
                self._dispatch()
            try:
                return self._changed.wait_for(met, timeout)
            finally:
                if task is not None:
                    self._acquire(task.needs)

    # -- actors

    def open(self, actor: str, needs: Resources) -> None:
        """Let an actor, which holds resources from now on, run its calls."""
        with self._changed:
            self._acquire(needs)
            self._free[actor] = 1.0
        self._dispatch()

    def close(self, actor: str, needs: Resources) -> None:
        """Release what an actor holds; drop its calls that have not started."""
        with self._changed:
            self._release(needs)
            del self._free[actor]
            waiting = self._ready.pop(frozenset({(actor, 1)}), ())
        self.cancel([ref for task in waiting for ref in task.refs])
        self._dispatch()


class LocalStream:
    """A generator task whose steps are tasks; see `dask_exo.cluster.futures.OutputStream`."""

    next: StoredRef

    def __init__(
        self,
        futures: LocalFutures,
        split: Callable[..., list[StoredRef]],
        fn: Callable[..., Any],
        args: Sequence[Any],
    ) -> None:
        self._futures, self._split = futures, split
        self._steps: Iterator[Any] = iter(())
        self._cancelled = False
        self._value, self.next = split(2, self._first, fn, *args)

    def read(self) -> Any:
        """Return the metadata of the next value; None at the end."""
        return self._futures.get([self.next])[0]

    def take(self) -> StoredRef:
        """Return a ref of that value, and start to compute the next one."""
        ref = self._value
        self._value, self.next = self._split(2, self._advance)
        return ref

    def cancel(self) -> None:
        """Do no more steps."""
        self._cancelled = True
        self._futures.cancel([self.next])

    def _first(self, fn: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
        self._steps = iter(fn(*args))
        return self._advance()

    def _advance(self) -> tuple[Any, Any]:
        if self._cancelled:
            return None, None
        return next(self._steps, None), next(self._steps, None)


class LocalActor:
    """An actor of this process, one call at a time; see `dask_exo.cluster.futures.Actor`."""

    def __init__(
        self, futures: LocalFutures, needs: Resources, cls: type | None, args: Sequence[Any]
    ) -> None:
        self._futures, self._needs = futures, needs
        self._name = f"actor {next(_actors)}"
        self._turn = {self._name: 1}
        self._instance: tuple[Any, ...] = ()
        self._open = self._stopped = False
        (self._created,) = futures.start(result, 1, self._create, (cls, *args), needs)

    def _create(self, cls: type | None, *args: Any) -> None:
        try:
            self._instance = () if cls is None else (cls(*args),)
        finally:
            if not self._stopped:
                self._open = True
                self._futures.open(self._name, self._needs)

    def _call(self, _created: Any, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*self._instance, *args)

    def _start(self, produce: Produce, count: int, *args: Any) -> list[StoredRef]:
        return self._futures.start(produce, count, self._call, (self._created, *args), self._turn)

    def submit(self, fn: Callable[..., Any], *args: Any) -> StoredRef:
        """See `Actor.submit`."""
        return self._start(result, 1, fn, *args)[0]

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[StoredRef]:
        """See `Actor.split`."""
        return self._start(returned, count, fn, *args)

    def generate(self, fn: Callable[..., Any], *args: Any, seed: str = "") -> LocalStream:  # noqa: ARG002
        """See `Actor.generate`."""

        def split(count: int, step: Callable[..., Any], *inputs: Any) -> list[StoredRef]:
            return self._futures.start(returned, count, step, inputs, self._turn)

        return LocalStream(self._futures, split, self._generate, (self._created, fn, *args))

    def _generate(self, _created: Any, fn: Callable[..., Any], *args: Any) -> Iterator[Any]:
        return iter(fn(*self._instance, *args))

    def stop(self) -> None:
        """Stop the actor and its calls that have not started."""
        if self._stopped:
            return
        self._stopped = True
        self._futures.cancel([self._created])
        if self._open:
            self._futures.close(self._name, self._needs)

    def retire(self) -> None:
        """Stop the actor after the calls that are ready."""
        self._start(result, 1, lambda *_: self.stop())


local_futures = lru_cache(4)(LocalFutures)
"""Function that returns the local engine with some settings."""
