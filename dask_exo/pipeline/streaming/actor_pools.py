"""Workers that keep what the classes of stages have made; those of stages that ask for the same are
one pool.

Where workers hold more of a GPU than they have asked for, those that start from then on ask for
more. The others are let go as soon as they have nothing to do. Where there are none but them, the
last one stays until one that has asked for more has done something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_exo import events
from dask_exo.cluster.resources import Amounts, has
from dask_exo.pipeline.streaming.autoscaler import GPU, Pool, places, resized, shares
from dask_exo.pipeline.streaming.snapshot import PipelineView
from dask_exo.pipeline.streaming.task import StageActor
from dask_exo.pipeline.streaming.types import Stage
from dask_exo.pipeline.streaming.waist import Streams

Kind = frozenset[tuple[str, float]]
"""What a worker has; workers of one kind run the tasks of all stages that ask for it."""


def early(i: int, kinds: Sequence[Kind], alone: Sequence[bool]) -> bool:
    """Whether workers of stage ``i`` may start early: they take nothing that others could use.

    Parameters
    ----------
    i : int
    kinds : sequence of Kind
        (S,) what each stage asks for.
    alone : sequence of bool
        (S,) whether the tasks of a stage have no workers.

    Examples
    --------
    >>> cpu, gpu = frozenset({("CPU", 1.0)}), frozenset({("GPU", 1.0)})
    >>> [early(i, [cpu, gpu, cpu, gpu], [True, False, False, False]) for i in range(4)]
    [False, True, False, False]
    """
    same = [kind == kinds[i] and not one for kind, one in zip(kinds, alone, strict=True)]
    names = {name for name, _ in kinds[i]}
    taken = {name for kind, one in zip(kinds, same, strict=True) if not one for name, _ in kind}
    return same[i] and i == same.index(True) and not names & taken


IDLE = 30.0  # seconds without work after which a worker is let go
LOOK = 1.0  # seconds between two looks at how many there should be


class ActorPools:
    """The workers of a pipeline.

    Parameters
    ----------
    streams : Streams
    stages : sequence of Stage
        (S,)
    codes : sequence
        (S,) refs of their `StageCode`.
    alone : sequence of bool
        (S,) whether the tasks of a stage have no workers.
    now : callable
        Seconds.
    """

    def __init__(
        self,
        streams: Streams,
        stages: Sequence[Stage],
        codes: Sequence[Any],
        alone: Sequence[bool],
        now: Callable[[], float],
    ) -> None:
        self._streams, self._stages, self._codes = streams, stages, codes
        self._alone, self._now = alone, now
        self._kinds: list[Kind] = [frozenset(stage.needs.items()) for stage in stages]
        self._idle: dict[Kind, list[tuple[float, Any]]] = {kind: [] for kind in self._kinds}
        self._asks: dict[Kind, Amounts] = {kind: dict(kind) for kind in self._kinds}
        self._workers: dict[Kind, set[Any]] = {kind: set() for kind in self._kinds}
        self._small: set[Any] = set()  # of those: have asked for less than others do now
        self._tried: set[Kind] = set()  # of which one that is not small has done something
        self._least: Counter[Kind] = Counter()
        asked = list(zip(self._kinds, alone, strict=True))
        self._pools: dict[tuple[Kind, bool], Pool] = {
            one: tuple(i for i, other in enumerate(asked) if other == one) for one in asked
        }
        self._sizes: dict[tuple[Kind, bool], int] | None = None
        self._looked = now()
        for i, stage in enumerate(stages):
            self._least[self._kinds[i]] = max(self._least[self._kinds[i]], stage.least_workers)
        self._early = [i for i in range(len(stages)) if early(i, self._kinds, alone)]
        self._begun: Counter[int] = Counter()

    def open(self, resources: Amounts) -> None:
        """Start the workers that are wanted before there is anything to do."""
        for i, stage in enumerate(self._stages):
            while len(self._workers[self._kinds[i]]) < stage.least_workers and not self._alone[i]:
                self.begin(i, resources)

    def begin_early(
        self, resources: Amounts, started: Counter[int], sources: Sequence[int]
    ) -> None:
        """Start a worker of each stage that is going to need some, where nobody else could use it.

        Parameters
        ----------
        resources : mapping
            Of the cluster.
        started : Counter
            Tasks of each stage so far: once there are any, these say how many it needs.
        sources : sequence of int
            There is no more than one early worker for each of their tasks.
        """
        made = sum(started[i] for i in sources)
        for i in self._early:
            room = min(self._places(i, resources), made)
            if not started[i] and self._begun[i] < room > len(self._workers[self._kinds[i]]):
                self._begun[i] += 1
                self.begin(i, resources)

    def begin(self, stage: int, resources: Amounts) -> None:
        """Start a worker; others that have nothing to do make room for it."""
        kind = self._kinds[stage]
        needs = self._asks[kind]
        for other in self._idle:
            left = Counter[str](resources)
            for one, workers in self._workers.items():
                asks = self._asks[one].items()
                left.subtract({name: len(workers) * need for name, need in asks})
            if not has(left, needs) and self._asks[other].keys() & needs.keys():
                self._dismiss(other, since=float("inf"))
        worker = self._streams.worker(StageActor, self._codes[stage], needs=needs)
        self._workers[kind].add(worker)
        self._idle[kind].append((self._now(), worker))
        self._replace()

    def needs(self, stage: int) -> Amounts:
        """What a worker of a stage takes: what it asks for, or as much of a GPU as was seen."""
        return self._asks[self._kinds[stage]]

    def idle(self, stage: int) -> int:
        """Workers of a stage that have nothing to do."""
        return 0 if self._alone[stage] else len(self._idle[self._kinds[stage]])

    def full(self, stage: int, resources: Amounts) -> bool:
        """Whether there are as many workers of a stage as there shall be, or can be."""
        if self._alone[stage]:
            return False
        kind = self._kinds[stage]
        most = self._places(stage, resources)
        if self._sizes is not None:
            most = min(most, max(self._sizes[kind, False], self._least[kind]))
        return len(self._workers[kind]) >= most

    def busy(self, stage: int, resources: Amounts) -> bool:
        """Whether there are workers of a stage, and shall be no more: one will be free."""
        return bool(self._workers[self._kinds[stage]]) and self.full(stage, resources)

    def early(self, stage: int) -> bool:
        """Whether workers of a stage take nothing that others could use."""
        return stage in self._early

    def take(self, stage: int) -> Any:
        """One that has nothing to do, which there has to be."""
        return self._idle[self._kinds[stage]].pop()[1]

    def back(self, stage: int, worker: Any) -> None:
        """A worker has nothing more to do."""
        # the one that worked last is taken first: the others may go
        kind = self._kinds[stage]
        self._idle[kind].append((self._now(), worker))
        if worker not in self._small:
            self._tried.add(kind)
        self._replace()
        self._fit(kind)

    def lost(self, stage: int, worker: Any) -> None:
        """A worker has died."""
        self._forget(self._kinds[stage], worker)
        self._streams.stop(worker)

    def resize(self, view: PipelineView) -> bool:
        """Have as many as measured rates ask for, with as much of a GPU as they were seen to hold.

        Returns
        -------
        bool
            Whether that has changed anything.
        """
        if self._share_out(view):
            return True
        if self._now() - self._looked < LOOK or all(self._alone):
            return False
        self._looked = self._now()
        before = None if self._sizes is None else list(self._sizes.values())
        sizes = resized(view, list(self._pools.values()), before)
        if sizes is None or sizes == before:
            return False
        self._sizes = dict(zip(self._pools, sizes, strict=True))
        for kind in self._idle:
            self._fit(kind)
        return True

    def held(self) -> Mapping[str, float]:
        """Resources of all that have nothing to do."""
        held = Counter[str]()
        for kind, idle in self._idle.items():
            asks = self._asks[kind].items()
            held.update({name: len(idle) * need for name, need in asks if idle})
        return held

    def release(self) -> None:
        """Let go of all that have nothing to do."""
        for kind in self._idle:
            self._dismiss(kind, since=float("inf"))

    def release_tired(self) -> None:
        """Let go of those that have had nothing to do for long."""
        for kind in self._idle:
            spare = max(0, len(self._workers[kind]) - self._least[kind])
            self._dismiss(kind, since=self._now() - IDLE, most=spare)

    def _places(self, stage: int, resources: Amounts) -> int:
        return places(self.needs(stage), self._stages[stage].limit, resources)

    def _share_out(self, view: PipelineView) -> bool:
        """Take more of a GPU for workers that hold more; return whether any do."""
        pools = list(self._pools.values())
        more = False
        for (kind, _), pool, share in zip(self._pools, pools, shares(view, pools), strict=True):
            asked = self._asks[kind].get(GPU, 0.0)
            if share > asked:
                more = True
                self._asks[kind] = {**self._asks[kind], GPU: share}
                self._small |= self._workers[kind]
                self._tried.discard(kind)
                most = max((view.stages[k] for k in pool), key=lambda one: one.held)
                names = ", ".join(self._stages[k].name for k in pool)
                events.emit(events.ShareRaised(names, asked, share, most.held, most.device))
        self._replace()
        return more

    def _replace(self) -> None:
        """Let go of those that have asked for too little, where others do some work."""
        for kind in self._idle if self._small else ():
            small = self._workers[kind] & self._small
            gone = [one for one in self._idle[kind] if one[1] in small]
            others = any(
                self._workers[one] for one in self._idle if one != kind and GPU in dict(one)
            )
            least = 0 if others or kind in self._tried else 1
            self._let_go(kind, gone[: max(0, len(small) - least)])

    def _fit(self, kind: Kind) -> None:
        """Let go of those that are more than there shall be."""
        if self._sizes is not None and (kind, False) in self._sizes:
            size = max(self._sizes[kind, False], self._least[kind])
            self._dismiss(kind, since=float("inf"), most=max(0, len(self._workers[kind]) - size))

    def _dismiss(self, kind: Kind, since: float, most: int | None = None) -> None:
        """Let go of workers that have had nothing to do since some moment, or for longer."""
        # the first ones have waited longest
        self._let_go(kind, [one for one in self._idle[kind] if one[0] <= since][:most])

    def _let_go(self, kind: Kind, idle: Sequence[tuple[float, Any]]) -> None:
        for one in idle:
            self._idle[kind].remove(one)
            self._forget(kind, one[1])
            self._streams.dismiss(one[1])

    def _forget(self, kind: Kind, worker: Any) -> None:
        self._workers[kind].discard(worker)
        self._small.discard(worker)
