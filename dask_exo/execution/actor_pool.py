"""Actors for tasks with equal resource requests, for as long as there is work for them.

An idle actor still occupies its resources. So some resources are left for tasks that run outside
of actors, and where nothing else can go on, idle actors are stopped.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.futures import Actor, Futures, Node, Ref
from dask_exo.cluster.resources import ResourceRequest, count_fitting, resources_of
from dask_exo.errors import OptionsError
from dask_exo.execution.admission import (
    AHEAD,
    PoolLoad,
    choose_actor,
    fits_with_reserve,
    largest_amounts,
)
from dask_exo.planning.annotations import asking_in
from dask_exo.planning.plan import Bundle, Plan, Stage

IDLE = 30.0  # seconds without a call after which an actor is stopped


@dataclass(slots=True, eq=False)
class PooledActor:
    """An actor, its unfinished calls, and when it last became idle."""

    pool: ResourceRequest
    worker: Actor
    calls: int = 0
    since: float = 0.0


class ActorPools:
    """The actors of one computation, by resource request.

    Parameters
    ----------
    futures : Futures
    plan : Plan
    nodes : sequence of Node

    Raises
    ------
    OptionsError
        No node has the resources that a task requests.
    """

    def __init__(self, futures: Futures, plan: Plan, nodes: Sequence[Node]) -> None:
        self._futures = futures
        self._actors: dict[ResourceRequest, list[PooledActor]] = defaultdict(list)
        self._slots = sum(node.slots for node in nodes)
        self._total = _total(nodes)
        self._left = _work_per_pool(plan)
        self._width = _max_actors(plan, nodes)
        self._reserve = _reserve(plan) if self._left else {}
        self._has_shuffles = bool(plan.stages)

    @property
    def calls(self) -> int:
        """Number of unfinished calls."""
        return sum(actor.calls for actors in self._actors.values() for actor in actors)

    @property
    def slots(self) -> int:
        """Number of tasks that can run at the same time outside of actors."""
        if self._total is None:
            return self._slots
        return max(0, self._slots - math.ceil(round(self._held()["CPU"], 9)))

    def width(self, pool: ResourceRequest) -> int:
        """Return how many actors a pool may have."""
        return self._width[pool]

    def open(self) -> None:
        """Start the first actors of each pool while their inputs are being computed.

        Before a shuffle, start only as many as the user requested: the others would be idle until
        its end.
        """
        for pool, left in self._left.items():
            early = pool.min_actors if self._has_shuffles else max(pool.min_actors, 1)
            for _ in range(min(early, left, self._width[pool])):
                if self._can_start(pool):
                    self._start(pool)

    def acquire(
        self, pool: ResourceRequest, *, may_queue: bool, nothing_else: bool
    ) -> PooledActor | None:
        """Return an actor for one more call, or None if the call has to wait.

        Parameters
        ----------
        pool : ResourceRequest
        may_queue : bool
            Whether the call may wait for another call of the same actor.
        nothing_else : bool
            Whether nothing else runs, so that no resources need to be left for it.
        """
        actors = self._actors[pool]
        idle = [actor for actor in actors if not actor.calls]
        open_ = [actor for actor in actors if 0 < actor.calls < AHEAD]
        load = PoolLoad(len(idle), len(open_), len(actors), self._width[pool])
        can_start = self._can_start(pool, nothing_else=nothing_else)
        choice = choose_actor(load, can_start=can_start, may_queue=may_queue)
        if choice is None:
            return None
        if choice == "new":
            actor = self._start(pool)
        else:
            # the most recently used one first: the others may be stopped
            actor = idle[-1] if idle else min(open_, key=lambda a: a.calls)
        actor.calls += 1
        return actor

    def acquire_or_queue(self, pool: ResourceRequest) -> PooledActor:
        """Return an actor for one more call, which is queued there if the actor is busy.

        Start a new actor if there are resources for it, if need be those of idle actors.
        """
        actors = self._actors[pool]
        if not actors and not self._can_start(pool):
            self.stop_idle()
        busy = len(actors) < self._width[pool] and all(actor.calls for actor in actors)
        if not actors or (busy and self._can_start(pool)):
            actor = self._start(pool)
        else:
            actor = min(actors, key=lambda a: a.calls)
        actor.calls += 1
        return actor

    def release(self, actor: PooledActor, bundles: int) -> None:
        """Record that a call with so many bundles has finished."""
        actor.calls -= 1
        actor.since = self._futures.now
        actors = self._actors[actor.pool]
        actors.remove(actor)
        actors.append(actor)
        self.finish(actor.pool, bundles)

    def finish(self, pool: ResourceRequest, count: int) -> None:
        """Record that ``count`` bundles or shuffles of a pool have finished."""
        self._left[pool] -= count
        if not self._left[pool]:
            self._stop_idle(pool, since=self._futures.now)

    def timeout(self) -> float | None:
        """Stop actors that were idle for too long; return seconds until the next one is."""
        if not self._left:
            return None
        now = self._futures.now
        for pool in self._actors:
            self._stop_idle(pool, since=now - IDLE)
        idle = [a.since for actors in self._actors.values() for a in actors if not a.calls]
        return max(0.0, min(idle) + IDLE - now) if idle else None

    @property
    def blocks_others(self) -> bool:
        """Return whether actors occupy resources that tasks outside of actors need."""
        if self._total is None or not self._actors:
            return False
        held = self._held()
        wanted = {name: amount for name, amount in self._reserve.items() if held[name]}
        return not fits_with_reserve(self._total, held, wanted, {})

    def stop_idle(self) -> bool:
        """Stop all idle actors; return whether there were any."""
        before = sum(map(len, self._actors.values()))
        for pool in self._actors:
            self._stop_idle(pool, since=float("inf"))
        return sum(map(len, self._actors.values())) < before

    def close(self) -> None:
        """Stop all actors, idle or not."""
        for actors in self._actors.values():
            for actor in actors:
                actor.worker.stop()
        self._actors.clear()

    def _held(self) -> Counter[str]:
        """Return the resources that all actors occupy."""
        held = Counter[str]()
        for pool, actors in self._actors.items():
            held.update({name: amount * len(actors) for name, amount in pool.amounts})
        return held

    def _can_start(self, pool: ResourceRequest, *, nothing_else: bool = False) -> bool:
        if self._total is None:
            return True
        reserve = {} if nothing_else else self._reserve
        return fits_with_reserve(self._total, self._held(), dict(pool.amounts), reserve)

    def _start(self, pool: ResourceRequest) -> PooledActor:
        actor = PooledActor(pool, self._futures.worker(pool.needs), since=self._futures.now)
        self._actors[pool].append(actor)
        return actor

    def _stop_idle(self, pool: ResourceRequest, since: float) -> None:
        """Stop actors that have been idle since ``since``, or for longer."""
        gone = [actor for actor in self._actors[pool] if not actor.calls and actor.since <= since]
        self._actors[pool] = [actor for actor in self._actors[pool] if actor not in gone]
        for actor in gone:
            actor.worker.stop()


class MapActors:
    """The actors that run the maps of one shuffle; see `dask_exo.shuffle.spec.Spec`.

    A call counts until it is known to have finished, so that other tasks see which actors are busy.

    Parameters
    ----------
    futures : Futures
    pools : ActorPools
    pool : ResourceRequest
        Resource request of a map.
    """

    def __init__(self, futures: Futures, pools: ActorPools, pool: ResourceRequest) -> None:
        self._futures, self._pools, self._pool = futures, pools, pool
        self._calls: dict[Ref, PooledActor] = {}

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """Call `Actor.split` of the least busy actor; the call ends with its last value."""
        self.release_finished()
        actor = self._pools.acquire_or_queue(self._pool)
        refs = actor.worker.split(count, fn, *args)
        self._calls[refs[-1]] = actor
        return refs

    def release_finished(self) -> None:
        """Release the actors of finished calls."""
        for ref in self._futures.wait(list(self._calls), timeout=0)[0]:
            self._pools.release(self._calls.pop(ref), 0)

    def close(self) -> None:
        """Release all actors at the end of the shuffle."""
        for actor in self._calls.values():
            self._pools.release(actor, 0)
        self._calls.clear()
        self._pools.finish(self._pool, 1)


def _total(nodes: Iterable[Node]) -> Counter[str] | None:
    """Return the resources of all nodes, or None if a node's are not known."""
    total = Counter[str]()
    for node in nodes:
        if node.resources is None:
            return None
        total.update(node.resources)
    return total


