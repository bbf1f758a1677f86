"""The driver loop: one loop for graph tasks and shuffles, under one admission policy.

Bundles are submitted in Dask's order as soon as their inputs exist; small ones of one group
share a call, as many as those before have shown to be worth it. A shuffle is a coroutine that
submits its own tasks and is resumed when what it waits for is done.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from dask.utils import key_split

from dask_exo.config import Config
from dask_exo.futures import Futures, Ref
from dask_exo.graph import work
from dask_exo.graph.batch import Experience, gather
from dask_exo.graph.decide import View, admit
from dask_exo.graph.enclose import enclose
from dask_exo.graph.execute import run_apart, run_together
from dask_exo.graph.normalize import Key
from dask_exo.graph.parcel import parcel, seal, unseal
from dask_exo.graph.plan import Bundle, Plan, Stage
from dask_exo.graph.promise import POLL, Local, Promise, Remote
from dask_exo.graph.stages import Ledger, Shuffling
from dask_exo.graph.state import Consumer, State
from dask_exo.graph.values import Values
from dask_exo.report import events

LOOK = 0.5  # seconds between two looks at whether the results are still wanted


@dataclass(slots=True)
class Call:
    """A task in flight: its bundles, the refs of those values that it returns as such."""

    bundles: list[Bundle]
    refs: dict[Key, Ref]
    promised: int


class Watcher:
    """Is told what becomes of the nodes of the graph; this one does not care."""

    def started(self, keys: Iterable[Key]) -> None:
        """Nodes run."""

    def finished(self, key: Key, inner: Iterable[Key], held: Local | Remote | None) -> None:
        """A node and those inside it have run; ``held`` is the value of ``key``, if kept."""


class NobodyWantsThis(Exception):  # noqa: N818  no error: it ends a run
    """All promises of a run's results have been dropped."""


