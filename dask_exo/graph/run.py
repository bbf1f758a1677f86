"""The driver loop: one loop for graph tasks and shuffles, under one admission policy.

Bundles are submitted in Dask's order as soon as their inputs exist; small ones of one group
share a call, as many as those before have shown to be worth it. A shuffle is a coroutine that
submits its own tasks and is resumed when what it waits for is done.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dask.utils import key_split

from dask_exo.config import Config
from dask_exo.futures import Futures, Ref
from dask_exo.graph import work
from dask_exo.graph.decide import View, admit
from dask_exo.graph.normalize import Key
from dask_exo.graph.parcel import parcel, seal, unseal
from dask_exo.graph.plan import Bundle, Plan, Stage
from dask_exo.graph.stages import Ledger, Shuffling
from dask_exo.graph.values import Held, Local, Remote, Values
from dask_exo.report import events
from dask_exo.shuffle.choose import batch_size


@dataclass(slots=True)
class Experience:
    """What the finished bundles of one group have shown."""

    count: int = 0
    seconds: float = 0.0
    nbytes: int = 0
    largest: int = 0

    def add(self, done: work.Done) -> None:
        """Take note of one more."""
        self.count += 1
        self.seconds += done.seconds
        self.nbytes += done.nbytes
        self.largest = max(self.largest, done.nbytes)

    @property
    def mean(self) -> int:
        """Bytes of a value."""
        return self.nbytes // max(self.count, 1)


@dataclass(slots=True)
class Call:
    """A task in flight: its bundles, the refs of their values if they have any, and a promise."""

    bundles: list[Bundle]
    refs: list[Ref] | None
    promised: int


class Run:
    """One computation.

    Parameters
    ----------
    plan : Plan
    futures : Futures
    config : Config
    """

    def __init__(self, plan: Plan, futures: Futures, config: Config) -> None:
        self._results, self._futures, self._config = plan.results, futures, config
        nodes = futures.nodes()
        self._slots = sum(node.slots for node in nodes)
        self._budget = int(config.memory_fraction * sum(node.store for node in nodes))
        self._values = Values(plan.literals, futures.put)
        self._ledger = Ledger()
        self._ready: list[tuple[int, int, Bundle]] = []
        self._queued: Counter[str] = Counter()
        self._flying: dict[Ref, Call] = {}
        self._promised = 0
        self._shuffling: list[Shuffling] = []
        self._experience: dict[str, Experience] = defaultdict(Experience)
        self._left = len(plan.bundles) + len(plan.stages)
        self._waits: dict[int, int] = {}
        self._dependents: dict[Key, list[Bundle | Stage]] = defaultdict(list)
        self._link(plan)

    def _link(self, plan: Plan) -> None:
        """Who waits for what, and how many read each value."""
        readers = [*plan.bundles, *(part for stage in plan.stages for part in stage.parts)]
        for reader in readers:
            self._values.expect(reader.sources)
        self._values.expect(set(plan.results.values()))  # the caller reads these
        units: list[Bundle | Stage] = [*plan.bundles, *plan.stages]
        for unit in units:
            missing = unit.sources - plan.literals.keys()
            self._waits[id(unit)] = len(missing)
            for source in missing:
                self._dependents[source].append(unit)
            if not missing:
                self._enqueue(unit)

    def results(self) -> dict[Key, Local | Remote]:
        """Run to the end; return what is held for each of the plan's results.

        Raises
        ------
        Exception
            Whatever a task raised.
        IntegrityError
            A shuffle has lost rows.
        """
        try:
            while self._left:
                self._advance()
                self._launch()
                if all(shuffling.waiting for shuffling in self._shuffling) and self._left:
                    self._settle(self._wait())
            if self._config.shuffle_integrity:
                self._ledger.verify()
        except BaseException:
            self._abandon()
            raise
        return {key: self._values.result(source) for key, source in self._results.items()}

    def _enqueue(self, unit: Bundle | Stage) -> None:
        if isinstance(unit, Stage):
            started = Shuffling.start(unit, self._futures, self._values, self._ledger, self._config)
            self._shuffling.append(started)
        else:
            heapq.heappush(self._ready, (unit.priority, id(unit), unit))
            self._queued[unit.group] += 1

    def _have(self, key: Key, held: Held) -> None:
        """A value exists: keep it for its readers, and wake those who waited for it."""
        self._values.add(key, held)
        for unit in self._dependents.pop(key, ()):
            self._waits[id(unit)] -= 1
            if not self._waits[id(unit)]:
                self._enqueue(unit)

    def _advance(self) -> None:
        """Resume every shuffle that has what it waited for."""
        for shuffling in [s for s in self._shuffling if not s.waiting]:
            shuffled = shuffling.advance()
            if shuffled is not None:
                self._shuffling.remove(shuffling)
                self._ledger.sent(shuffling.stage, shuffled.tally)
                self._left -= 1
                for key, pile in shuffling.outputs(shuffled):
                    self._have(key, pile)

    def _launch(self) -> None:
        """Start bundles while the policy admits them."""
        while self._ready:
            bundle = self._ready[0][2]
            if bundle.getitem and all(map(self._values.here, bundle.sources)):
                self._pick(self._pop())
                continue
            known = self._experience[bundle.group]
            in_flight = len(self._flying) + sum(len(s.waiting) for s in self._shuffling)
            view = View(in_flight, self._slots, self._values.nbytes, self._promised, known.mean)
            if not admit(view, tasks_per_slot=self._config.tasks_per_slot, budget=self._budget):
                return
            self._submit(self._batch(known), known)

    def _pick(self, bundle: Bundle) -> None:
        """Take an item out of a value that is here: that is not worth a task."""
        values = dict(bundle.literals)
        for name, source in bundle.inputs.items():
            held = self._values.take(source)
            assert isinstance(held, Local)
            values[name] = held.value
        ((_, node),) = bundle.nodes
        self._left -= 1
        self._have(bundle.key, Local(node(values)))

    def _pop(self) -> Bundle:
        bundle = heapq.heappop(self._ready)[2]
        self._queued[bundle.group] -= 1
        return bundle

    def _batch(self, known: Experience) -> list[Bundle]:
        """The next bundle, and as many of its group as should share a call with it."""
        first = self._pop()
        size = 1
        if known.count:
            size = batch_size(
                seconds=known.seconds / known.count,
                nbytes=known.mean,
                remaining=self._queued[first.group] + 1,
                slots=self._slots,
                target=self._config.bundle_target,
            )
        bundles = [first]
        while len(bundles) < size and self._ready and self._ready[0][2].group == first.group:
            bundles.append(self._pop())
        return bundles

    def _submit(self, bundles: list[Bundle], known: Experience) -> None:
        jobs, args = parcel(bundles, self._values)
        small = self._config.small_result
        data = seal(jobs, jobs)
        refs: list[Ref] | None = None
        if known.count and known.largest <= small:
            done = self._futures.submit(work.run_together, data, *args)
        else:
            count = len(bundles) + 1
            *refs, done = self._futures.split(count, work.run_apart, data, small, *args)
        call = Call(bundles, refs, known.mean * len(bundles))
        self._promised += call.promised
        self._flying[done] = call

    def _wait(self) -> Collection[Ref]:
        refs = [*self._flying, *{ref for s in self._shuffling for ref in s.waiting}]
        assert refs, "work is left, but nothing is ready and nothing is running"
        done, pending = self._futures.wait(refs)
        if pending:
            more, _ = self._futures.wait(pending, timeout=0)
            done.extend(more)
        return done

    def _settle(self, finished: Collection[Ref]) -> None:
        """Take the results of finished tasks; tell the shuffles which of theirs are done."""
        for shuffling in self._shuffling:
            shuffling.waiting.difference_update(finished)
        mine = [ref for ref in finished if ref in self._flying]
        for ref, dones in zip(mine, self._futures.get(mine), strict=True):
            call = self._flying.pop(ref)
            self._promised -= call.promised
            self._take(call, dones)

    def _take(self, call: Call, dones: Sequence[work.Done]) -> None:
        refs = call.refs or [None] * len(dones)
        for bundle, done, ref in zip(call.bundles, dones, refs, strict=True):
            unseal(done)
            self._experience[bundle.group].add(done)
            self._ledger.arrived(done.arrived)
            self._left -= 1
            self._have(bundle.key, Local(done.value) if done.small else Remote(ref, done.nbytes))
        group = key_split(call.bundles[0].key)
        seconds = sum(done.seconds for done in dones)
        nbytes = sum(done.nbytes for done in dones)
        events.emit(events.TasksFinished(group, len(dones), seconds, nbytes))

    def _abandon(self) -> None:
        """Stop what runs and let go of every value."""
        self._futures.cancel([*self._flying, *{r for s in self._shuffling for r in s.waiting}])
        for shuffling in self._shuffling:
            shuffling.steps.close()
        self._flying.clear()
        self._shuffling.clear()
        self._values.clear()
