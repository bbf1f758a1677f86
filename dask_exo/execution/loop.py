"""The driver loop: one loop for graph tasks and shuffles, under one admission policy.

Bundles are submitted in Dask's order as soon as their inputs exist; small ones of one group
share a call, as many as those before have shown to be worth it. A shuffle is a coroutine that
submits its own tasks and is resumed when what it waits for is done.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain
from typing import Any

from dask.utils import key_split

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.watchdog import Watchdog, bring
from dask_exo.config import Config
from dask_exo.errors import OutOfMemoryError
from dask_exo.execution.accounting import Ledger, Versions
from dask_exo.execution.actor_pool import Lent, Pools
from dask_exo.execution.admission import View, admit, lacking
from dask_exo.execution.batching import Experience, gather
from dask_exo.execution.memory_pressure import Pressure, alone
from dask_exo.execution.persisted import POLL, Local, Promise, Remote
from dask_exo.execution.ready_queue import Consumer, NobodyWantsThis, State
from dask_exo.execution.requests import Asks
from dask_exo.execution.run_metrics import Looks, Watcher, groups_of
from dask_exo.execution.shuffle_stage import Shufflings
from dask_exo.execution.tasks import messages
from dask_exo.execution.tasks.in_flight import Call, receipts
from dask_exo.execution.tasks.serialize import parcel, seal, unseal
from dask_exo.execution.values import Values
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle, Plan

LOOK = 0.5  # seconds between two looks at whether the results are still wanted


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
        Whether a call may go on with tasks that become ready by its own values; the watcher does
        not see those.
    looks : Looks, optional

    Attributes
    ----------
    versions : Versions
        Of what its tasks have made, and the tasks whose values it was given.
    """

    def __init__(  # noqa: PLR0913  each is a part of what a run is
        self,
        plan: Plan,
        futures: Futures,
        config: Config,
        watcher: Watcher | None = None,
        consumer: Consumer | None = None,
        *,
        follow: bool = True,
        looks: Looks | None = None,
    ) -> None:
        self._futures, self._config, self._follow = futures, config, follow
        self._watcher, self._consumer, self._looks = watcher or Watcher(), consumer, looks
        nodes = futures.nodes()
        slots = sum(node.slots for node in nodes)
        store = sum(node.store for node in nodes)
        gpus = sum((node.resources or {}).get("GPU", 0.0) for node in nodes)
        places = events.PlacesSeen(len(nodes), slots, store, gpus)
        self._first_events = (events.RunStarted(groups_of(plan)), *plan.seen, places)
        self._pools = Pools(futures, plan, nodes)
        self._budget = int(config.memory_fraction * store)
        self._values = Values(plan.literals, futures.put)
        self.versions = Versions(futures.repeats, config.nondeterminism)
        self._ledger = Ledger(self.versions)
        self._state = State(plan, self._values, self._ledger, consumer)
        self._awaited: dict[Key, Promise] = dict(plan.given)
        self._flying: dict[Ref, Call] = {}
        self._promised = 0
        self._shufflings = Shufflings(
            futures, self._pools, self._state, self._values, self._ledger, config, self._watcher
        )
        self._experience: dict[str, Experience] = defaultdict(Experience)
        self._trying: set[str] = set()  # groups of which the first tasks are in flight
        self._pressure = Pressure(futures)
        self._watchdog = Watchdog(futures, config.stall_timeout)

    def results(self) -> dict[Key, Local | Remote]:
        """Run to the end; return what is held for each of the plan's results.

        Raises
        ------
        Exception
            Whatever a task raised.
        IntegrityError
            A shuffle has lost rows.
        NonDeterminismError
            A task has run again, and has made something else.
        NobodyWantsThis
            The consumer does not.
        OutOfMemoryError
            A task needs more memory than its node has, for itself.
        StalledError
            Nothing has happened for `Config.stall_timeout`, and nothing can.
        """
        for event in self._first_events:
            events.emit(event)
        try:
            self._pools.open()
            while self._unfinished:
                self._shufflings.begin()
                self._shufflings.advance()
                self._arrive()
                self._launch()
                if self._looks is not None:
                    self._looks.look(self._held_back)
                moving = self._state.stages or self._shufflings.resumed
                if self._unfinished and not moving:
                    self._settle(self._wait())
                self._check_wanted()
            if self._config.shuffle_integrity:
                self._ledger.verify()
            self.versions.compare()
            return self._state.finish()
        except BaseException:
            self._abandon()
            raise
        finally:
            self._pools.close()

    def _held_back(self) -> tuple[int, str]:
        """How many tasks are in flight, and what keeps more from starting."""
        in_flight = len(self._flying) + self._shufflings.calls
        most = self._pools.slots * self._config.tasks_per_slot
        return in_flight, lacking(in_flight, most, ready=bool(self._state.heads))

    @property
    def _unfinished(self) -> bool:
        return bool(self._state.left or self._awaited)

    def _check_wanted(self) -> None:
        if self._consumer and not self._consumer.wants():
            raise NobodyWantsThis

    def _arrive(self) -> None:
        """Take the values that other computations have made by now."""
        for key, promise in list(self._awaited.items()):
            if promise.known:
                self._watchdog.moved()
                del self._awaited[key]
                try:
                    held = promise.held()
                    if isinstance(held, Remote):
                        self.versions.note(held.made)
                    self._state.have(key, held)
                except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
                    self._state.lose(key, error)

    def _launch(self) -> None:
        """Start bundles while the policy admits them."""
        while True:
            heads = enumerate(self._state.heads)
            started = any(self._try(bundle, behind=i > 0) for i, bundle in heads)
            if not started and not (self._stuck and self._pools.release()):
                return

    @property
    def _stuck(self) -> bool:
        """Whether workers that have nothing to do may hold what all others wait for."""
        waiting = self._flying or len(self._shufflings) or self._state.stages
        return not self._pools.calls and (not waiting or self._pools.lacking)

    def _try(self, bundle: Bundle, *, behind: bool) -> bool:
        """Start the first bundle of its kind, and those that share its call; or let it wait."""
        pool = bundle.options.pool
        picking = bundle.getitem and all(map(self._values.here, bundle.sources))
        if bundle.options.here or (picking and pool is None):  # picking an item is not worth a task
            self._run_here(self._state.pop(pool))
            return True
        known = self._experience.get(bundle.group)
        busy, slots = self._pools.calls, self._pools.slots
        in_flight = max(0, len(self._flying) + self._shufflings.calls - busy)
        expected = known.mean if known is not None else 0
        held, tight = self._values.nbytes, self._pressure.tight
        trying = bundle.group in self._trying
        view = View(in_flight, slots, held, self._promised, expected, behind, tight, trying)
        if pool is None:
            if not slots or not admit(
                view, tasks_per_slot=self._config.tasks_per_slot, budget=self._budget
            ):
                return False
            self._submit(self._batch(None, slots))
            return True
        alone = not in_flight and not busy
        lent = self._pools.lend(pool, ahead=view.fits(self._budget), alone=alone)
        if lent is None:
            return False
        self._submit(self._batch(pool, self._pools.width(pool)), lent)
        return True

    def _run_here(self, bundle: Bundle) -> None:
        """Run a task in the driver."""
        values = dict(bundle.literals)
        get = partial(bring, self._futures, limit=self._config.stall_timeout)
        for name, source in bundle.inputs.items():
            values[name] = self._values.bring(source, get)
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

    def _batch(self, pool: Asks | None, slots: int) -> list[Bundle]:
        return gather(
            self._state,
            self._experience,
            pool,
            slots=slots,
            target=self._config.bundle_target,
            follow=self._follow,
        )

    def _submit(self, bundles: list[Bundle], lent: Lent | None = None) -> None:
        node = self._values.place(chain.from_iterable(bundle.sources for bundle in bundles))
        jobs, args = parcel(bundles, self._values)
        data = seal((jobs, self._config.settings, self._config.compares), jobs, args)
        self._watcher.started(key for bundle in bundles for key, _ in bundle.nodes)
        if bundles[0].group not in self._experience:
            self._trying.add(bundles[0].group)
        kept = [bundle for job, bundle in zip(jobs, bundles, strict=True) if job.kept]
        known = [self._experience.get(bundle.group) for bundle in kept]
        small: int | None = self._config.small_result
        if all(one is not None and one.largest <= self._config.small_result for one in known):
            small = None
        promised = sum(one.mean for one in known if one is not None)
        needs, keys = bundles[0].options.needs, [bundle.key for bundle in kept]
        self._send(Call(bundles, data, args, keys, small, needs, node, promised, lent))

    def _send(self, call: Call) -> None:
        self._promised += call.promised
        self._flying[call.send(self._futures)] = call

    def _wait(self) -> Collection[Ref]:
        refs = [*self._flying, *self._shufflings.refs]
        if self._awaited and not refs:
            next(iter(self._awaited.values())).pause()
            return []
        assert refs, "work is left, but nothing is ready and nothing is running"
        # what another thread makes, and whether anybody wants the results, has to be looked up
        timeouts = [*self._shufflings.timeouts, self._pools.timeout()]
        timeouts.append(POLL if self._awaited else LOOK if self._consumer else None)
        timeouts.append(None if self._looks is None else self._looks.timeout)
        timeout = min((one for one in timeouts if one is not None), default=None)
        done, pending = self._watchdog.wait(refs, timeout, self._name)
        if pending:
            more, _ = self._futures.wait(pending, timeout=0)
            done.extend(more)
        return done

    def _name(self, ref: Ref) -> str:
        """What a ref is waited for."""
        call = self._flying.get(ref)
        return self._shufflings.name(ref) if call is None else repr(call.bundles[0].key)

    def _settle(self, finished: Collection[Ref]) -> None:
        """Take the results of finished tasks; tell the shuffles which of theirs are done."""
        self._shufflings.finished(finished)
        mine = [ref for ref in finished if ref in self._flying]
        for ref, dones in zip(mine, self._receipts(mine), strict=True):
            call = self._flying.pop(ref)
            self._promised -= call.promised
            if isinstance(dones, OutOfMemoryError):
                self._give_way(call, dones)
                continue
            if call.lent is not None:
                self._pools.back(call.lent, len(call.bundles))
            self._take(call, dones)

    def _receipts(self, refs: Sequence[Ref]) -> list[Any]:
        """Receipts of calls; what the cluster could not run, be it a merge before, names a key."""
        try:
            return receipts(self._futures, refs, OutOfMemoryError)
        except Exception as error:
            for ref in refs:
                with contextlib.suppress(Exception):
                    self._futures.get([ref])
                    continue
                error.add_note(
                    f"dask_exo: nothing came of task {self._flying[ref].bundles[0].key!r}"
                )
                break
            raise

    def _give_way(self, call: Call, error: OutOfMemoryError) -> None:
        """Send a task again that its node had no memory for, with fewer neighbours."""
        if call.lent is not None:  # it has what it asked for to itself, and has been tried again
            raise error
        key = call.bundles[0].key
        call.needs = alone(call.needs, self._futures.nodes(), key, error)
        events.emit(events.GaveWay(key_split(key), call.needs["num_cpus"]))
        self._send(call)

    def _take(self, call: Call, dones: Sequence[messages.Done]) -> None:
        several = len(dones) > 1
        self._trying.discard(call.bundles[0].group)
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
                held = Remote(call.refs[bundle.key], done.nbytes, done.made)
                self.versions.note(done.made)
            self._watcher.finished(bundle.key, [key for key, _ in bundle.nodes], held)
            self._state.have(bundle.key, held)
        first = call.bundles[0]
        each = tuple((b.key, d.seconds, d.nbytes) for b, d in zip(call.bundles, dones, strict=True))
        seconds = sum(done.seconds for done in dones)
        self._ledger.worked(seconds, sum(done.spent for done in dones))
        nbytes = sum(done.nbytes for done in dones)
        name, place, gpus = key_split(first.key), dones[-1].ran, first.options.gpus
        events.emit(events.TasksFinished(name, len(dones), seconds, nbytes, place, each, gpus))

    def _abandon(self) -> None:
        """Stop what runs and let go of every value."""
        self._futures.cancel([*self._flying, *self._shufflings.refs])
        self._shufflings.stop()
        self._flying.clear()
        self._values.clear()
