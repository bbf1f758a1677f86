"""`dask_exo.cluster.futures.Futures` on Ray.

All code runs through three remote functions, which take the function to call as an argument.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import grpc
import ray
import ray.exceptions
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dask_exo.cluster.futures import (
    DiskUsage,
    FetchTimeoutError,
    Node,
    Ref,
    StoreUsage,
    SubmitOptions,
    on_node,
)
from dask_exo.cluster.on_ray.connection import alive, disks, private, used_share
from dask_exo.cluster.on_ray.tasks import activity, attempt, begin, on_disk, repeats
from dask_exo.cluster.on_ray.translation import first_line, lost, sealed, translated
from dask_exo.cluster.resources import fits, resources_of, submit_options
from dask_exo.cluster.task_status import Activity, OutputDigest, TaskStatus, report_output
from dask_exo.errors import ClusterError, ConfigError

ANSWER = 3.0  # seconds that the nodes have to say how full their stores are


@lru_cache(1)
def _node() -> str:
    """Return the id of the node of this worker process."""
    return str(ray.get_runtime_context().get_node_id())


@lru_cache(1)
def _listen() -> None:
    """Let this worker be interrupted: Ray cancels tasks by interrupts.

    A shell lets programs that it starts in the background ignore interrupts, and so do the
    workers of a Ray that was started there.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _call(fn: Callable[..., Any], *args: Any) -> Any:
    _listen()
    with on_node(_node()), attempt(fn.__name__):
        return sealed(fn(*args))


