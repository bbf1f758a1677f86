"""Pools of actors that serve calls with equal resource requests, of graphs and of pipelines.

An idle actor still occupies its resources. So a computation leaves some resources for tasks that
run outside of actors. Where no other task can start, idle actors are stopped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.futures import Futures, Node, Ref
from dask_exo.cluster.resources import (
    ResourceRequest,
    Resources,
    count_fitting,
    fits,
    resources_of,
)
from dask_exo.errors import OptionsError
from dask_exo.planning.annotations import bound_functions
from dask_exo.planning.plan import Bundle, Plan

IDLE = 30.0  # seconds without a call after which an actor is stopped
AHEAD = 2  # calls of an actor at a time: inputs of the second are fetched while the first runs


@dataclass(slots=True, eq=False)
class PooledActor:
    """An actor, the resources that it holds, its unfinished calls, and when it became idle."""

    handle: Any
    pool: ActorPool
    request: Resources
    since: float
    calls: int = 0
    failed: bool = False  # a call raised an exception, which may have left the GPU unusable

    @property
    def outgrown(self) -> bool:
        """True if new actors of its pool request more."""
        return self.request != self.pool.request


class ActorPool:
    """Actors of one resource request, the most recently used one last; ``stop`` takes a handle."""

    def __init__(
        self, request: Resources, stop: Callable[[Any], object], clock: Callable[[], float]
    ) -> None:
        self.request = request
        self._stop, self._clock = stop, clock
        self.actors: list[PooledActor] = []

    def __len__(self) -> int:
        """Return the number of actors."""
        return len(self.actors)

    @property
    def idle(self) -> list[PooledActor]:
        """Actors without a call, the one that has waited longest first."""
        return [actor for actor in self.actors if not actor.calls]

    def resources(self, actors: int) -> dict[str, float]:
        """Return the resources of a number of actors."""
        return {name: amount * actors for name, amount in self.request.items()}

    def add(self, handle: Any) -> PooledActor:
        """Add a new actor, which is idle."""
        actor = PooledActor(handle, self, self.request, self._clock())
        self.actors.append(actor)
        return actor

    def release(self, actor: PooledActor) -> None:
        """Record that a call of an actor has finished."""
        actor.calls -= 1
        actor.since = self._clock()
        self.actors.remove(actor)
        self.actors.append(actor)

    def discard(self, actor: PooledActor) -> None:
        """Forget an actor that has died."""
        self.actors.remove(actor)

    def stop_idle(self, idle_for: float = 0.0, *, keep: int = 0) -> bool:
        """Stop actors that were idle for ``idle_for`` seconds; return whether any were stopped.

        The pool keeps ``keep`` actors, idle or not.
        """
        idle_since = self._clock() - idle_for
        expired = [actor for actor in self.idle if actor.since <= idle_since]
        expired = expired[: max(0, len(self.actors) - keep)]
        self.stop(expired)
        return bool(expired)

    def retire(self) -> None:
        """Let idle actors go that the computation needs no more: another one may use their GPUs."""
        for actor in self.idle:
            if actor.request.get("GPU") and not actor.failed:
                self.actors.remove(actor)
                actor.handle.retire()
        self.stop(self.idle)

    def stop(self, actors: Iterable[PooledActor]) -> None:
        """Stop actors of the pool."""
        for actor in list(actors):
            self.actors.remove(actor)
            self._stop(actor.handle)


class ActorPools:
    """The actors of one computation, by resource request; `OptionsError` if no node has it."""

    def __init__(self, futures: Futures, plan: Plan, nodes: Sequence[Node]) -> None:
        self._futures = futures
        self._slots = sum(node.slots for node in nodes)
        self._total = _total(nodes)
        options = (*(b.options for b in plan.bundles), *(s.options for s in plan.stages))
        # bundles and shuffles of each pool that have not finished
        self._unfinished = Counter(o.request for o in options if o.request is not None and o.pool)
        self._width = _max_actors(plan, nodes)
        self.share: float = 1.0  # of all resources, that the computation may use
        self._reserve = _reserve(plan) if self._unfinished else {}
        self._shuffles = [stage.options.request for stage in plan.stages]
        self._pools = {
            request: ActorPool(
                dict(request.amounts), lambda actor: actor.stop(), lambda: futures.now
            )
            for request in self._unfinished
        }

    @property
    def _actors(self) -> list[PooledActor]:
        return [actor for pool in self._pools.values() for actor in pool.actors]

    @property
    def calls(self) -> int:
        """Number of unfinished calls."""
        return sum(actor.calls for actor in self._actors)

    @property
    def slots(self) -> int:
        """Number of tasks that can run at the same time outside of actors."""
        slots = max(1, int(self.share * self._slots)) if self._slots else 0
        if self._total is None:
            return slots
        return max(0, slots - math.ceil(round(self._occupied()["CPU"], 9)))

    def resize(self, nodes: Sequence[Node]) -> None:
        """Use other nodes from now on."""
        self._slots = sum(node.slots for node in nodes)
        self._total = _total(nodes)
        self._width = {request: max(1, _width(request, nodes)) for request in self._width}

    def width(self, request: ResourceRequest) -> int:
        """Return how many actors a pool may have."""
        return max(1, int(self.share * self._width[request]))

    def open(self) -> None:
        """Start the first actors of each pool while their inputs are being computed.

        Before a shuffle, start only as many as the user requested, and one for its maps: the others
        would be idle until its end. Those with GPUs all start at once, on at most half of the slots
        for tasks.
        """
        for request, unfinished in self._unfinished.items():
            needed = not self._shuffles or request in self._shuffles
            early = max(request.min_actors, int(needed))
            amounts = dict(request.amounts)
            if "GPU" in amounts and not self._shuffles:
                early = max(early, int(self._slots / 2 / max(amounts.get("CPU", 0), 0.5)))
            for _ in range(min(early, unfinished, self.width(request))):
                if self._can_start(request):
                    self._start(request)
        self._futures.stop_retired()

    def acquire(
        self, request: ResourceRequest, *, may_queue: bool, nothing_else: bool
    ) -> PooledActor | None:
        """Return an actor for one more call, or None if the call has to wait.

        Prefer an idle actor, then a new one. With memory for its inputs, a call ``may_queue`` at
        a busy actor. If ``nothing_else`` runs, leave no resources for it.
        """
        pool = self._pools[request]
        idle = pool.idle
        if idle:
            actor = idle[-1]  # the most recently used one: the others may be stopped
        elif self._can_start(request, nothing_else=nothing_else):
            actor = self._start(request)
        else:
            queued = [actor for actor in pool.actors if actor.calls < AHEAD]
            if not queued or not may_queue:
                return None
            actor = queued[0]
        actor.calls += 1
        return actor

    def acquire_or_queue(self, request: ResourceRequest) -> PooledActor:
        """Return an actor for one more call, which is queued there if the actor is busy.

        Start a new actor if there are resources for it, if need be those of idle actors.
        """
        pool = self._pools[request]
        if not pool.actors and not self._can_start(request):
            self.stop_idle()
        if not pool.actors or (not pool.idle and self._can_start(request)):
            actor = self._start(request)
        else:
            actor = min(pool.actors, key=lambda a: a.calls)
        actor.calls += 1
        return actor

    def release(self, request: ResourceRequest, actor: PooledActor, bundles: int) -> None:
        """Record that a call with ``bundles`` bundles has finished."""
        self._pools[request].release(actor)
        self.finish(request, bundles)

    def finish(self, request: ResourceRequest, count: int) -> None:
        """Record that ``count`` bundles or shuffles of a pool have finished."""
        self._unfinished[request] -= count
        if not self._unfinished[request]:
            if self.blocks_others:
                self._pools[request].stop_idle()
            self._pools[request].retire()

    def timeout(self) -> float | None:
        """Stop actors that were idle for too long; return seconds until the next one is."""
        for pool in self._pools.values():
            pool.stop_idle(IDLE)
        idle = [actor.since for actor in self._actors if not actor.calls]
        return max(0.0, min(idle) + IDLE - self._futures.now) if idle else None

    @property
    def blocks_others(self) -> bool:
        """True if actors occupy resources that tasks outside of actors need."""
        if self._total is None:
            return False
        occupied = self._occupied()
        demand = {name: amount for name, amount in self._reserve.items() if occupied[name]}
        return not fits(_minus(self._total, occupied), demand)

    def stop_idle(self) -> bool:
        """Stop all idle actors; return whether there were any."""
        stopped = [pool.stop_idle() for pool in self._pools.values()]
        return any(stopped)

    def close(self) -> None:
        """Stop all actors, idle or not."""
        for pool in self._pools.values():
            pool.stop(pool.actors)

    def _occupied(self) -> Counter[str]:
        """Return the resources that all actors occupy."""
        occupied = Counter[str]()
        for pool in self._pools.values():
            occupied.update(pool.resources(len(pool)))
        return occupied

    def _can_start(self, request: ResourceRequest, *, nothing_else: bool = False) -> bool:
        if len(self._pools[request]) >= self.width(request):
            return False
        if self._total is None:
            return True
        free = _minus(self._total, self._occupied())
        if not nothing_else:
            free = _minus(free, self._reserve)
        return fits(free, dict(request.amounts))

    def _start(self, request: ResourceRequest) -> PooledActor:
        return self._pools[request].add(self._futures.actor(request.needs))


class MapActors:
    """The actors that run the maps of one shuffle; see `dask_exo.shuffle.spec.Spec`.

    A call counts until it is known to have finished, so that other tasks see which actors are busy.
    """

    def __init__(self, futures: Futures, pools: ActorPools, request: ResourceRequest) -> None:
        self._futures, self._pools, self._request = futures, pools, request
        self._calls: dict[Ref, PooledActor] = {}

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """Call `Actor.split` of the least busy actor; the call ends with its last value."""
        self.release_finished()
        actor = self._pools.acquire_or_queue(self._request)
        refs: list[Ref] = actor.handle.split(count, fn, *args)
        self._calls[refs[-1]] = actor
        return refs

    def release_finished(self) -> None:
        """Release the actors of finished calls."""
        for ref in self._futures.wait(list(self._calls), timeout=0)[0]:
            actor = self._calls.pop(ref)
            actor.pool.release(actor)

    def close(self) -> None:
        """Release all actors at the end of the shuffle."""
        for actor in self._calls.values():
            actor.pool.release(actor)
        self._calls.clear()
        self._pools.finish(self._request, 1)


def _minus(resources: Resources, others: Resources) -> dict[str, float]:
    return {name: amount - others.get(name, 0) for name, amount in resources.items()}


def _total(nodes: Sequence[Node]) -> Counter[str] | None:
    """Return the resources of all nodes, or None if a node's are not known."""
    total = Counter[str]()
    for node in nodes:
        if node.resources is None:
            return None
        total.update(node.resources)
    return total


