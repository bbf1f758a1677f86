"""The driver loop: one loop for graph tasks and shuffles, under one admission policy.

Bundles are submitted in Dask's order as soon as their inputs exist. Small ones share a call; the
measured durations of their group decide how many. A shuffle is a coroutine that
submits its own tasks and is resumed when what it waits for is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from dask_exo import events
from dask_exo.cluster.futures import Futures, Node, Ref
from dask_exo.cluster.ownership import owned
from dask_exo.cluster.resources import ResourceRequest
from dask_exo.cluster.waiting import (
    Watchdog,
    await_nodes,
    await_reachable,
    fetch_values,
    widen_request,
)
from dask_exo.errors import Failure, IntegrityError, OutOfMemoryError, OwnerUnreachableError
from dask_exo.execution import messages
from dask_exo.execution.accounting import (
    MemoryPressure,
    NodeWatch,
    OutputVersions,
    RunObserver,
    ShuffleAccounting,
    StoreSampler,
    mover_of,
    tasks_per_group,
)
from dask_exo.execution.actor_pool import ActorPools, PooledActor
from dask_exo.execution.admission import LoopState, bottleneck
from dask_exo.execution.batching import KnownStats, TaskStats, gather
from dask_exo.execution.persisted import POLL, Local, Promise, Remote
from dask_exo.execution.ready_queue import Consumer, HeldValues, ReadyQueue, RunAbandoned
from dask_exo.execution.shuffle_stage import RunningShuffles
from dask_exo.execution.submission import (
    TaskCall,
    build_jobs,
    raise_remote,
    receipts,
    serialize_call,
)
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle, Plan, Stage, labels, requests_of
from dask_exo.planning.plan_passes import PassContext, join_in_driver, run_passes

LOOK = 0.5  # seconds between two checks of whether the results are still wanted


class Run:
    """One computation: its plan after all passes, and the tasks in flight.

    A consumer receives results as they finish; without one, the first failure ends the run.

    Attributes
    ----------
    versions : OutputVersions
        Digests of the outputs of its tasks, and of its inputs from other runs.
    """

    def __init__(
        self,
        plan: Plan,
        context: PassContext,
        futures: Futures,
        *,
        watcher: RunObserver | None = None,
        consumer: Consumer | None = None,
        sampler: StoreSampler | None = None,
    ) -> None:
        nodes, config = context.nodes, context.config
        self._futures, self._config = futures, config
        # a call may continue with tasks that its own values make ready, unless callbacks watch them
        self._follow = context.fuse
        self._watcher, self._consumer, self._sampler = watcher or RunObserver(), consumer, sampler
        self._mover = mover_of(futures, plan)
        resources = _resources(nodes)
        self._labels = labels(plan.bundles)
        started = events.RunStarted(tasks_per_group(plan, self._labels))
        chosen = events.EngineChosen(context.engine.engine, context.engine.reason)
        seen = [replace(event, run=started.run, time=started.time) for event in plan.seen]
        self._first_events = (started, chosen, *seen, resources)
        self._pools = ActorPools(futures, plan, nodes)
        self._budget = int(config.memory_fraction * resources.store)
        self._values = HeldValues(plan.literals, futures.put)
        self.versions: OutputVersions = OutputVersions(futures.recomputed, config.nondeterminism)
        self._accounting = ShuffleAccounting(self.versions)
        self._nodes = NodeWatch(futures, plan, nodes, self._accounting, config.share)
        self._queue = ReadyQueue(plan, self._values, self._accounting, consumer)
        self._promises: dict[Key, Promise] = dict(plan.promises)
        self._in_flight: dict[Ref, TaskCall] = {}
        self._expected_bytes = 0
        self._bottleneck = ""  # of the first ready bundle; empty if none is
        self._shuffles = RunningShuffles(
            futures,
            plan.stages,
            self._pools,
            self._queue,
            self._values,
            self._accounting,
            config,
            self._watcher,
        )
        self._known = _known_stats[futures.shares_memory]
        self._of_actors = {b.group for b in plan.bundles if b.options.pool is not None}
        self._stats = defaultdict(TaskStats, self._known.recall(self._of_actors))
        self._probing: set[str] = set()  # groups of which the first tasks are in flight
        self._for_driver = set() if consumer or futures.shares_memory else plan.for_driver
        self._pressure = MemoryPressure(futures)
        self._watchdog = Watchdog(futures, config.stall_timeout)

    @classmethod
    def planned(
        cls,
        plan: Plan,
        context: PassContext,
        futures: Futures,
        *,
        watcher: RunObserver | None = None,
        consumer: Consumer | None = None,
        sampler: StoreSampler | None = None,
    ) -> Run:
        """Run all passes over a plan, for the nodes of the cluster; return the run of the result.

        Raises
        ------
        DeviceError
            No node has the GPUs that a task requests.
        OptionsError
            No node has the resources that a task requests.
        """
        requests = requests_of(plan, simulate=context.config.gpu_simulate)
        nodes = await_nodes(futures, requests, context.config.node_timeout)
        context = replace(context, nodes=nodes)
        plan = run_passes(plan, context)
        if consumer is None and not futures.shares_memory:
            plan = join_in_driver(plan)
        return cls(plan, context, futures, watcher=watcher, consumer=consumer, sampler=sampler)

    def results(self) -> dict[Key, Local | Remote]:
        """Run to the end; return the value or ref of each of the plan's results.

        Raise the exception of a task, one of `dask_exo.errors`, or `RunAbandoned` if the consumer
        does not want the results any more.
        """
        for event in self._first_events:
            events.emit(event)
        try:
            self._nodes.begin()
            self._limit()
            self._pools.open()
            while self._unfinished:
                self._shuffles.begin(self._next_stages)
                self._shuffles.advance()
                self._collect_promised()
                self._launch()
                self._observe()
                runnable = self._next_stages or self._shuffles.resumable
                if self._unfinished and not runnable:
                    self._collect_finished(self._wait())
                self._check_wanted()
            if self._config.shuffle_integrity:
                self._accounting.verify()
            self.versions.compare()
            self._known.remember({g: s for g, s in self._stats.items() if g in self._of_actors})
            return self._queue.finish()
        except BaseException as error:
            self._abandon()
            if isinstance(error, IntegrityError):  # perhaps a task ran again
                self.versions.compare()
            raise
        finally:
            self._pools.close()
            self._nodes.close()

    def _observe(self) -> None:
        """Look at nodes, stores and processors, each if it is time."""
        if (nodes := self._nodes.look()) is not None:
            self._resize(nodes)
        if self._sampler is not None:
            self._sampler.sample(self._progress)
        if self._mover is not None:
            self._mover.consider(self._queue.unfinished)

    def _resize(self, nodes: Sequence[Node]) -> None:
        """Use the nodes that the cluster has now."""
        resources = _resources(nodes)
        events.emit(resources)
        self._budget = int(self._config.memory_fraction * resources.store)
        self._pools.resize(nodes)
        self._shuffles.resize(nodes)
        self._limit()
        self._futures.rescue(self._values.refs)

    def _progress(self) -> tuple[int, str]:
        """Return the number of tasks in flight, and the bottleneck."""
        in_flight = len(self._in_flight) + self._shuffles.calls
        is_full = in_flight - self._pools.calls >= max(1, self._pools.slots)
        return in_flight, self._bottleneck or ("slots" if is_full else "input")

    def _limit(self) -> None:
        """Keep to the share of this program, if others compute, too."""
        self._pools.share = self._shuffles.share = self._nodes.share

    @property
    def _next_stages(self) -> list[Stage]:
        """Shuffles that may start; there is room if no task is left for an idle slot."""
        idle = len(self._in_flight) + self._shuffles.calls < self._pools.slots
        return self._shuffles.next_stages(room=idle and self._queue.first(None) is None)

    @property
    def _unfinished(self) -> bool:
        return bool(self._queue.unfinished or self._promises)

    def _check_wanted(self) -> None:
        if self._consumer and not self._consumer.is_wanted():
            raise RunAbandoned

    def _collect_promised(self) -> None:
        """Take values that other computations have finished."""
        for key, promise in list(self._promises.items()):
            if promise.known:
                self._watchdog.moved()
                del self._promises[key]
                try:
                    location = promise.location_on(self._futures)
                    if isinstance(location, Remote):
                        self.versions.record(location.digest)
                    self._queue.fulfil(key, location)
                except Exception as error:  # noqa: BLE001  the queue raises it, or a consumer takes it
                    self._queue.fail(key, error)

    def _launch(self) -> None:
        """Submit bundles while the policy admits them."""
        while True:
            self._bottleneck = ""
            for i, bundle in enumerate(self._queue.next_per_pool):
                reason = self._start(bundle, behind=i > 0)
                if not reason:
                    break
                self._bottleneck = self._bottleneck or reason
            else:
                if not (self._stuck and self._pools.stop_idle()):
                    return

    @property
    def _stuck(self) -> bool:
        """True if idle actors may occupy the resources that all other tasks wait for."""
        waiting = self._in_flight or self._shuffles.active or self._queue.stages
        return not self._pools.calls and (not waiting or self._pools.blocks_others)

    def _start(self, bundle: Bundle, *, behind: bool) -> str:
        """Submit a bundle with those that share its call, or return what it has to wait for."""
        pool = bundle.options.pool
        is_item = bundle.getitem and all(map(self._values.is_local, bundle.sources))
        if bundle.options.in_driver or (is_item and pool is None):  # an item is not worth a task
            self._run_here(self._queue.pop(pool))
            return ""
        stats = self._stats.get(bundle.group)
        busy, slots = self._pools.calls, self._pools.slots
        in_flight = max(0, len(self._in_flight) + self._shuffles.calls - busy)
        expected = stats.mean if stats is not None else 0
        stored_bytes, tight = self._values.nbytes, self._pressure.tight
        probing = bundle.group in self._probing
        view = LoopState(
            in_flight, slots, stored_bytes, self._expected_bytes, expected, behind, tight, probing
        )
        if pool is None:
            # a task that waits at a worker would keep it from other programs
            per_slot = self._config.tasks_per_slot if self._nodes.share == 1.0 else 1
            limits = {"tasks_per_slot": per_slot, "budget": self._budget}
            reason = bottleneck(view, **limits)
            if not reason:
                self._submit(None, slots)
            return reason
        actor = self._pools.acquire(
            pool,
            may_queue=view.fits(self._budget) and not probing,
            nothing_else=not in_flight and not busy,
        )
        if actor is None:
            return "an actor"
        self._submit(pool, self._pools.width(pool), actor)
        return ""

    def _run_here(self, bundle: Bundle) -> None:
        """Run a task in the driver."""
        if bundle.options.compares:
            self.versions.compare()
        get = partial(fetch_values, self._futures, limit=self._config.stall_timeout)
        read = {source: self._values.fetch(source, get) for source in bundle.sources}
        values = bundle.literals | {name: read[key] for name, key in bundle.inputs.items()}
        ((_, node),) = bundle.nodes
        self._queue.unfinished -= 1
        try:
            for value in read.values():
                if isinstance(value, Failure):  # of a promise
                    value.reraise()
            location = Local(node(values))
        except Exception as error:  # noqa: BLE001  the queue raises it, or a consumer takes it
            self._queue.fail(bundle.key, error)
            return
        self._watcher.started([bundle.key])
        self._watcher.finished(bundle.key, (), location)
        self._queue.fulfil(bundle.key, location)

    def _submit(
        self, pool: ResourceRequest | None, slots: int, actor: PooledActor | None = None
    ) -> None:
        """Submit the next bundle of a pool, and those that share its call."""
        bundles = gather(
            self._queue,
            self._stats,
            pool,
            slots=slots,
            target=self._config.bundle_target,
            budget=self._budget,
            follow=self._follow,
        )
        node = self._values.preferred_node(
            chain.from_iterable(bundle.sources for bundle in bundles)
        )
        read = [self._values.stored_bytes(bundle.sources) for bundle in bundles]
        jobs, args = build_jobs(bundles, self._values, check=self._config.checks)
        compares, sampled = self._config.compares, events.listening()
        code = messages.TaskCode(jobs, self._config.settings, compares, sampled)
        data = serialize_call(code, args, by_reference=self._futures.shares_memory)
        self._watcher.started(key for bundle in bundles for key, _ in bundle.nodes)
        if bundles[0].group not in self._stats:
            self._probing.add(bundles[0].group)
        returned = [bundle for job, bundle in zip(jobs, bundles, strict=True) if job.returned]
        stats = [self._stats.get(bundle.group) for bundle in returned]
        small: int | None = self._config.small_result
        if all(s is not None and s.largest <= self._config.small_result for s in stats):
            small = None
        expected = sum(s.mean for s in stats if s is not None)
        needs, keys = bundles[0].options.needs, [bundle.key for bundle in returned]
        self._send(TaskCall(bundles, data, args, read, keys, small, needs, node, expected, actor))

    def _send(self, call: TaskCall) -> None:
        self._expected_bytes += call.expected_bytes
        self._in_flight[call.send(self._futures)] = call

    def _wait(self) -> Collection[Ref]:
        refs = [*self._in_flight, *self._shuffles.refs]
        if self._promises and not refs:
            next(iter(self._promises.values())).pause()
            return []
        assert refs, "work is left, but nothing is ready and nothing is running"
        # values of other threads, and the consumer's interest in the results, have to be polled
        timeouts = [*self._shuffles.timeouts, self._pools.timeout(), self._nodes.timeout]
        timeouts.append(POLL if self._promises else LOOK if self._consumer else None)
        timeouts += [each.timeout for each in (self._sampler, self._mover) if each is not None]
        timeout = min((t for t in timeouts if t is not None), default=None)
        done, pending = self._watchdog.wait(refs, timeout, self._name)
        if pending:
            more, _ = self._futures.wait(pending, timeout=0)
            done.extend(more)
        return done

    def _name(self, ref: Ref) -> str:
        """Return the name of the task or shuffle that a ref belongs to."""
        call = self._in_flight.get(ref)
        return self._shuffles.name(ref) if call is None else repr(call.bundles[0].key)

    def _collect_finished(self, finished: Collection[Ref]) -> None:
        """Record the results of finished tasks; tell the shuffles which of theirs are done."""
        self._shuffles.finished(finished)
        calls = [ref for ref in finished if ref in self._in_flight]
        for ref, results in zip(calls, receipts(self._futures, calls, self._name), strict=True):
            call = self._in_flight.pop(ref)
            self._expected_bytes -= call.expected_bytes
            if isinstance(results, OutOfMemoryError):
                self._resubmit_wider(call, results)
                continue
            if isinstance(results, OwnerUnreachableError):
                await_reachable(self._futures, call.unreachable, results)
                call.unreachable += 1
                self._send(call)
                continue
            pool = call.bundles[0].options.pool
            if call.actor is not None and pool is not None:
                call.actor.failed |= any(receipt.failure is not None for receipt in results)
                self._pools.release(pool, call.actor, len(call.bundles))
            self._record(call, results)

    def _resubmit_wider(self, call: TaskCall, error: OutOfMemoryError) -> None:
        """Resubmit a task whose node ran out of memory, with more slots."""
        if call.actor is not None:  # it had its resources to itself, and Ray retried it
            raise error
        first = call.bundles[0]
        what = f"task {first.key!r}"
        call.needs = widen_request(call.needs, self._futures.nodes(), what, error)
        events.emit(events.GaveWay(self._labels[first.group], call.needs["num_cpus"]))
        self._send(call)

    def _record(self, call: TaskCall, results: Sequence[messages.JobReceipt]) -> None:
        several = len(results) > 1
        self._probing.discard(call.bundles[0].group)
        for i, (bundle, receipt) in enumerate(zip(call.bundles, results, strict=True)):
            self._queue.unfinished -= 1
            try:
                raise_remote(receipt)
            except Exception as error:  # noqa: BLE001  the queue raises it, or a consumer takes it
                self._queue.exempt(bundle)
                self._queue.fail(bundle.key, error)
                continue
            if i or not several or bundle.group not in self._stats:
                # the first bundle of a call includes costs that occur once per call
                self._stats[bundle.group].add(receipt.seconds, receipt.nbytes)
            self._accounting.add_assembled(receipt.assembled)
            work = receipt.seconds, receipt.checkpoint_seconds
            self._accounting.add_work(bundle.group, 1, *work)
            location: Local | Remote = Local(receipt.value)
            if not receipt.small:
                self.versions.record(receipt.digest)
                location = self._placed(bundle.key, call.refs.pop(bundle.key), receipt)
            self._watcher.finished(bundle.key, [key for key, _ in bundle.nodes], location)
            self._queue.fulfil(bundle.key, location)
        for event in call.finished(results, self._labels, self._config.small_result):
            events.emit(event)

    def _placed(self, key: Key, ref: Ref, receipt: messages.JobReceipt) -> Local | Remote:
        """Return where a value is; if it is for the driver, and there are many, move it there."""
        many = self._values.nbytes + receipt.nbytes > self._budget // 4
        if not many or key not in self._for_driver or self._values.has_readers(key, beside=1):
            return Remote(ref, receipt.nbytes, receipt.digest, receipt.rows)
        (value,) = fetch_values(self._futures, [ref], self._config.stall_timeout)
        return Local(owned(value, shared=False))

    def _abandon(self) -> None:
        """Cancel all tasks and drop all values."""
        self._futures.cancel([*self._in_flight, *self._shuffles.refs])
        self._shuffles.stop()
        self._in_flight.clear()
        self._values.clear()


_known_stats = {True: KnownStats(), False: KnownStats()}
"""Statistics of earlier computations, on threads of this process and on Ray."""


def _resources(nodes: Sequence[Node]) -> events.ResourcesSeen:
    return events.ResourcesSeen(
        len(nodes),
        sum(node.slots for node in nodes),
        sum(node.store for node in nodes),
        sum((node.resources or {}).get("GPU", 0.0) for node in nodes),
    )