def _split(fn: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
    _listen()
    with on_node(_node()), attempt(fn.__name__):
        return list(map(sealed, fn(*args)))


def _iterate(fn: Callable[..., Iterator[Any]], *args: Any) -> Iterator[Any]:
    _listen()
    begin(fn.__name__)
    for value in fn(*args):
        yield sealed(value)


def _cancel(refs: Sequence[Ref]) -> None:
    """Ask the driver, whose tasks these are, to cancel them.

    A driver that cancels a task by itself dies if the task ends at that moment: its threads race,
    and Ray aborts on "Tried to complete task that was not pending" (2.50 to 2.60). What others ask
    of it, it does in the thread that hears of ended tasks. The refs are held until they have ended,
    or the driver may have dropped the last one when it is asked, and then does nothing.
    """
    for ref in refs:
        with contextlib.suppress(Exception):  # ended or gone: nothing to stop
            ray.cancel(ref, force=False)
    ray.wait(list(refs), num_returns=len(refs), timeout=10, fetch_local=False)


# OutputDigest once: each one is sent to the cluster, and to every worker, when it is first used.
_remote_call = ray.remote(_call)
_remote_split = ray.remote(_split)
_remote_iterate = ray.remote(_iterate)
_remote_cancel = ray.remote(_cancel).options(num_cpus=0, name="cancel")


@lru_cache(1000)
def _named(task: Any, count: int, name: str) -> Any:
    """Return a remote function with ``count`` outputs and a name for the dashboard."""
    return task.options(num_returns=count, name=name)


class RayFutures:
    """`dask_exo.cluster.futures.Futures` on the Ray cluster that this process is connected to."""

    def __init__(self) -> None:
        self.calls = self.objects = 0
        self._checked: list[dict[str, Any]] = []

    @property
    def now(self) -> float:
        """Seconds of this machine's clock."""
        return time.monotonic()

    def submit(
        self,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        needs: SubmitOptions | None = None,
    ) -> Ref:
        """See `Futures.submit`."""
        return self._remote(_remote_call, 1, fn, args, self._options(node, needs))

    def split(
        self,
        count: int,
        fn: Callable[..., Any],
        *args: Any,
        node: str | None = None,
        needs: SubmitOptions | None = None,
    ) -> list[Ref]:
        """See `Futures.split`."""
        options = self._options(node, needs)
        if count == 1:  # Ray would not unpack a list of one
            return [self._remote(_remote_call, 1, _only, (fn, *args), options)]
        refs: list[Ref] = self._remote(_remote_split, count, fn, args, options)
        return refs

    def stream(
        self, count: int, fn: Callable[..., Any], *args: Any, node: str | None = None
    ) -> list[Ref]:
        """See `Futures.stream`."""
        if count == 1:
            return [self._remote(_remote_call, 1, _only, (fn, *args), self._options(node))]
        refs: list[Ref] = self._remote(_remote_iterate, count, fn, args, self._options(node))
        return refs

    def _remote(
        self,
        task: Any,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        options: dict[str, Any],
    ) -> Any:
        self.calls += 1
        self.objects += count
        with translated():
            if options:
                task = task.options(**{"num_returns": count, "name": fn.__name__, **options})
            else:
                task = _named(task, count, fn.__name__)
            return task.remote(fn, *map(sealed, args))

    def _options(self, node: str | None, needs: SubmitOptions | None = None) -> dict[str, Any]:
        """Ray's options for a task."""
        options = dict(needs or {})
        if options and options not in self._checked:
            check_submit_options(options)
            self._checked.append(options)
        if node is not None:
            placed = NodeAffinitySchedulingStrategy(node, soft=True)
            options.setdefault("scheduling_strategy", placed)
        return options

    def worker(self, needs: SubmitOptions) -> RayActor:
        """See `Futures.worker`."""
        return RayActor(needs, self)

    def put(self, value: Any) -> Ref:
        """See `Futures.put`."""
        self.objects += 1
        with translated():
            return ray.put(sealed(value))

    def wait(
        self, refs: Sequence[Ref], timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """See `Futures.wait`. Values stay on their nodes."""
        # Ray's default copies every value to this node
        if not refs:
            return [], []
        count = len(refs) if timeout == 0 else 1
        with translated():
            done, pending = ray.wait(
                list(refs), num_returns=count, timeout=timeout, fetch_local=False
            )
        return done, pending

    def get(self, refs: Sequence[Ref], timeout: float | None = None) -> list[Any]:
        """See `Futures.get`."""
        with lost():
            try:
                values: list[Any] = ray.get(list(refs), timeout=timeout)
            except ray.exceptions.GetTimeoutError as error:
                if isinstance(error, ray.exceptions.RayTaskError):  # that of a task
                    raise
                raise FetchTimeoutError(first_line(error)) from error
        return values

    def cancel(self, refs: Sequence[Ref]) -> None:
        """See `Futures.cancel`."""
        pending = self.wait(refs, timeout=0)[1]
        if pending:
            _remote_cancel.remote(pending)

    def nodes(self) -> list[Node]:
        """See `Futures.nodes`."""
        able = [n for n in alive() if n["Resources"].get("CPU", 0) >= 1]
        if not able:
            raise ClusterError("the Ray cluster has no node with a CPU: start one with --num-cpus")
        places = disks()
        disk = places[0].room if places else None
        return [
            Node(
                n["NodeID"],
                int(n["Resources"]["CPU"]),
                int(n["Resources"].get("object_store_memory", 0)),
                disk,
                dict(n["Resources"]),
            )
            for n in sorted(able, key=lambda n: n["NodeID"])
        ]

    def store(self) -> StoreUsage:
        """See `Futures.store`."""
        state = get_state_from_address(ray.get_runtime_context().gcs_address)
        try:
            stats = get_memory_info_reply(state, timeout_seconds=ANSWER).store_stats
        except (grpc.RpcError, AssertionError) as error:
            raise ClusterError(
                f"the object stores did not say within {ANSWER:.0f} s how full they are: a node "
                f"may have died ({first_line(error)}). Compute again, or look at the nodes with "
                f"`dask exo doctor`"
            ) from error
        return StoreUsage(
            int(stats.object_store_bytes_used),
            int(stats.spilled_bytes_total),
            int(stats.restored_bytes_total),
        )

    def disks(self) -> list[DiskUsage]:
        """See `Futures.disks`; those of a Ray that this process has started."""
        return disks()

    def memory(self) -> float | None:
        """See `Futures.memory`; known only for a private Ray, which runs on this machine."""
        return used_share() if private() else None

    def activity(self, refs: Sequence[Ref]) -> Activity:
        """See `Futures.activity`."""
        spilled = set(on_disk(self.wait(refs, timeout=0)[0]))
        seen = activity([ref.task_id().binary() for ref in refs])
        tasks = [
            TaskStatus("spilled") if ref in spilled else doing
            for ref, doing in zip(refs, seen.tasks, strict=True)
        ]
        return replace(seen, tasks=tasks)

    def repeats(self) -> list[OutputDigest]:
        """See `Futures.repeats`."""
        return repeats()


def check_submit_options(needs: SubmitOptions) -> None:
    """Raise `ConfigError` for options that Ray does not take; warn where no node has the resources.

    An autoscaling cluster may get such a node, so this is not an error.
    """
    try:
        ray.remote(_only).options(**needs)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Ray takes no task with {dict(needs)}: {error}. Give dask.annotate or "
            f"dask_exo.options what Ray takes"
        ) from error
    wanted = resources_of(needs)
    if not any(fits(node["Resources"], wanted) for node in alive()):
        warnings.warn(
            f"no node of the cluster has {wanted}: the tasks that ask for it wait until one joins. "
            f"Start Ray with it, or ask for less",
            stacklevel=2,
        )


def _only(fn: Callable[..., Any], *args: Any) -> Any:
    report_output(fn.__name__)
    (value,) = fn(*args)
    return value


REPLACED = 3  # restarts of an actor, and retries of a call, after a death


class _Process:
    """Actor that calls functions."""

    def __init__(self) -> None:
        self._node = str(ray.get_runtime_context().get_node_id())

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        with on_node(self._node), attempt(fn.__name__):
            return sealed(fn(*args))

    def split(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        with on_node(self._node), attempt(fn.__name__):
            return list(map(sealed, fn(*args)))


_remote_process: Any = ray.remote(_Process)


class CallCounter(Protocol):
    """Counts of calls and of the objects that they return."""

    calls: int
    objects: int


class RayActor:
    """`dask_exo.cluster.futures.Actor` on Ray.

    Parameters
    ----------
    needs : mapping
        Ray's options for an actor.
    counted : CallCounter
    """

    def __init__(self, needs: SubmitOptions, counted: CallCounter) -> None:
        self._counted = counted
        with translated():
            self._actor = _remote_process.options(
                **needs, max_restarts=REPLACED, max_task_retries=REPLACED
            ).remote()

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """See `Actor.submit`."""
        return self._call(self._actor.call, 1, fn, args)

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """See `Actor.split`."""
        refs: list[Ref] = self._call(self._actor.split, count, fn, args)
        return refs

    def stop(self) -> None:
        """See `Actor.stop`."""
        with contextlib.suppress(Exception):  # it has died, or Ray is gone
            ray.kill(self._actor)

    def _call(self, method: Any, count: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._counted.calls += 1
        self._counted.objects += count
        with translated():
            named = method.options(num_returns=count, name=fn.__name__)
            return named.remote(fn, *map(sealed, args))


_BOTH = hasattr(ray.ObjectRefGenerator, "_get_next_ref_n")  # Ray 2.60; before, one at a time
AHEAD = 2 if _BOTH else 1
"""Objects that a generator may be ahead of its reader."""


class PairReader:
    """Reads pairs of objects from a streaming generator.

    Parameters
    ----------
    generator : ray.ObjectRefGenerator
        Stops when `AHEAD` objects have not been taken.
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self._next: list[Any] = []

    @property
    def coming(self) -> Any:
        """Ref that is ready when `about` is, or at the end."""
        if not self._next:
            self._next = self._refs(2 if _BOTH else 1)
        return self._next[-1]

    @property
    def task(self) -> bytes:
        """Id of the task."""
        task: bytes = self.generator._generator_ref.task_id().binary()
        return task

    def about(self) -> Any:
        """Return the metadata of the next value, once `coming` is ready; None at the end."""
        try:
            return self._about()
        except Exception:
            for ref in (*self._next, self.generator._generator_ref):
                with contextlib.suppress(Exception):  # else Ray prints an error that nobody read
                    ray.get(ref, timeout=0)
            raise

    def _about(self) -> Any:
        with contextlib.suppress(ray.exceptions.ObjectRefStreamEndOfStreamError):
            if not _BOTH:
                value = next(self.generator, None)  # only now the generator says something of it
                if value is None:
                    return None
                if value == self.generator._generator_ref:  # the task has failed
                    ray.get(value)
                self._next = [value, *self._refs(1)]
            return ray.get(self._next[-1])
        with contextlib.suppress(ray.exceptions.ObjectRefStreamEndOfStreamError):
            ray.get(self._next[0])  # of a value that comes alone, which is why the task failed
        return None

    def take(self) -> Any:
        """Take the ref of the value that `about` describes; the generator continues."""
        (value, _), self._next = self._next, []
        if _BOTH:
            self.generator._consume_next_ref_n(2)
        else:
            next(self.generator)
        return value

    def _refs(self, count: int) -> list[Any]:
        """Return the next refs without taking them."""
        if _BOTH:
            refs: list[Any] = self.generator._get_next_ref_n(count)
            return refs
        core = self.generator.worker.core_worker
        return [core.peek_object_ref_stream(self.generator._generator_ref)[0]]


def _start(seed: str, fn: Any, *args: Any) -> Iterator[Any]:
    begin("stage", seed)
    for value in fn(*args):
        yield sealed(value)


class _Worker:
    """Actor with an instance of a class."""

    def __init__(self, cls: type, *args: Any) -> None:
        self._instance = cls(*args)

    def run(self, seed: str, *args: Any) -> Iterator[Any]:
        begin("stage", seed)
        for value in self._instance.run(*args):
            yield sealed(value)


_remote_start = ray.remote(_start)
_remote_worker = ray.remote(_Worker)


class RayStreams:
    """See `dask_exo.pipeline.streaming.waist.Streams`."""

    def resources(self) -> dict[str, float]:
        """Return the resources of the whole cluster."""
        found: dict[str, float] = ray.cluster_resources()
        return {name: amount for name, amount in found.items() if not name.startswith("node:")}

    def free(self) -> dict[str, float]:
        """Return the free resources of the whole cluster."""
        found: dict[str, float] = ray.available_resources()
        return found

    def there(self, values: Collection[Any]) -> bool:
        """Return whether all values exist: none is lost, or being recomputed."""
        refs = [value for value in values if isinstance(value, ray.ObjectRef)]
        if not refs:
            return True
        with translated():
            _, lacking = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
        return not lacking

    def nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node."""
        return [dict(node["Resources"]) for node in alive()]

    def put(self, value: Any) -> Any:
        """Store a value, unless it is a ref."""
        if isinstance(value, ray.ObjectRef):
            return value
        with translated():
            return ray.put(sealed(value))

    def task(self, fn: Any, *args: Any, needs: Mapping[str, float], seed: str) -> Any:
        """Start a task."""
        with translated():
            task = _remote_start.options(
                **submit_options(needs),
                num_returns="streaming",
                _generator_backpressure_num_objects=AHEAD,
                name=fn.__name__,
            )
            return PairReader(task.remote(seed, fn, *map(sealed, args)))

    def worker(self, cls: type, *args: Any, needs: Mapping[str, float]) -> Any:
        """Start an actor with an instance of a class."""
        with translated():
            return _remote_worker.options(**submit_options(needs)).remote(cls, *map(sealed, args))

    def start(self, worker: Any, *args: Any, seed: str) -> Any:
        """Call the method ``run`` of an actor."""
        with translated():
            call = worker.run.options(
                num_returns="streaming", _generator_backpressure_num_objects=AHEAD
            )
            return PairReader(call.remote(seed, *map(sealed, args)))

    def stop(self, worker: Any) -> None:
        """Stop an actor at once."""
        with contextlib.suppress(Exception):  # it has died
            ray.kill(worker)

    def dismiss(self, worker: Any) -> None:
        """Stop an actor after its calls.

        One whose last value has come may not have ended yet: if its process were killed, that value
        would be lost.
        """
        with contextlib.suppress(Exception):  # it has died
            worker.__ray_terminate__.remote()

    def wait(self, streams: Collection[Any], timeout: float | None) -> list[Any]:
        """Wait until one of the streams has a value; return those that have."""
        coming = {stream.coming: stream for stream in streams}
        with translated():
            done, pending = ray.wait(list(coming), timeout=timeout, fetch_local=False)
            if pending and done:
                more, _ = ray.wait(pending, num_returns=len(pending), timeout=0, fetch_local=False)
                done += more
        return [coming[ref] for ref in done]

    def read(self, stream: Any) -> Any:
        """Return the metadata of the next value; None at the end."""
        with lost():
            return stream.about()

    def take(self, stream: Any) -> Any:
        """Take the ref of that value."""
        with lost():
            return stream.take()

    def cancel(self, streams: Collection[Any]) -> None:
        """Cancel the tasks of streams."""
        for stream in streams:
            with contextlib.suppress(Exception):  # it has ended
                ray.cancel(stream.generator)

    def activity(self, streams: Collection[Any]) -> Activity:
        """Return the status of the tasks of streams."""
        return activity([stream.task for stream in streams])
