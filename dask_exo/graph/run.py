"""The driver loop: one loop for graph tasks and shuffles, under one admission policy.

Bundles are submitted in Dask's order as soon as their inputs exist; small ones of one group
share a call, as many as those before have shown to be worth it. A shuffle is a coroutine that
submits its own tasks and is resumed when what it waits for is done. A value is dropped when its
last reader is submitted: from then on Ray holds it for as long as that task needs it.
"""

from __future__ import annotations

import heapq
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask.utils import key_split

from dask_exo.config import Config
from dask_exo.errors import SerializationError
from dask_exo.futures import Futures, Node, Ref
from dask_exo.graph import work
from dask_exo.graph.decide import View, admit
from dask_exo.graph.normalize import Key
from dask_exo.graph.plan import Bundle, ColumnKey, Plan, Stage
from dask_exo.graph.rewrite import Split
from dask_exo.report import events
from dask_exo.shuffle.blocks import merge
from dask_exo.shuffle.choose import Choice, batch_size
from dask_exo.shuffle.exchange import Limits, Shuffled, exchange
from dask_exo.shuffle.integrity import Tally, verify
from dask_exo.shuffle.spec import Column, Receipt, Spec

BLOCK_SHARE = 0.8  # of a node's store: a larger object leaves no room for the ones it is made of


@dataclass(frozen=True, slots=True)
class Local:
    """A value in the driver's own memory."""

    value: Any


@dataclass(frozen=True, slots=True)
class Remote:
    """A value in the object store, and its estimated size in bytes."""

    ref: Ref
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pile:
    """One output of a shuffle that waits for the task that assembles it."""

    key: ColumnKey
    column: Column
    split: Split


Held = Local | Remote | Pile


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


@dataclass(slots=True)
class Active:
    """A shuffle under way."""

    stage: Stage
    steps: Any
    waiting: set[Ref] = field(default_factory=set)
    started: float = field(default_factory=time.perf_counter)
    chosen: Choice | None = None


