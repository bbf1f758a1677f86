"""Pools of actors that keep instances of users' classes; stages with equal requests share one.

Where actors hold more of a GPU than they requested, later ones request more. The others end as soon
as they are idle; the last one stays until one with the larger request has finished a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_exo import events
from dask_exo.cluster.resources import Resources, fits
from dask_exo.pipeline.streaming.autoscaler import (
    GPU,
    StageGroup,
    capacity,
    gpu_fractions,
    pool_sizes,
)
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.pipeline.streaming.snapshot import PipelineView
from dask_exo.pipeline.streaming.task import StageActor
from dask_exo.pipeline.streaming.waist import Streams

PoolKey = frozenset[tuple[str, float]]
"""Resources of an actor; actors with one key run the tasks of all stages that request them."""


def may_prestart(i: int, keys: Sequence[PoolKey], stateless: Sequence[bool]) -> bool:
    """Return whether actors of a stage may start before it has inputs.

    Parameters
    ----------
    i : int
    keys : sequence of PoolKey
        (S,) Request of each stage.
    stateless : sequence of bool
        (S,) Whether the tasks of a stage need no actors.

    Examples
    --------
    >>> cpu, gpu = frozenset({("CPU", 1.0)}), frozenset({("GPU", 1.0)})
    >>> [may_prestart(i, [cpu, gpu, cpu, gpu], [True, False, False, False]) for i in range(4)]
    [False, True, False, False]
    """
    same = [key == keys[i] and not one for key, one in zip(keys, stateless, strict=True)]
    names = {name for name, _ in keys[i]}
    taken = {name for key, one in zip(keys, same, strict=True) if not one for name, _ in key}
    return same[i] and i == same.index(True) and not names & taken


IDLE = 30.0  # seconds after which an idle actor ends
LOOK = 1.0  # seconds between two decisions on sizes


class StageActorPools:
    """Actors of a pipeline, in one pool for each resource request.

    Parameters
    ----------
    streams : Streams
    stages : sequence of StageSpec
        (S,)
    codes : sequence
        (S,) refs of their `StageCode`.
    stateless : sequence of bool
        (S,) Whether the tasks of a stage need no actors.
    now : callable
        Seconds.
    """

    def __init__(
        self,
        streams: Streams,
        stages: Sequence[StageSpec],
        codes: Sequence[Any],
        stateless: Sequence[bool],
        now: Callable[[], float],
    ) -> None:
        self._streams, self._stages, self._codes = streams, stages, codes
        self._stateless, self._now = stateless, now
        self._keys: list[PoolKey] = [frozenset(stage.needs.items()) for stage in stages]
        self._idle: dict[PoolKey, list[tuple[float, Any]]] = {key: [] for key in self._keys}
        self._requests: dict[PoolKey, Resources] = {key: dict(key) for key in self._keys}
        self._actors: dict[PoolKey, set[Any]] = {key: set() for key in self._keys}
        self._outgrown: set[Any] = set()  # actors whose request is less than that of new ones
        self._proven: set[PoolKey] = (
            set()
        )  # pools in which one with the larger request has finished a task
        self._minimum: Counter[PoolKey] = Counter()
        asked = list(zip(self._keys, stateless, strict=True))
        self._pools: dict[tuple[PoolKey, bool], StageGroup] = {
            one: tuple(i for i, other in enumerate(asked) if other == one) for one in asked
        }
        self._sizes: dict[tuple[PoolKey, bool], int] | None = None
        self._looked = now()
        for i, stage in enumerate(stages):
            self._minimum[self._keys[i]] = max(self._minimum[self._keys[i]], stage.least_workers)
        self._prestartable = [
            i for i in range(len(stages)) if may_prestart(i, self._keys, stateless)
        ]
        self._begun: Counter[int] = Counter()

    def start_minimum(self, resources: Resources) -> None:
        """Start the actors that stages want before there is any input."""
        for i, stage in enumerate(self._stages):
            while len(self._actors[self._keys[i]]) < stage.least_workers and not self._stateless[i]:
                self.start_actor(i, resources)

    def prestart(self, resources: Resources, started: Counter[int], sources: Sequence[int]) -> None:
        """Start actors of stages whose resources no other stage can use.

        Parameters
        ----------
        resources : mapping
            Of the cluster.
        started : Counter
            Tasks of each stage so far: once there are any, they determine how many actors it needs.
        sources : sequence of int
            There is no more than one early actor for each of their tasks.
        """
        made = sum(started[i] for i in sources)
        for i in self._prestartable:
            room = min(self._capacity(i, resources), made)
            if not started[i] and self._begun[i] < room > len(self._actors[self._keys[i]]):
                self._begun[i] += 1
                self.start_actor(i, resources)

    def start_actor(self, stage: int, resources: Resources) -> None:
        """Start an actor; idle ones of other pools make room for it."""
        key = self._keys[stage]
        needs = self._requests[key]
        for other in self._idle:
            left = Counter[str](resources)
            for one, actors in self._actors.items():
                asks = self._requests[one].items()
                left.subtract({name: len(actors) * need for name, need in asks})
            if not fits(left, needs) and self._requests[other].keys() & needs.keys():
                self._dismiss(other, since=float("inf"))
        actor = self._streams.worker(StageActor, self._codes[stage], needs=needs)
        self._actors[key].add(actor)
        self._idle[key].append((self._now(), actor))
        self._replace_outgrown()

    def needs(self, stage: int) -> Resources:
        """Return the request of an actor: its stage's, or more GPU if it was seen to hold more."""
        return self._requests[self._keys[stage]]

    def idle(self, stage: int) -> int:
        """Return the number of idle actors of a stage."""
        return 0 if self._stateless[stage] else len(self._idle[self._keys[stage]])

    def at_target(self, stage: int, resources: Resources) -> bool:
        """Return whether a stage has as many actors as it shall or can have."""
        if self._stateless[stage]:
            return False
        key = self._keys[stage]
        most = self._capacity(stage, resources)
        if self._sizes is not None:
            most = min(most, max(self._sizes[key, False], self._minimum[key]))
        return len(self._actors[key]) >= most

    def must_wait(self, stage: int, resources: Resources) -> bool:
        """Return whether a stage has actors and gets no more: one will be idle."""
        return bool(self._actors[self._keys[stage]]) and self.at_target(stage, resources)

    def can_prestart(self, stage: int) -> bool:
        """Return whether actors of a stage take nothing that other stages can use."""
        return stage in self._prestartable

    def acquire(self, stage: int) -> Any:
        """Return an idle actor of a stage, which has to have one."""
        return self._idle[self._keys[stage]].pop()[1]

    def release(self, stage: int, actor: Any) -> None:
        """Mark an actor as idle."""
        # the one that worked last is taken first: the others may expire
        key = self._keys[stage]
        self._idle[key].append((self._now(), actor))
        if actor not in self._outgrown:
            self._proven.add(key)
        self._replace_outgrown()
        self._shrink(key)

    def discard(self, stage: int, actor: Any) -> None:
        """Remove an actor that has died."""
        self._forget(self._keys[stage], actor)
        self._streams.stop(actor)

    def resize(self, view: PipelineView) -> bool:
        """Resize pools by measured rates, and raise requests of GPUs by measured memory.

        Returns
        -------
        bool
            Whether that has changed anything.
        """
        if self._raise_fractions(view):
            return True
        if self._now() - self._looked < LOOK or all(self._stateless):
            return False
        self._looked = self._now()
        before = None if self._sizes is None else list(self._sizes.values())
        sizes = pool_sizes(view, list(self._pools.values()), before)
        if sizes is None or sizes == before:
            return False
        self._sizes = dict(zip(self._pools, sizes, strict=True))
        for key in self._idle:
            self._shrink(key)
        return True

    def idle_resources(self) -> Mapping[str, float]:
        """Return the resources that idle actors hold."""
        held = Counter[str]()
        for key, idle in self._idle.items():
            asks = self._requests[key].items()
            held.update({name: len(idle) * need for name, need in asks if idle})
        return held

    def dismiss_idle(self) -> None:
        """End all idle actors."""
        for key in self._idle:
            self._dismiss(key, since=float("inf"))

    def dismiss_expired(self) -> None:
        """End actors that have been idle for long."""
        for key in self._idle:
            spare = max(0, len(self._actors[key]) - self._minimum[key])
            self._dismiss(key, since=self._now() - IDLE, most=spare)

    def _capacity(self, stage: int, resources: Resources) -> int:
        return capacity(self.needs(stage), self._stages[stage].limit, resources)

    def _raise_fractions(self, view: PipelineView) -> bool:
        """Raise the GPU requests of actors that hold more; return whether any do."""
        pools = list(self._pools.values())
        more = False
        for (key, _), pool, share in zip(
            self._pools, pools, gpu_fractions(view, pools), strict=True
        ):
            asked = self._requests[key].get(GPU, 0.0)
            if share > asked:
                more = True
                self._requests[key] = {**self._requests[key], GPU: share}
                self._outgrown |= self._actors[key]
                self._proven.discard(key)
                most = max((view.stages[k] for k in pool), key=lambda one: one.held)
                names = ", ".join(self._stages[k].name for k in pool)
                events.emit(events.ShareRaised(names, asked, share, most.held, most.device))
        self._replace_outgrown()
        return more

    def _replace_outgrown(self) -> None:
        """End actors with too small a request, where others do some work."""
        for key in self._idle if self._outgrown else ():
            small = self._actors[key] & self._outgrown
            gone = [one for one in self._idle[key] if one[1] in small]
            others = any(self._actors[one] for one in self._idle if one != key and GPU in dict(one))
            least = 0 if others or key in self._proven else 1
            self._end_actors(key, gone[: max(0, len(small) - least)])

    def _shrink(self, key: PoolKey) -> None:
        """End idle actors beyond the size of a pool."""
        if self._sizes is not None and (key, False) in self._sizes:
            size = max(self._sizes[key, False], self._minimum[key])
            self._dismiss(key, since=float("inf"), most=max(0, len(self._actors[key]) - size))

    def _dismiss(self, key: PoolKey, since: float, most: int | None = None) -> None:
        """End actors that have been idle since some moment, or for longer."""
        # the first ones have waited longest
        self._end_actors(key, [one for one in self._idle[key] if one[0] <= since][:most])

    def _end_actors(self, key: PoolKey, idle: Sequence[tuple[float, Any]]) -> None:
        for one in idle:
            self._idle[key].remove(one)
            self._forget(key, one[1])
            self._streams.dismiss(one[1])

    def _forget(self, key: PoolKey, actor: Any) -> None:
        self._actors[key].discard(actor)
        self._outgrown.discard(actor)
