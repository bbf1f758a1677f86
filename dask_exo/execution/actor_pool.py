"""Workers that are kept for tasks that ask for the same, while there is work for them.

They hold what they have also while they wait. So some of it is left for the tasks that run
elsewhere, and where nothing else can go on, those that wait are let go.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.futures import Futures, Node, Ref, Worker
from dask_exo.cluster.resources import amounts_of, side_by_side
from dask_exo.errors import OptionsError
from dask_exo.execution.admission import AHEAD, Crew, fits, lend, most_of
from dask_exo.execution.requests import Asks
from dask_exo.planning.annotations import asking_in
from dask_exo.planning.plan import Bundle, Plan

IDLE = 30.0  # seconds without a call after which a worker is let go


@dataclass(slots=True, eq=False)
class Lent:
    """A worker, its calls that have not ended, and since when it has what it has."""

    pool: Asks
    worker: Worker
    calls: int = 0
    since: float = 0.0


class Pools:
    """The workers of one computation.

    Parameters
    ----------
    futures : Futures
    plan : Plan
    nodes : sequence of Node

    Raises
    ------
    OptionsError
        No node has what a task asks for.
    """

    def __init__(self, futures: Futures, plan: Plan, nodes: Sequence[Node]) -> None:
        self._futures = futures
        self._left: Counter[Asks] = Counter(
            pool for bundle in plan.bundles if (pool := bundle.options.pool) is not None
        )
        self._lent: dict[Asks, list[Lent]] = defaultdict(list)
        self._width: dict[Asks, int] = {}
        self._slots = sum(node.slots for node in nodes)
        known = [node.resources for node in nodes if node.resources is not None]
        self._total: Counter[str] | None = None
        if len(known) == len(nodes):
            self._total = Counter()
            for one in known:
                self._total.update(one)
        self._left.update(pool for stage in plan.stages if (pool := stage.options.pool) is not None)
        parts = (part for stage in plan.stages if stage.options.pool for part in stage.parts[:1])
        for bundle in (*plan.bundles, *parts):
            asks = bundle.options.asks
            if asks is not None and asks not in self._width:
                width = self._slots
                if self._total is not None:
                    width = side_by_side(known, dict(asks.amounts))
                if not width:
                    raise OptionsError(_impossible(bundle, asks, nodes))
                self._width[asks] = width if asks.most is None else min(width, asks.most)
        self._late = bool(plan.stages)
        self._reserve: dict[str, float] = {}
        plain = [bundle for bundle in plan.bundles if bundle.options.pool is None]
        if self._left and (plain or plan.stages):
            self._reserve = most_of([{"CPU": 1.0}, *(amounts_of(b.options.needs) for b in plain)])

    @property
    def calls(self) -> int:
        """Calls that have not ended."""
        return sum(one.calls for lent in self._lent.values() for one in lent)

    @property
    def slots(self) -> int:
        """How many tasks run side by side beside the workers."""
        if self._total is None:
            return self._slots
        return max(0, self._slots - int(self._held()["CPU"] + 1 - 1e-9))

    def width(self, pool: Asks) -> int:
        """How many workers there may be."""
        return self._width[pool]

    def open(self) -> None:
        """Start the workers that are wanted from the beginning, while their inputs are made.

        Before a shuffle only those that were asked for: the others would wait for all of it.
        """
        for pool, left in self._left.items():
            early = pool.least if self._late else max(pool.least, 1)
            for _ in range(min(early, left, self._width[pool])):
                if self._room(pool):
                    self._start(pool)

    def lend(self, pool: Asks, *, ahead: bool, alone: bool) -> Lent | None:
        """A worker for one more call, if there is one for it now.

        Parameters
        ----------
        pool : Asks
        ahead : bool
            Whether the call may wait for another one of the same worker.
        alone : bool
            Whether nothing else runs, for which something had to be left.
        """
        lent = self._lent[pool]
        idle = [one for one in lent if not one.calls]
        waiting = [one for one in lent if 0 < one.calls < AHEAD]
        crew = Crew(len(idle), len(waiting), len(lent), self._width[pool])
        choice = lend(crew, room=self._room(pool, alone=alone), ahead=ahead)
        if choice is None:
            return None
        if choice == "new":
            one = self._start(pool)
        else:
            # the one that worked last is taken first: the others may go
            one = idle[-1] if idle else min(waiting, key=lambda w: w.calls)
        one.calls += 1
        return one

    def lease(self, pool: Asks) -> Lent:
        """A worker for one more call, which waits there if it has to.

        It gets one of its own if there is room, be it after others that have nothing to do are
        gone.
        """
        lent = self._lent[pool]
        if not lent and not self._room(pool):
            self.release()
        busy = len(lent) < self._width[pool] and all(one.calls for one in lent)
        if not lent or (busy and self._room(pool)):
            one = self._start(pool)
        else:
            one = min(lent, key=lambda one: one.calls)
        one.calls += 1
        return one

    def back(self, one: Lent, bundles: int) -> None:
        """Take note that a call of so many bundles has ended."""
        one.calls -= 1
        one.since = self._futures.now
        lent = self._lent[one.pool]
        lent.remove(one)
        lent.append(one)
        self.spend(one.pool, bundles)

    def spend(self, pool: Asks, count: int) -> None:
        """Take note that so many bundles, or shuffles, that ask for the same have ended."""
        self._left[pool] -= count
        if not self._left[pool]:
            self._dismiss(pool, since=self._futures.now)

    def timeout(self) -> float | None:
        """Seconds until workers have waited for too long; those that have are let go now."""
        if not self._left:
            return None
        now = self._futures.now
        for pool in self._lent:
            self._dismiss(pool, since=now - IDLE)
        idle = [one.since for lent in self._lent.values() for one in lent if not one.calls]
        return max(0.0, min(idle) + IDLE - now) if idle else None

    @property
    def lacking(self) -> bool:
        """Whether workers hold what tasks need that run elsewhere."""
        if self._total is None or not self._lent:
            return False
        held = self._held()
        wanted = {name: amount for name, amount in self._reserve.items() if held[name]}
        return not fits(self._total, held, wanted, {})

    def release(self) -> bool:
        """Let go of all workers that have nothing to do; return whether there were any."""
        before = sum(map(len, self._lent.values()))
        for pool in self._lent:
            self._dismiss(pool, since=float("inf"))
        return sum(map(len, self._lent.values())) < before

    def close(self) -> None:
        """Let go of all workers, whatever they do."""
        for lent in self._lent.values():
            for one in lent:
                one.worker.stop()
        self._lent.clear()

    def _held(self) -> Counter[str]:
        held = Counter[str]()
        for pool, lent in self._lent.items():
            held.update({name: amount * len(lent) for name, amount in pool.amounts})
        return held

    def _room(self, pool: Asks, *, alone: bool = False) -> bool:
        if self._total is None:
            return True
        reserve = {} if alone else self._reserve
        return fits(self._total, self._held(), dict(pool.amounts), reserve)

    def _start(self, pool: Asks) -> Lent:
        one = Lent(pool, self._futures.worker(pool.needs), since=self._futures.now)
        self._lent[pool].append(one)
        return one

    def _dismiss(self, pool: Asks, since: float) -> None:
        """Let go of workers that have had nothing to do since some moment, or for longer."""
        gone = [one for one in self._lent[pool] if not one.calls and one.since <= since]
        self._lent[pool] = [one for one in self._lent[pool] if one not in gone]
        for one in gone:
            one.worker.stop()


class Mappers:
    """The workers of one shuffle's maps; see `dask_exo.shuffle.spec.Spec`.

    A call of it is there until it is known to have ended, so that other tasks see who is busy.

    Parameters
    ----------
    futures : Futures
    pools : Pools
    pool : Asks
        What a map asks for.
    """

    def __init__(self, futures: Futures, pools: Pools, pool: Asks) -> None:
        self._futures, self._pools, self._pool = futures, pools, pool
        self._calls: dict[Ref, Lent] = {}

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """As `Worker.split`, by whoever has least to do; the last value comes last."""
        self.settle()
        lent = self._pools.lease(self._pool)
        refs = lent.worker.split(count, fn, *args)
        self._calls[refs[-1]] = lent
        return refs

    def settle(self) -> None:
        """Give back the workers of calls that have ended."""
        for ref in self._futures.wait(list(self._calls), timeout=0)[0]:
            self._pools.back(self._calls.pop(ref), 0)

    def close(self) -> None:
        """The shuffle has ended: give back all of them."""
        for lent in self._calls.values():
            self._pools.back(lent, 0)
        self._calls.clear()
        self._pools.spend(self._pool, 1)


def _impossible(bundle: Bundle, asks: Asks, nodes: Sequence[Node]) -> str:
    names = [one.name for _, node in bundle.nodes for one in asking_in(node)]
    have = [
        ", ".join(f"{(node.resources or {}).get(name, 0):g} {name}" for name, _ in asks.amounts)
        for node in nodes
    ]
    return (
        f"{' > '.join(names)} asks for {asks} on one node, the nodes have {'; '.join(have)}: add "
        f"nodes (exo.num-cpus, exo.num-gpus), or ask for less in dask_exo.options"
    )
