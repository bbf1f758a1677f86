"""Actor pools of a pipeline; stages with equal resource requests share one.

Where actors hold more of a GPU than they requested, later ones request more. The others end as soon
as they are idle; the last one stays until one with the larger request has finished a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

from dask_exo import events
from dask_exo.cluster.futures import Futures
from dask_exo.cluster.resources import Resources, fits, submit_options
from dask_exo.execution.actor_pool import IDLE, ActorPool, PooledActor
from dask_exo.execution.autoscaler import balanced_sizes, capacity, gpu_fraction
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.snapshot import PipelineView, work_per_byte
from dask_exo.pipeline.streaming.task import StageActor

GPU = "GPU"
RESIZE_INTERVAL = 1.0  # seconds between two decisions on sizes

PoolKey = frozenset[tuple[str, float]]
"""Resources that stages request; actors with one key run the tasks of all of them."""

StageGroup = tuple[int, ...]
"""Stages with equal requests, whose tasks share actors or slots."""


class StageActorPools:
    """Actors of a pipeline, in one pool for each resource request.

    ``codes`` are refs of the `StageCode` of each stage; tasks of ``stateless`` ones need no actors.
    """

    def __init__(
        self,
        futures: Futures,
        stages: Sequence[StageSpec],
        codes: Sequence[Any],
        stateless: Sequence[bool],
        now: Callable[[], float],
    ) -> None:
        self._futures, self._stages, self._codes = futures, stages, codes
        self._stateless, self._now = stateless, now
        self._keys: list[PoolKey] = [frozenset(stage.request.items()) for stage in stages]
        self._pools = {key: ActorPool(dict(key), methodcaller("retire"), now) for key in self._keys}
        self._proven: set[PoolKey] = set()  # an actor with the larger request has finished a task
        self._minimum: dict[PoolKey, int] = {
            key: max(s.least_workers for s, k in zip(stages, self._keys, strict=True) if k == key)
            for key in self._pools
        }
        kinds = list(zip(self._keys, stateless, strict=True))
        self._groups: dict[tuple[PoolKey, bool], StageGroup] = {
            kind: tuple(i for i, other in enumerate(kinds) if other == kind) for kind in kinds
        }
        self._sizes: dict[tuple[PoolKey, bool], int] | None = None
        self._last_resize = now()
        futures.stop_retired()
        self._total = Counter(futures.resources())  # the most since an actor died
        self._prestarted = {
            i: 0 for i in range(len(stages)) if may_prestart(i, self._keys, stateless)
        }

    def start_minimum(self, resources: Resources) -> None:
        """Start the actors that stages want before there is any input."""
        for i, stage in enumerate(self._stages):
            while len(self._pool(i)) < stage.least_workers and not self._stateless[i]:
                self.start_actor(i, resources)

    def prestart(self, resources: Resources, started: Counter[int], sources: Sequence[int]) -> None:
        """Start actors of stages whose resources no other stage can use.

        ``started`` counts the tasks of each stage so far. Once a stage has tasks, these determine
        how many actors it needs; before, it has at most one for each task of the sources.
        """
        source_tasks = sum(started[i] for i in sources)
        for i, count in self._prestarted.items():
            room = min(self._capacity(i, resources), source_tasks)
            if not started[i] and count < room > len(self._pool(i)):
                self._prestarted[i] += 1
                self.start_actor(i, resources)

    def start_actor(self, stage: int, resources: Resources) -> None:
        """Start an actor; idle ones of other pools make room for it."""
        pool = self._pool(stage)
        self._total |= Counter(resources)
        for other in self._pools.values():
            left = Counter[str](resources)
            for rival in self._pools.values():
                left.subtract(rival.resources(len(rival)))
            if not fits(left, pool.request) and other.request.keys() & pool.request.keys():
                other.stop_idle()
        options = submit_options(pool.request)
        pool.add(self._futures.actor(options, StageActor, self._codes[stage]))
        self._replace_outgrown()

    def request(self, stage: int) -> Resources:
        """Return the request of an actor: its stage's, or more GPU if it was seen to hold more."""
        return self._pool(stage).request

    def idle(self, stage: int) -> int:
        """Return the number of idle actors of a stage."""
        return 0 if self._stateless[stage] else len(self._pool(stage).idle)

    def at_target(self, stage: int, resources: Resources) -> bool:
        """Return whether a stage has as many actors as it should or can have."""
        if self._stateless[stage]:
            return False
        target, most = self._target(self._keys[stage]), self._capacity(stage, resources)
        return len(self._pool(stage)) >= (most if target is None else min(most, target))

    def must_wait(self, stage: int, resources: Resources) -> bool:
        """Return whether a stage has actors and gets no more: one will be idle."""
        return bool(self._pool(stage).actors) and self.at_target(stage, resources)

    def can_prestart(self, stage: int) -> bool:
        """Return whether actors of a stage take nothing that other stages can use."""
        return stage in self._prestarted

    def acquire(self, stage: int) -> PooledActor:
        """Return the most recently used idle actor of a stage: the others may expire."""
        actor = self._pool(stage).idle[-1]
        actor.calls += 1
        return actor

    def release(self, stage: int, actor: PooledActor) -> None:
        """Record that an actor has become idle."""
        key = self._keys[stage]
        self._pools[key].release(actor)
        if not actor.outgrown:
            self._proven.add(key)
        self._replace_outgrown()
        self._shrink(key)

    def discard(self, actor: PooledActor) -> None:
        """Remove an actor that has died, and all idle ones if a node has gone.

        Those on that node have died too. Each would fail a call, as if its input were to blame.
        """
        actor.pool.discard(actor)
        actor.handle.stop()
        total = self._futures.resources()
        if not fits(total, self._total):
            self.dismiss_idle()
        self._total = Counter(total)

    def resize(self, view: PipelineView) -> bool:
        """Resize pools by measured rates, and raise requests of GPUs by measured memory.

        Return whether anything has changed.
        """
        if self._raise_fractions(view):
            return True
        if self._now() - self._last_resize < RESIZE_INTERVAL or all(self._stateless):
            return False
        self._last_resize = self._now()
        before = None if self._sizes is None else list(self._sizes.values())
        sizes = pool_sizes(view, list(self._groups.values()), before)
        if sizes is None or sizes == before:
            return False
        self._sizes = dict(zip(self._groups, sizes, strict=True))
        for key in self._pools:
            self._shrink(key)
        return True

    def idle_resources(self) -> Mapping[str, float]:
        """Return the resources that idle actors hold."""
        total = Counter[str]()
        for pool in self._pools.values():
            idle = len(pool.idle)
            if idle:
                total.update(pool.resources(idle))
        return total

    def dismiss_idle(self) -> None:
        """End all idle actors."""
        for pool in self._pools.values():
            pool.stop_idle()

    def dismiss_expired(self) -> None:
        """End actors that have been idle for long."""
        for key, pool in self._pools.items():
            pool.stop_idle(IDLE, keep=self._minimum[key])

    def _pool(self, stage: int) -> ActorPool:
        return self._pools[self._keys[stage]]

    def _capacity(self, stage: int, resources: Resources) -> int:
        return capacity(self.request(stage), self._stages[stage].limit, resources)

    def _target(self, key: PoolKey) -> int | None:
        """Return the number of actors that a pool should have, if it is known."""
        if self._sizes is None or (key, False) not in self._sizes:
            return None
        return max(self._sizes[key, False], self._minimum[key])

    def _shrink(self, key: PoolKey) -> None:
        """End idle actors beyond the size of a pool."""
        target = self._target(key)
        if target is not None:
            self._pools[key].stop_idle(keep=target)

    def _raise_fractions(self, view: PipelineView) -> bool:
        """Raise the GPU requests of actors that hold more; return whether any do."""
        groups = list(self._groups.values())
        changed = False
        for (key, _), group, share in zip(
            self._groups, groups, gpu_fractions(view, groups), strict=True
        ):
            pool = self._pools[key]
            before = pool.request.get(GPU, 0.0)
            if share > before:
                changed = True
                pool.request = {**pool.request, GPU: share}
                self._proven.discard(key)
                largest = max((view.stages[k] for k in group), key=lambda stage: stage.held)
                names = ", ".join(self._stages[k].name for k in group)
                events.emit(events.ShareRaised(names, before, share, largest.held, largest.device))
        self._replace_outgrown()
        return changed

    def _replace_outgrown(self) -> None:
        """End actors with too small a request, where others do some work."""
        for key, pool in self._pools.items():
            outgrown = [actor for actor in pool.actors if actor.request != pool.request]
            others = any(
                other.actors and GPU in other.request
                for other in self._pools.values()
                if other is not pool
            )
            least = 0 if others or key in self._proven else 1
            idle = [actor for actor in outgrown if not actor.calls]
            pool.stop(idle[: max(0, len(outgrown) - least)])