class Run:
    """One computation.

    Parameters
    ----------
    plan : Plan
    futures : Futures
    config : Config
    watcher : Watcher, optional
    consumer : Consumer, optional
        Takes results as they come; without it, the first failure ends the run.
    follow : bool
        Whether tasks may be fused further, and go on with what becomes ready by their own values;
        the watcher does not see those.
    """

    def __init__(
        self,
        plan: Plan,
        futures: Futures,
        config: Config,
        watcher: Watcher | None = None,
        consumer: Consumer | None = None,
        *,
        follow: bool = True,
    ) -> None:
        self._futures, self._config, self._follow = futures, config, follow
        self._watcher, self._consumer = watcher or Watcher(), consumer
        nodes = futures.nodes()
        self._slots = sum(node.slots for node in nodes)
        if follow:
            enclose(plan, self._slots)
        self._budget = int(config.memory_fraction * sum(node.store for node in nodes))
        self._values = Values(plan.literals, futures.put)
        self._ledger = Ledger()
        self._state = State(plan, self._values, self._ledger, consumer)
        self._awaited: dict[Key, Promise] = dict(plan.given)
        self._flying: dict[Ref, Call] = {}
        self._promised = 0
        self._shuffling: list[Shuffling] = []
        self._experience: dict[str, Experience] = defaultdict(Experience)

    def results(self) -> dict[Key, Local | Remote]:
        """Run to the end; return what is held for each of the plan's results.

        Raises
        ------
        Exception
            Whatever a task raised.
        IntegrityError
            A shuffle has lost rows.
        NobodyWantsThis
            The consumer does not.
        """
        try:
            while self._unfinished:
                self._begin()
                self._advance()
                self._arrive()
                self._launch()
                moving = self._state.stages or self._resumed
                if self._unfinished and not moving:
                    self._settle(self._wait())
                self._check_wanted()
            if self._config.shuffle_integrity:
                self._ledger.verify()
            return self._state.finish()
        except BaseException:
            self._abandon()
            raise

    @property
    def _unfinished(self) -> bool:
        return bool(self._state.left or self._awaited)

    @property
    def _resumed(self) -> list[Shuffling]:
        """Shuffles that need not wait any more."""
        now = self._futures.now if self._shuffling else 0.0
        return [s for s in self._shuffling if s.waiting.over(now)]

    def _check_wanted(self) -> None:
        if self._consumer and not self._consumer.wants():
            raise NobodyWantsThis

    def _arrive(self) -> None:
        """Take the values that other computations have made by now."""
        for key, promise in list(self._awaited.items()):
            if promise.known:
                del self._awaited[key]
                try:
                    self._state.have(key, promise.held())
                except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
                    self._state.lose(key, error)

    def _begin(self) -> None:
        """Start the shuffles whose inputs exist."""
        while self._state.stages:
            stage = self._state.stages.pop(0)
            self._watcher.started(_inside(stage))
            started = Shuffling.start(
                stage, self._futures, self._values, self._ledger, self._config
            )
            self._shuffling.append(started)

    def _advance(self) -> None:
        """Resume every shuffle that has what it waited for."""
        for shuffling in self._resumed:
            stage = shuffling.stage
            try:
                shuffled = shuffling.advance(self._futures.now)
            except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
                self._shuffling.remove(shuffling)
                self._fail(shuffling, error)
                continue
            if shuffled is not None:
                self._shuffling.remove(shuffling)
                self._ledger.sent(stage, shuffled.tally)
                self._state.left -= 1
                self._watcher.finished(stage.key, _inside(stage), None)
                for key, pile in shuffling.outputs(shuffled):
                    self._state.have(key, pile)

    def _fail(self, shuffling: Shuffling, error: Exception) -> None:
        """A shuffle has ended with an exception."""
        traceback.clear_frames(error.__traceback__)  # whoever keeps it would keep the blocks
        self._futures.cancel(shuffling.waiting.refs)
        self._state.left -= 1
        for part in shuffling.stage.parts:
            self._state.excuse(part)
        for column in shuffling.stage.columns:
            self._state.lose(column, error)

    def _launch(self) -> None:
        """Start bundles while the policy admits them."""
        while (bundle := self._state.first) is not None:
            picking = bundle.getitem and all(map(self._values.here, bundle.sources))
            if bundle.asked.here or picking:  # picking an item is not worth a task
                self._run_here(self._state.pop())
                continue
            known = self._experience.get(bundle.group)
            expected = known.mean if known is not None else 0
            in_flight = len(self._flying) + sum(len(s.waiting.refs) for s in self._shuffling)
            view = View(in_flight, self._slots, self._values.nbytes, self._promised, expected)
            if not admit(view, tasks_per_slot=self._config.tasks_per_slot, budget=self._budget):
                return
            self._submit(self._batch())

    def _run_here(self, bundle: Bundle) -> None:
        """Run a task in the driver."""
        values = dict(bundle.literals)
        for name, source in bundle.inputs.items():
            values[name] = self._values.bring(source, self._futures.get)
        ((_, node),) = bundle.nodes
        self._state.left -= 1
        try:
            held = Local(node(values))
        except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
            self._state.lose(bundle.key, error)
            return
        self._watcher.started([bundle.key])
        self._watcher.finished(bundle.key, (), held)
        self._state.have(bundle.key, held)

    def _batch(self) -> list[Bundle]:
        return gather(
            self._state,
            self._experience,
            slots=self._slots,
            target=self._config.bundle_target,
            follow=self._follow,
        )

    def _submit(self, bundles: list[Bundle]) -> None:
        node = self._values.place(chain.from_iterable(bundle.sources for bundle in bundles))
        jobs, args = parcel(bundles, self._values)
        small = self._config.small_result
        data = seal((jobs, self._config.settings), jobs, args)
        needs = bundles[0].asked.needs
        self._watcher.started(key for bundle in bundles for key, _ in bundle.nodes)
        kept = [bundle for job, bundle in zip(jobs, bundles, strict=True) if job.kept]
        known = [self._experience.get(bundle.group) for bundle in kept]
        refs: list[Ref] = []
        if all(one is not None and one.largest <= small for one in known):
            done = self._futures.submit(run_together, data, *args, node=node, needs=needs)
        else:
            *refs, done = self._futures.split(
                len(kept) + 1, run_apart, data, small, *args, node=node, needs=needs
            )
        promised = sum(one.mean for one in known if one is not None)
        named = dict(zip((bundle.key for bundle in kept), refs, strict=False))
        self._promised += promised
        self._flying[done] = Call(bundles, named, promised)

    def _wait(self) -> Collection[Ref]:
        refs = [*self._flying, *{ref for s in self._shuffling for ref in s.waiting.refs}]
        if self._awaited and not refs:
            next(iter(self._awaited.values())).pause()
            return []
        assert refs, "work is left, but nothing is ready and nothing is running"
        # what another thread makes, and whether anybody wants the results, has to be looked up
        timeouts = [s.waiting.timeout(self._futures.now) for s in self._shuffling]
        timeouts.append(POLL if self._awaited else LOOK if self._consumer else None)
        timeout = min((one for one in timeouts if one is not None), default=None)
        done, pending = self._futures.wait(refs, timeout=timeout)
        if pending:
            more, _ = self._futures.wait(pending, timeout=0)
            done.extend(more)
        return done

    def _settle(self, finished: Collection[Ref]) -> None:
        """Take the results of finished tasks; tell the shuffles which of theirs are done."""
        for shuffling in self._shuffling:
            shuffling.waiting.finished(finished)
        mine = [ref for ref in finished if ref in self._flying]
        for ref, dones in zip(mine, self._futures.get(mine), strict=True):
            call = self._flying.pop(ref)
            self._promised -= call.promised
            self._take(call, dones)

    def _take(self, call: Call, dones: Sequence[work.Done]) -> None:
        several = len(dones) > 1
        for i, (bundle, done) in enumerate(zip(call.bundles, dones, strict=True)):
            self._state.left -= 1
            try:
                unseal(done)
            except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
                self._state.excuse(bundle)
                self._state.lose(bundle.key, error)
                continue
            if i or not several or bundle.group not in self._experience:
                # what a call does once, the first one pays for: more of them would not pay it again
                self._experience[bundle.group].add(done.seconds, done.nbytes)
            self._ledger.arrived(done.arrived)
            held: Local | Remote = Local(done.value)
            if not done.small:
                held = Remote(call.refs[bundle.key], done.nbytes)
            self._watcher.finished(bundle.key, [key for key, _ in bundle.nodes], held)
            self._state.have(bundle.key, held)
        group = key_split(call.bundles[0].key)
        seconds = sum(done.seconds for done in dones)
        nbytes = sum(done.nbytes for done in dones)
        events.emit(events.TasksFinished(group, len(dones), seconds, nbytes))

    def _abandon(self) -> None:
        """Stop what runs and let go of every value."""
        self._futures.cancel([*self._flying, *{r for s in self._shuffling for r in s.waiting.refs}])
        for shuffling in self._shuffling:
            shuffling.steps.close()
        self._flying.clear()
        self._shuffling.clear()
        self._values.clear()


def _inside(stage: Stage) -> list[Key]:
    """Nodes of the graph that a shuffle runs."""
    return [stage.key, *(key for part in stage.parts for key, _ in part.nodes)]