class Run:
    """One computation.

    Parameters
    ----------
    plan : Plan
    futures : Futures
    config : Config
    """

    def __init__(self, plan: Plan, futures: Futures, config: Config) -> None:
        self._plan, self._futures, self._config = plan, futures, config
        self._nodes: tuple[Node, ...] = tuple(futures.nodes())
        self._slots = sum(node.slots for node in self._nodes)
        self._budget = int(config.memory_fraction * sum(node.store for node in self._nodes))
        self._held: dict[Key, Held] = {}
        self._nbytes = self._promised = 0
        self._ready: list[tuple[int, int, Bundle]] = []
        self._queued: Counter[str] = Counter()
        self._flying: dict[Ref, Call] = {}
        self._active: list[Active] = []
        self._experience: dict[str, Experience] = defaultdict(Experience)
        self._left = len(plan.bundles) + len(plan.stages)
        self._sent: dict[Key, Tally] = {}
        self._arrived: dict[Key, Tally] = defaultdict(Tally)
        self._assembled: Counter[Key] = Counter()
        self._names: dict[Key, str] = {}
        self._link()

    def _link(self) -> None:
        """Who waits for what, and how many read each value."""
        units: list[Bundle | Stage] = [*self._plan.bundles, *self._plan.stages]
        self._readers: Counter[Key] = Counter()
        self._waits: dict[int, int] = {}
        self._dependents: dict[Key, list[Bundle | Stage]] = defaultdict(list)
        for bundle in self._plan.bundles:
            self._readers.update(bundle.sources)
        for stage in self._plan.stages:
            for part in stage.parts:
                self._readers.update(part.sources)
        self._readers.update(set(self._plan.results.values()))  # the caller reads these
        for unit in units:
            missing = unit.sources - self._plan.literals.keys()
            self._waits[id(unit)] = len(missing)
            for source in missing:
                self._dependents[source].append(unit)
            if not missing:
                self._enqueue(unit)

    def results(self) -> dict[Key, Held]:
        """Run to the end; return what is held for each of the plan's results."""
        try:
            while self._left:
                self._advance()
                self._launch()
                if all(active.waiting for active in self._active) and self._left:
                    self._settle(self._wait())
        except BaseException:
            self._abandon()
            raise
        self._verify()
        return {key: self._hold(source) for key, source in self._plan.results.items()}

    # -- what is ready ---------------------------------------------------------------------

    def _enqueue(self, unit: Bundle | Stage) -> None:
        if isinstance(unit, Stage):
            self._active.append(Active(unit, None))
        else:
            heapq.heappush(self._ready, (unit.priority, id(unit), unit))
            self._queued[unit.group] += 1

    def _have(self, key: Key, held: Held) -> None:
        """A value exists: keep it for its readers, and wake those who waited for it."""
        if self._readers[key]:
            self._held[key] = held
            self._nbytes += held.nbytes if isinstance(held, Remote) else 0
        for unit in self._dependents.pop(key, ()):
            self._waits[id(unit)] -= 1
            if not self._waits[id(unit)]:
                self._enqueue(unit)

    def _hold(self, key: Key) -> Held:
        """What is held of a value; a literal is stored when it is first asked for."""
        if key not in self._held:
            value = self._plan.literals[key]
            self._held[key] = Local(value)
        return self._held[key]

    def _read(self, key: Key) -> Held:
        """Take a value for a task that is being submitted: the last reader takes it away."""
        held = self._hold(key)
        if isinstance(held, Local) and key in self._plan.literals:
            held = self._held[key] = Remote(self._futures.put(held.value), 0)
        self._readers[key] -= 1
        if not self._readers[key]:
            del self._held[key]
            self._nbytes -= held.nbytes if isinstance(held, Remote) else 0
        return held

    # -- graph tasks -----------------------------------------------------------------------

    def _launch(self) -> None:
        """Start bundles while the policy admits them."""
        while self._ready:
            bundle = self._ready[0][2]
            if self._on_driver(bundle):
                self._pop()
                taken = {key: self._read(key) for key in bundle.sources}
                values = {name: value_of(taken[key], {}) for name, key in bundle.inputs.items()}
                self._finish(bundle, Local(bundle.nodes[0][1]({**values, **bundle.literals})))
                continue
            known = self._experience[bundle.group]
            in_flight = len(self._flying) + sum(len(a.waiting) for a in self._active)
            view = View(in_flight, self._slots, self._nbytes, self._promised, known.mean)
            if not admit(view, tasks_per_slot=self._config.tasks_per_slot, budget=self._budget):
                return
            self._submit(self._batch(known))

    def _on_driver(self, bundle: Bundle) -> bool:
        """Picking an item out of a value that is here anyway is not worth a task."""
        return bundle.getitem and all(
            isinstance(self._held.get(source), Local) for source in bundle.sources
        )

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

    def _submit(self, bundles: list[Bundle]) -> None:
        known = self._experience[bundles[0].group]
        jobs, args = self._jobs(bundles)
        small = self._config.small_result
        data = dumps(jobs)
        promised = known.mean * len(bundles)
        if known.count and known.largest <= small:
            done = self._futures.submit(work.run_together, data, small, *args)
            refs = None
        else:
            *refs, done = self._futures.split(len(bundles) + 1, work.run_apart, data, small, *args)
        self._promised += promised
        self._flying[done] = Call(bundles, refs, promised)

    def _jobs(self, bundles: Iterable[Bundle]) -> tuple[list[work.Job], list[Ref]]:
        """Code of some bundles, and the refs that they read, each once."""
        places: dict[Ref, int] = {}
        piles: dict[int, list[int]] = {}

        def place(ref: Ref) -> int:
            return places.setdefault(ref, len(places))

        def source(held: Held) -> work.Argument | work.Gathered | work.Value:
            if isinstance(held, Local):
                return work.Value(held.value)
            if isinstance(held, Remote):
                return work.Argument(place(held.ref))
            refs = held.column.refs
            if id(refs) not in piles:  # reducers of one node share their refs
                piles[id(refs)] = [place(ref) for ref in refs]
            return work.Gathered(
                held.key.stage, held.key.slot, held.column.slot, piles[id(refs)], held.split
            )

        jobs = []
        alive = []  # ids in ``piles`` stay unique as long as the lists are alive
        for bundle in bundles:
            taken = {key: self._read(key) for key in bundle.sources}
            alive.append(taken)
            inputs: dict[Key, Any] = {n: source(taken[key]) for n, key in bundle.inputs.items()}
            inputs.update((name, work.Value(v)) for name, v in bundle.literals.items())
            jobs.append(work.Job(bundle.key, bundle.nodes, inputs))
        return jobs, list(places)

    def _finish(self, bundle: Bundle, held: Held) -> None:
        self._left -= 1
        self._have(bundle.key, held)

    # -- shuffles --------------------------------------------------------------------------

    def _advance(self) -> None:
        """Resume every shuffle that has what it waited for."""
        for active in [a for a in self._active if not a.waiting]:
            if active.steps is None:
                active.steps = self._start(active)
            try:
                while not active.waiting:
                    active.waiting = set(next(active.steps))
            except StopIteration as stop:
                self._active.remove(active)
                self._end(active, stop.value)

    def _start(self, active: Active) -> Any:
        stage, config = active.stage, self._config
        self._names[stage.key] = stage.name
        spec = Spec(len(stage.columns), self._nodes, work.run_map, merge)
        limits = Limits(
            config.shuffle_algorithm,
            config.shuffle_memory_fraction,
            config.shuffle_round_fraction,
            config.bundle_target,
            config.tasks_per_slot,
        )

        def chosen(choice: Choice) -> None:
            active.chosen = choice
            events.emit(
                events.ShuffleChosen(
                    stage.name,
                    choice.algorithm,
                    choice.reason,
                    len(stage.parts),
                    len(stage.columns),
                    choice.per_round,
                )
            )

        return exchange(self._futures, StageParts(self, stage), spec, limits, chosen)

    def _end(self, active: Active, shuffled: Shuffled) -> None:
        stage, choice = active.stage, shuffled.choice
        pushed = choice.algorithm == "push"
        events.emit(
            events.ShuffleFinished(
                stage.name,
                choice.algorithm,
                choice.reason,
                len(stage.parts),
                len(stage.columns),
                -(-len(stage.parts) // choice.per_round) if pushed else 1,
                shuffled.calls,
                shuffled.tally.rows,
                shuffled.nbytes,
                time.perf_counter() - active.started,
            )
        )
        self._sent[stage.key] = shuffled.tally
        self._left -= 1
        for key, column in zip(stage.columns, shuffled.columns, strict=True):
            self._have(key, Pile(key, column, stage.split))

    def map_call(self, stage: Stage, parts: Sequence[Bundle]) -> tuple[Any, ...]:
        """Arguments of `work.run_map` for some parts of a stage."""
        jobs, args = self._jobs(parts)
        limit = int(BLOCK_SHARE * min(node.store for node in self._nodes))
        return dumps((jobs, stage.split, self._config.shuffle_integrity, limit), jobs), *args

    def arrive(self, arrived: Iterable[work.Arrived]) -> None:
        """Add up what the tasks have assembled of each shuffle."""
        for one in arrived:
            self._arrived[one.stage] += one.tally
            self._assembled[one.stage] += 1

    def _verify(self) -> None:
        """Compare both sides of every shuffle, when all is done."""
        if self._config.shuffle_integrity:
            for key, sent in self._sent.items():
                verify(f"shuffle {self._names[key]}", sent, self._arrived[key])

    # -- waiting ---------------------------------------------------------------------------

    def _wait(self) -> Collection[Ref]:
        refs = [*self._flying, *{ref for active in self._active for ref in active.waiting}]
        assert refs, "work is left, but nothing is ready and nothing is running"
        done, pending = self._futures.wait(refs)
        if pending:
            more, _ = self._futures.wait(pending, timeout=0)
            done.extend(more)
        return done

    def _settle(self, finished: Collection[Ref]) -> None:
        """Take the results of finished tasks; tell the shuffles which of theirs are done."""
        for active in self._active:
            if active.waiting:
                active.waiting.difference_update(finished)
        mine = [ref for ref in finished if ref in self._flying]
        for ref, dones in zip(mine, self._futures.get(mine), strict=True):
            call = self._flying.pop(ref)
            self._promised -= call.promised
            self._take(call, dones)

    def _take(self, call: Call, dones: Sequence[work.Done]) -> None:
        refs = call.refs or [None] * len(dones)
        for bundle, done, ref in zip(call.bundles, dones, refs, strict=True):
            warn_again(done.warned)
            if done.failure is not None:
                done.failure.reraise()
            self._experience[bundle.group].add(done)
            self.arrive(done.arrived)
            self._finish(bundle, Local(done.value) if done.small else Remote(ref, done.nbytes))
        events.emit(
            events.TasksFinished(
                key_split(call.bundles[0].key),
                len(dones),
                sum(done.seconds for done in dones),
                sum(done.nbytes for done in dones),
            )
        )

    def _abandon(self) -> None:
        """Stop what runs and let go of every value."""
        refs = [*self._flying, *{ref for active in self._active for ref in active.waiting}]
        self._futures.cancel(refs)
        for active in self._active:
            if active.steps is not None:
                active.steps.close()
        self._flying.clear()
        self._active.clear()
        self._held.clear()


class StageParts:
    """The parts of one stage, as the map side of a shuffle wants them."""

    def __init__(self, run: Run, stage: Stage) -> None:
        self._run, self._stage = run, stage

    def __len__(self) -> int:
        """M."""
        return len(self._stage.parts)

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arguments with which `work.run_map` makes and cuts parts ``start`` to ``stop``."""
        return self._run.map_call(self._stage, self._stage.parts[start:stop])

    def settle(self, receipt: Receipt) -> None:
        """Add up what a map call assembled of an earlier shuffle; raise what made it fail."""
        detail: work.Detail = receipt.detail
        warn_again(detail.warned)
        if detail.failure is not None:
            detail.failure.reraise()
        self._run.arrive(detail.arrived)
        events.emit(
            events.TasksFinished(self._stage.name, detail.parts, receipt.seconds, receipt.nbytes)
        )


def dumps(content: Any, jobs: Sequence[work.Job] | None = None) -> bytes:
    """Code for a task as bytes.

    Raises
    ------
    SerializationError
        Names the tasks that cannot be sent to another process.
    """
    try:
        return work.dumps(content)
    except Exception as error:
        jobs = content if jobs is None else jobs
        culprit = next((job.key for job in jobs if not _sendable(job)), jobs[0].key)
        raise SerializationError(
            f"task {culprit!r} cannot be sent to another process: {error}. Open files, locks, "
            f"connections and generators must be made inside the task"
        ) from error


def _sendable(job: work.Job) -> bool:
    try:
        work.dumps([job])
    except Exception:  # noqa: BLE001  whatever it is, it is the reason
        return False
    return True


_warned_before: dict[Any, Any] = {}  # as each module has it: one place warns once by default


def warn_again(warned: Iterable[work.Warned]) -> None:
    """Give here the warnings that user code gave in a task; this process's filters apply."""
    for one in warned:
        warnings.warn_explicit(
            one.message, one.category, one.filename, one.lineno, registry=_warned_before
        )


def value_of(held: Held, fetched: dict[Ref, Any]) -> Any:
    """The value behind what is held; ``fetched`` has those of all refs."""
    if isinstance(held, Local):
        return held.value
    assert isinstance(held, Remote)
    return fetched[held.ref]