def pool_sizes(
    view: PipelineView, groups: Sequence[StageGroup], before: Sequence[int] | None
) -> list[int] | None:
    """Return how many tasks of each group of stages should run at once, if that is known.

    The P groups have all stages, also those without actors, since they share the resources.
    """
    work = work_per_byte(view)
    if work is None:
        return None
    seconds = [sum(work[k] for k in group if not view.stages[k].finished) for group in groups]
    requests = [view.stages[group[0]].request for group in groups]
    limits = [_limit(view, group) for group in groups]
    return balanced_sizes(view.total, requests, seconds, limits, before)


def _limit(view: PipelineView, group: StageGroup) -> float:
    """Return the limit of tasks at once: the user's, or the capacity of the cluster."""
    limits = [view.stages[k].limit for k in group]
    most = sum(limit if limit is not None else float("inf") for limit in limits)
    return min(most, max(1, capacity(view.stages[group[0]].request, None, view.total)))


def gpu_fractions(view: PipelineView, groups: Sequence[StageGroup]) -> list[float]:
    """Return the fraction of a GPU, or number of GPUs, that an actor of each group requests."""
    stages = [[view.stages[k] for k in group] for group in groups]
    return [
        max(gpu_fraction(stage.request.get(GPU, 0.0), stage.held, stage.device) for stage in group)
        for group in stages
    ]


def may_prestart(i: int, keys: Sequence[PoolKey], stateless: Sequence[bool]) -> bool:
    """Return whether actors of stage ``i`` may start before it has inputs.

    Examples
    --------
    >>> cpu, gpu = frozenset({("CPU", 1.0)}), frozenset({("GPU", 1.0)})
    >>> [may_prestart(i, [cpu, gpu, cpu, gpu], [True, False, False, False]) for i in range(4)]
    [False, True, False, False]
    """
    same = [key == keys[i] and not flag for key, flag in zip(keys, stateless, strict=True)]
    names = {name for name, _ in keys[i]}
    others = {name for key, flag in zip(keys, same, strict=True) if not flag for name, _ in key}
    return same[i] and i == same.index(True) and not names & others