def _work_per_pool(plan: Plan) -> Counter[ResourceRequest]:
    """Count the bundles and shuffles of each pool."""
    units: list[Bundle | Stage] = [*plan.bundles, *plan.stages]
    return Counter(pool for unit in units if (pool := unit.options.pool) is not None)


def _max_actors(plan: Plan, nodes: Sequence[Node]) -> dict[ResourceRequest, int]:
    """Return how many actors of each resource request fit on the nodes."""
    resources = [node.resources for node in nodes if node.resources is not None]
    known = len(resources) == len(nodes)
    width: dict[ResourceRequest, int] = {}
    parts = (part for stage in plan.stages if stage.options.pool for part in stage.parts[:1])
    for bundle in (*plan.bundles, *parts):
        asks = bundle.options.asks
        if asks is None or asks in width:
            continue
        count = sum(node.slots for node in nodes)
        if known:
            count = count_fitting(resources, dict(asks.amounts))
        if not count:
            raise OptionsError(_impossible(bundle, asks, nodes))
        width[asks] = count if asks.max_actors is None else min(count, asks.max_actors)
    return width


def _reserve(plan: Plan) -> dict[str, float]:
    """Return the resources to leave for tasks that run outside of actors."""
    outside = [bundle for bundle in plan.bundles if bundle.options.pool is None]
    if not outside and not plan.stages:
        return {}
    return largest_amounts([{"CPU": 1.0}, *(resources_of(b.options.needs) for b in outside)])


def _impossible(bundle: Bundle, asks: ResourceRequest, nodes: Sequence[Node]) -> str:
    names = [wrapper.name for _, node in bundle.nodes for wrapper in asking_in(node)]
    have = [
        ", ".join(f"{(node.resources or {}).get(name, 0):g} {name}" for name, _ in asks.amounts)
        for node in nodes
    ]
    return (
        f"{' > '.join(names)} asks for {asks} on one node, the nodes have {'; '.join(have)}: add "
        f"nodes (exo.num-cpus, exo.num-gpus), or ask for less in dask_exo.options"
    )