def _max_actors(plan: Plan, nodes: Sequence[Node]) -> dict[ResourceRequest, int]:
    """Return how many actors of each resource request fit on the nodes."""
    width: dict[ResourceRequest, int] = {}
    parts = (part for stage in plan.stages if stage.options.pool for part in stage.parts[:1])
    for bundle in (*plan.bundles, *parts):
        request = bundle.options.request
        if request is None or request in width:
            continue
        width[request] = _width(request, nodes)
        if not width[request]:
            raise OptionsError(_impossible(bundle, request, nodes))
    return width


def _width(request: ResourceRequest, nodes: Sequence[Node]) -> int:
    """Return how many actors of a resource request fit on the nodes, at most those allowed."""
    resources = [node.resources for node in nodes if node.resources is not None]
    count = sum(node.slots for node in nodes)
    if len(resources) == len(nodes):  # all are known
        count = count_fitting(resources, dict(request.amounts))
    return count if request.max_actors is None else min(count, request.max_actors)


def _reserve(plan: Plan) -> dict[str, float]:
    """Return the resources to leave for tasks that run outside of actors."""
    outside = [bundle for bundle in plan.bundles if bundle.options.pool is None]
    if not outside and not plan.stages:
        return {}
    largest = {"CPU": 1.0}
    for bundle in outside:
        for name, amount in resources_of(bundle.options.needs).items():
            largest[name] = max(amount, largest.get(name, 0))
    return largest


def _impossible(bundle: Bundle, request: ResourceRequest, nodes: Sequence[Node]) -> str:
    names = [wrapper.name for _, node in bundle.nodes for wrapper in bound_functions(node)]
    available = [
        ", ".join(f"{(node.resources or {}).get(name, 0):g} {name}" for name, _ in request.amounts)
        for node in nodes
    ]
    return (
        f"{' > '.join(names)} requests {request} on one node, but the nodes have "
        f"{'; '.join(available)}: "
        f"add nodes (exo.num-cpus, exo.num-gpus), or request less in dask_exo.options"
    )
