"""`dask_exo.cluster.futures.Futures` on Ray: all that submits tasks to it.

All code runs through a few remote functions, which take the function to call as an argument.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any
from weakref import WeakSet

import grpc
import ray
import ray.exceptions
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray._private.serialization import _object_ref_deserializer
from ray.experimental import get_local_object_locations
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dask_exo.cluster.futures import (
    DiskUsage,
    FetchTimeoutError,
    Futures,
    Node,
    Produce,
    Ref,
    StoreUsage,
    SubmitOptions,
    on_node,
    result,
    returned,
)
from dask_exo.cluster.object_storage import slow_down_if_throttled
from dask_exo.cluster.on_ray import demand, shares, tasks
from dask_exo.cluster.on_ray.connection import (
    alive,
    check_alive,
    check_disk,
    died,
    private_spill_directory,
)
from dask_exo.cluster.on_ray.node_state import (
    NodeStates,
    Reporter,
    copy_away,
    leaving,
    look,
    own_node,
)
from dask_exo.cluster.on_ray.translation import (
    check_connection,
    first_line,
    lost,
    sealed,
    translated,
)
from dask_exo.cluster.resources import Wants, fits, resources_of
from dask_exo.cluster.spilling import used_share
from dask_exo.cluster.task_status import Activity, OutputDigest, TaskStatus, report_output
from dask_exo.errors import ClusterError

ANSWER = 3.0  # seconds in which the nodes must report how full their stores are
TURN = 0.5  # seconds after which a wait lets an error of a signal's handler through
SPILLED_ABOVE = 0.8  # of a store: below it, Ray spills nothing
KEPT = 30.0  # seconds that a retired actor waits for an equal request
REPLACED = 3  # restarts of an actor, and retries of a call, after a death


_reporter = Reporter()  # of this worker


@lru_cache(1)
def _listen() -> None:
    """Prepare this worker, and let it be interrupted: Ray cancels tasks by interrupts.

    Programs that a shell starts in the background ignore interrupts, and so do the workers of a
    Ray that was started there.
    """
    slow_down_if_throttled()
    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _call(fn: Callable[..., Any], *args: Any) -> Any:
    _listen()
    with on_node(own_node()), _reporter.running(), tasks.attempt(fn.__name__):
        return sealed(fn(*args))


def _split(fn: Callable[..., Sequence[Any]], *args: Any) -> list[Any]:
    _listen()
    with on_node(own_node()), _reporter.running(), tasks.attempt(fn.__name__):
        return list(map(sealed, fn(*args)))


def _iterate(fn: Callable[..., Iterator[Any]], *args: Any, seed: str = "") -> Iterator[Any]:
    _listen()
    tasks.begin(fn.__name__, seed)
    with _reporter.running():
        for value in fn(*args):
            yield sealed(value)


def _only(fn: Callable[..., Any], *args: Any) -> Any:
    report_output(fn.__name__)
    (value,) = fn(*args)
    return value


class GrowingTotal:
    """A sum over nodes that only grows: a node that is lost takes what it has counted with it.

    Examples
    --------
    >>> total = GrowingTotal()
    >>> [total.grown(now) for now in (100, 300, 200, 250)]  # a node that counted 100 is lost
    [100, 300, 300, 350]
    """

    def __init__(self) -> None:
        self._last = self._lost = 0

    def grown(self, now: int) -> int:
        """Return the total, if the sum is ``now``."""
        self._lost += max(0, self._last - now)
        self._last = now
        return now + self._lost


_spilled, _restored = GrowingTotal(), GrowingTotal()
_states = NodeStates()


class _Process:
    """Process of an actor, with an instance of a class if it has one."""

    def __init__(self, cls: type | None, *args: Any) -> None:
        self._instance = () if cls is None else (cls(*args),)

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return _call(fn, *self._instance, *args)

    def split(self, fn: Callable[..., Any], *args: Any) -> list[Any]:
        return _split(fn, *self._instance, *args)

    def iterate(self, fn: Callable[..., Any], *args: Any, seed: str) -> Iterator[Any]:
        yield from _iterate(fn, *self._instance, *args, seed=seed)


def _cancel(refs: Sequence[Ref]) -> None:
    """Ask the driver, whose tasks these are, to cancel them.

    A driver that cancels a task itself dies if the task ends at that moment: its threads race, and
    Ray aborts on "Tried to complete task that was not pending" (2.50 to 2.60). Requests of others
    run in the thread that handles ended tasks. The refs are held until the tasks have ended:
    otherwise the driver may have dropped the last one by then, and would do nothing.
    """
    for ref in refs:
        with contextlib.suppress(Exception):  # ended or gone: nothing to stop
            ray.cancel(ref, force=False)
    ray.wait(list(refs), num_returns=len(refs), timeout=10, fetch_local=False)


# Created once: each one is sent to the cluster, and to every worker, when it is first used.
_remote_call = ray.remote(_call)
_remote_split = ray.remote(_split)
_remote_iterate = ray.remote(_iterate)
_remote_cancel = ray.remote(_cancel).options(num_cpus=0, name="cancel")
_remote_process: Any = ray.remote(_Process)


@lru_cache(1000)
def _named(task: Any, count: int, name: str) -> Any:
    """Return a remote function with ``count`` outputs and a name for the dashboard."""
    return task.options(num_returns=count, name=name)


class RayFutures(Futures):
    """`dask_exo.cluster.futures.Futures` on the Ray cluster that this process is connected to."""

    calls: int
    objects: int

    shares_memory = False

    def __init__(self) -> None:
        self.calls = self.objects = 0
        self._checked_options: list[dict[str, Any]] = []
        self._rescued = set[bytes]()  # refs: Ray has no weak references to them

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
        ray_options = self._options(node, options)
        if produce is result:
            return [self.remote(_remote_call, 1, fn, args, ray_options)]
        if count == 1:  # Ray would not unpack a list of one
            return [self.remote(_remote_call, 1, _only, (fn, *args), ray_options)]
        task = _remote_split if produce is returned else _remote_iterate
        return self.remote(task, count, fn, args, ray_options)

    def generate(
        self,
        fn: Callable[..., Any],
        *args: Any,
        options: SubmitOptions | None = None,
        seed: str = "",
    ) -> tasks.RayOutputStream:
        """See `Futures.generate`."""
        ray_options = {**(options or {}), **tasks.STREAMING}
        generator = self.remote(_remote_iterate, 0, fn, args, ray_options, seed=seed)
        return tasks.RayOutputStream(generator)

    def actor(
        self,
        options: SubmitOptions,
        cls: type | None = None,
        *args: Any,
        node: str | None = None,
        restarts: int | None = None,
    ) -> RayActor:
        """See `Futures.actor`; one with a ``node`` starts there, if it can."""
        actor = _processes.reuse(self, options) if cls is None else None
        if actor is not None:
            return actor
        _processes.stop()
        retries = (0 if cls else REPLACED) if restarts is None else restarts
        more = {**options, "max_restarts": retries, "max_task_retries": retries}
        if node is not None:
            more["scheduling_strategy"] = _near(node)
        with translated():
            process = _remote_process.options(**more).remote(cls, *map(sealed, args))
        return RayActor(self, process, options, reusable=cls is None)

    def stop_retired(self) -> None:
        """See `Futures.stop_retired`."""
        _processes.stop()

    @property
    def elastic(self) -> bool:  # type: ignore[override]
        """Return whether nodes may join or leave: those of a private Ray do not."""
        return private_spill_directory() is None

    def share(self, who: str, weight: float) -> float:
        """See `Futures.share`."""
        if not self.elastic:
            return 1.0
        check_alive()  # the next calls would wait until Ray ends this process
        return shares.share(who, weight)

    def rescue(self, refs: Collection[Ref]) -> None:
        """See `Futures.rescue`; each value is copied once."""
        if ending := leaving() if self.elastic else frozenset():
            new = [ref for ref in refs if ref.binary() not in self._rescued]
            others = [node.id for node in self.nodes()]
            self._rescued.update(ref.binary() for ref in copy_away(new, ending, others))

    def ask(self, who: str, wants: Wants) -> bool:
        """See `Futures.ask`."""
        return self.elastic and demand.ask(who, wants)

    def remote(
        self,
        task: Any,
        count: int,
        fn: Callable[..., Any],
        args: Sequence[Any],
        options: dict[str, Any] | None,
        **more: Any,
    ) -> Any:
        """Call a remote function, or a method of an actor, which calls ``fn``."""
        self.calls += 1
        self.objects += count
        with lost():
            if options is None:
                task = _named(task, count, fn.__name__)
            else:
                task = task.options(**{"num_returns": count, "name": fn.__name__, **options})
            return task.remote(fn, *map(sealed, args), **more)

    def _options(self, node: str | None, options: SubmitOptions | None) -> dict[str, Any] | None:
        """Return Ray's options for a task; None if there are none."""
        if node is None and not options:
            return None
        ray_options = dict(options or {})
        if ray_options and ray_options not in self._checked_options:
            tasks.check_submit_options(ray_options)
            self._checked_options.append(ray_options)
        if node is not None:
            ray_options.setdefault("scheduling_strategy", _near(node))
        return ray_options

    def put(self, value: Any) -> Ref:
        """See `Futures.put`."""
        if isinstance(value, ray.ObjectRef):
            return value
        self.objects += 1
        with translated():
            return ray.put(sealed(value))

    def wait(
        self, refs: Sequence[Ref], timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """See `Futures.wait`. Values stay on their nodes."""
        # Ray's default copies every value to this node
        if not refs:
            time.sleep(timeout or 0)
            return [], []
        refs, count = list(refs), len(refs) if timeout == 0 else 1
        left = math.inf if timeout is None else timeout
        with lost():
            while True:  # Ray would go on with its wait after a signal's handler has raised
                turn, left = min(left, TURN), left - TURN
                done, pending = ray.wait(refs, num_returns=count, timeout=turn, fetch_local=False)
                if done or left <= 0:
                    return done, pending

    def get(self, refs: Sequence[Ref], timeout: float | None = None) -> list[Any]:
        """See `Futures.get`."""
        with lost(lambda: tasks.death([ref.task_id().binary() for ref in refs])):
            try:
                values: list[Any] = ray.get(list(refs), timeout=timeout)
            except ray.exceptions.GetTimeoutError as error:
                if isinstance(error, ray.exceptions.RayTaskError):  # raised by a task
                    raise
                raise FetchTimeoutError(first_line(error)) from error
        return values

    def cancel(self, refs: Sequence[Ref]) -> None:
        """See `Futures.cancel`."""
        if not died() and (pending := self.wait(refs, timeout=0)[1]):
            _remote_cancel.remote(pending)

    def nodes(self) -> list[Node]:
        """See `Futures.nodes`."""
        nodes = [n for n in alive() if n["Resources"].get("CPU", 0) >= 1]
        if self.elastic and (ending := leaving()):
            nodes = [node for node in nodes if node["NodeID"] not in ending]
        if not nodes:
            raise ClusterError("the Ray cluster has no node with a CPU: start one with --num-cpus")
        rooms = {name: disk.room for name, disk in _disks(nodes).items()}
        return [
            Node(
                node["NodeID"],
                int(node["Resources"]["CPU"]),
                int(node["Resources"].get("object_store_memory", 0)),
                rooms.get(node["NodeID"]),
                dict(node["Resources"]),
                "" if private_spill_directory() else node["NodeManagerAddress"],
            )
            for node in sorted(nodes, key=lambda node: node["NodeID"])
        ]

    def store(self) -> StoreUsage:
        """See `Futures.store`."""
        check_connection()
        check_alive()
        state = get_state_from_address(ray.get_runtime_context().gcs_address)
        try:
            stats = get_memory_info_reply(state, timeout_seconds=ANSWER).store_stats
        except (grpc.RpcError, AssertionError) as error:
            raise ClusterError(
                f"the object stores did not report within {ANSWER:.0f} s how full they are: a node "
                f"may have died ({first_line(error)}). Compute again, or look at the nodes with "
                f"`dask exo doctor`"
            ) from error
        if stats.object_store_bytes_used > SPILLED_ABOVE * stats.object_store_bytes_avail:
            check_disk()
        return StoreUsage(
            int(stats.object_store_bytes_used),
            _spilled.grown(int(stats.spilled_bytes_total)),
            _restored.grown(int(stats.restored_bytes_total)),
        )

    def disks(self) -> list[DiskUsage]:
        """See `Futures.disks`."""
        return list(_disks(alive()).values())

    def memory(self) -> float | None:
        """See `Futures.memory`; this machine's, and that of nodes which run calls."""
        nodes = [] if private_spill_directory() else [node["NodeID"] for node in alive()]
        return max([used_share(), *_states.memory(nodes).values()])

    def activity(self, refs: Sequence[Ref]) -> Activity:
        """See `Futures.activity`."""
        finished = self.wait(refs, timeout=0)[0]
        spilled = {r for r, at in get_local_object_locations(finished).items() if at["did_spill"]}
        activity = tasks.activity([ref.task_id().binary() for ref in refs])
        statuses = [
            TaskStatus("spilled") if ref in spilled else status
            for ref, status in zip(refs, activity.tasks, strict=True)
        ]
        return replace(activity, tasks=statuses)

    def resources(self, *, free: bool = False) -> dict[str, float]:
        """See `Futures.resources`."""
        resources = ray.available_resources() if free else ray.cluster_resources()
        return {name: amount for name, amount in resources.items() if not name.startswith("node:")}

    def recomputed(self) -> list[OutputDigest]:
        """See `Futures.recomputed`."""
        return [] if died() else tasks.recomputed()


def _disks(nodes: Sequence[dict[str, Any]]) -> dict[str, DiskUsage]:
    """Return the known spill directories of some nodes, by their ids."""
    spill = private_spill_directory()
    if spill is not None:
        return {node["NodeID"]: look(spill, node["NodeID"]) for node in nodes}
    hosts = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
    _states.ask(hosts)
    return {
        node: DiskUsage(one.spill, one.used, one.room, hosts[node])
        for node, one in _states.read(hosts).items()
        if one.spill
    }


def warn_of_nodes() -> None:
    """Warn of what the nodes of a joined cluster should have been started with."""
    hosts = {n["NodeID"]: n["NodeManagerAddress"] for n in alive() if n["Resources"].get("CPU")}
    _states.ask(hosts)
    states = _states.read(hosts)
    lacking = {hosts[node]: one.lacks for node, one in states.items() if one.lacks}
    if lacking:
        variables = " ".join(dict.fromkeys(chain.from_iterable(lacking.values())))
        warnings.warn(
            f"Ray was started on {', '.join(lacking)} without variables that dask_exo needs to be "
            f"fast and exact: export {variables} before `ray start` (docs/deployment.md)",
            stacklevel=2,
        )


def _near(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=True)


def export_ref(ref: Ref) -> tuple[Any, ...]:
    """Return what another process needs to import a ref; this one must hold it until then.

    Ray would keep the value of a ref that it pickles outside of its own messages forever.
    """
    worker: Any = ray._private.worker.global_worker
    _, owner, status = worker.core_worker.serialize_object_ref(ref)
    return ref.binary(), owner, status


def import_ref(exported: tuple[Any, ...]) -> Ref:
    """Return a ref that another process has exported."""
    name, owner, status = exported
    return _object_ref_deserializer(name, "", owner, status, None)


class RayActor:
    """`dask_exo.cluster.futures.Actor` on Ray; ``reusable``: it has no instance of a class."""

    process: Any
    options: dict[str, Any]

    def __init__(
        self, futures: RayFutures, process: Any, options: SubmitOptions, *, reusable: bool = True
    ) -> None:
        self._futures, self.process, self._reusable = futures, process, reusable
        self.options, self._session = dict(options), _session()
        _processes.running.add(self)

    def serves(self, options: SubmitOptions) -> bool:
        """Return whether other computations with these options may call the same process."""
        known = self._reusable and self._session == _session()
        return known and self.options == options

    def submit(self, fn: Callable[..., Any], *args: Any) -> Ref:
        """See `Actor.submit`."""
        return self._futures.remote(self.process.call, 1, fn, args, {})

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """See `Actor.split`."""
        if count == 1:  # Ray would not unpack a list of one
            return [self.submit(_only, fn, *args)]
        return self._futures.remote(self.process.split, count, fn, args, {})

    def generate(self, fn: Callable[..., Any], *args: Any, seed: str = "") -> tasks.RayOutputStream:
        """See `Actor.generate`."""
        call, options = self.process.iterate, tasks.STREAMING
        return tasks.RayOutputStream(self._futures.remote(call, 0, fn, args, options, seed=seed))

    def stop(self) -> None:
        """See `Actor.stop`; the process stays if another computation shares it."""
        _processes.release(self)

    def retire(self) -> None:
        """See `Actor.retire`.

        An actor whose last value has been taken may not have ended its call yet: if its process
        were killed, that value would be lost.
        """
        if self._reusable:  # an idle one; `__ray_terminate__` would restart it
            if not _processes.keep(self, self.process):
                self.stop()
            return
        _processes.running.discard(self)
        with contextlib.suppress(Exception):  # it has died
            self.process.__ray_terminate__.remote()


def _kill(process: Any) -> None:
    with contextlib.suppress(Exception):  # it has died, or Ray is gone
        ray.kill(process)


class _Processes:
    """Processes of actors, which serve equal requests of several computations.

    Ray starts a new process for each actor, which takes seconds. So retired ones wait for the next
    computation. Those with GPUs are shared with the ones of others that run, if no GPU is left:
    values that they keep on their GPUs are those that the others read. ``running`` are all actors.
    """

    def __init__(self) -> None:
        self.running = WeakSet[RayActor]()
        self._lock = threading.Lock()
        self._kept: list[tuple[Any, dict[str, Any], Any]] = []  # with options and _session()
        self._timer = threading.Timer(0, self.stop)

    def users(self, process: Any) -> int:
        """Return the number of actors with a process."""
        return sum(actor.process is process for actor in list(self.running))

    def reuse(self, futures: RayFutures, options: SubmitOptions) -> RayActor | None:
        """Return an actor with the process of a retired or shared one with equal options."""
        with self._lock:  # until it is among those that run: the process must not be stopped
            for entry in self._kept:
                if entry[1:] == (options, _session()):
                    self._kept.remove(entry)
                    return RayActor(futures, entry[0], options)
            if not options.get("num_gpus") or self._fits(options):
                return None
            equal = [actor.process for actor in list(self.running) if actor.serves(options)]
            return RayActor(futures, min(equal, key=self.users), options) if equal else None

    def release(self, actor: RayActor) -> None:
        """Stop the process of an actor, unless another one has it, too."""
        with self._lock:
            self.running.discard(actor)
            if not self.users(actor.process):
                _kill(actor.process)

    def keep(self, actor: RayActor, process: Any) -> bool:
        """Keep the process of an actor, unless another actor or all tasks may wait for it."""
        with self._lock:
            if self.users(process) == 1:
                if died() or not self._fits({"num_cpus": 0}):
                    return False
                self._kept.append((process, actor.options, _session()))
                self._timer.cancel()
                self._timer = threading.Timer(KEPT, self.stop)
                self._timer.daemon = True
                self._timer.start()
            self.running.discard(actor)
        return True

    def _fits(self, options: SubmitOptions) -> bool:
        """Return whether the cluster has room for all processes, one more, and a task."""
        needed = Counter[str](CPU=1)
        of_running = {id(actor.process): actor.options for actor in list(self.running)}
        for each in (*of_running.values(), *(entry[1] for entry in self._kept), options):
            needed.update(resources_of(each))
        return fits(ray.cluster_resources(), needed)

    def stop(self) -> None:
        """Stop all that are kept."""
        with self._lock:
            kept = self._kept.copy()
            self._kept.clear()
        for process, _, session in kept:
            if ray.is_initialized() and session == _session():  # Ray would start a new cluster
                _kill(process)


_processes = _Processes()


def _session() -> Any:
    """Return what tells a connection to Ray from another one."""
    return ray._private.worker.global_worker.current_cluster_and_job
