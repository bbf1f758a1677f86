"""Account of a run: rows of shuffles, digests of outputs, memory, object stores, time and totals.

If a node is lost with a value that some tasks have read, the cluster recomputes the value for the
others. If the second value differs, the result is one that no run without a fault could have. Such
a result raises an error or a warning.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import psutil

from dask_exo import events
from dask_exo.cluster.futures import Futures, Node, StoreUsage
from dask_exo.cluster.handover import HandoverFutures
from dask_exo.cluster.object_storage import take_counts
from dask_exo.cluster.resources import amounts_of
from dask_exo.cluster.task_status import OutputDigest
from dask_exo.errors import ClusterError, IntegrityError, NonDeterminismError
from dask_exo.execution import messages
from dask_exo.execution.admission import Measured, reason_to_move, write_seconds
from dask_exo.execution.autoscaler import WorkLeft, wants_of
from dask_exo.execution.persisted import Local, Remote
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Plan, Stage
from dask_exo.shuffle.spec import Tally, verify

INTERVAL = 1.0  # seconds between two samples of memory or stores: on Ray, one takes 6 ms
RETRY_INTERVAL = 30.0  # seconds after a sample of stores that did not answer, as while a node dies
NODE_INTERVAL = 2.0  # seconds between two looks for nodes that have joined or left
MOVE_INTERVAL = 0.5  # seconds between two measurements of work on threads
TIGHT = 0.9  # of a machine's memory; Ray kills tasks at 0.95 of it by default


class OutputVersions:
    """Digests of the first outputs of calls, to compare recomputed ones with.

    ``recomputed`` is `Futures.recomputed`. The mode says how to react to a different output:
    ``"error"``, ``"warn"`` or ``"ignore"``.
    """

    def __init__(self, recomputed: Callable[[], Iterable[OutputDigest]], mode: str) -> None:
        self._recomputed, self._mode = recomputed, mode
        self._first_digests: dict[str, int] = {}

    def record(self, output: OutputDigest | None) -> None:
        """Record an output that tasks may read from now on."""
        if output is not None and output.digest is not None:
            self._first_digests.setdefault(output.call, output.digest)

    def compare(self) -> None:
        """Raise `NonDeterminismError`, or warn, if a call that ran again has another output."""
        if self._mode == "ignore" or not self._first_digests:
            return
        for output in self._recomputed():
            if output.digest not in (None, self._first_digests.get(output.call, output.digest)):
                text = _difference(output)
                if self._mode == "error":
                    raise NonDeterminismError(text)
                warnings.warn(text, stacklevel=2)


class ShuffleAccounting:
    """Account of the rows that shuffles sent and tasks assembled, and of the seconds it took."""

    done: Counter[str]
    seconds: Counter[str]

    def __init__(self, versions: OutputVersions) -> None:
        self.versions = versions
        self._sent: list[tuple[Stage, Tally]] = []
        self._assembled: dict[Key, Tally] = defaultdict(Tally)
        self._exempt: set[Key] = set()
        self._work, self._checkpoint_seconds = 0.0, 0.0
        # finished tasks, and their seconds, by group; by label for the maps of a shuffle
        self.done, self.seconds = Counter[str](), Counter[str]()

    def add_sent(self, stage: Stage, tally: Tally) -> None:
        """Record the rows that the maps of a shuffle sent."""
        self._sent.append((stage, tally))

    def add_assembled(self, tallies: Iterable[messages.AssembledTally]) -> None:
        """Add the rows that a task assembled."""
        for stage, tally in tallies:
            self._assembled[stage] += tally

    def add_work(
        self, group: str, count: int, seconds: float, checkpoint_seconds: float = 0.0
    ) -> None:
        """Add ``count`` finished tasks, of whose seconds some went into checkpoints."""
        self.done[group] += count
        self.seconds[group] += seconds  # type: ignore[assignment]
        self._work += seconds
        self._checkpoint_seconds += checkpoint_seconds

    def should_checkpoint(self, stage: Stage, nbytes: int) -> bool:
        """Decide whether to checkpoint the outputs of a shuffle; if so, add the time it takes."""
        if stage.checkpoint is None:
            return False
        worth = stage.checkpoint.worth(nbytes, self._work, self._checkpoint_seconds)
        self._checkpoint_seconds += write_seconds(nbytes) if worth else 0.0
        events.emit(events.CheckpointDecided(stage.name, worth, nbytes, self._work))
        return worth

    def exempt(self, stage: Key) -> None:
        """Exclude a shuffle from `verify`: a task failed that would have assembled its outputs."""
        self._exempt.add(stage)

    def verify(self) -> None:
        """Compare both sides of every shuffle; raise `IntegrityError` where they differ."""
        for stage, sent in self._sent:
            if stage.key in self._exempt:
                continue
            try:
                name = f"shuffle {stage.name} ({stage.key[0]})"
                verify(name, sent, self._assembled[stage.key])
            except IntegrityError:
                if stage.checkpoint is not None:
                    stage.checkpoint.forget()  # no later program may read it
                raise


def _difference(output: OutputDigest) -> str:
    return (
        f"a task {output.name!r} ran again, since a worker or a node was lost, and "
        f"returned a different output: tasks may have read both versions of its {output.parts} "
        f"partition(s). "
        f"Make it depend on its arguments only: no clock, no random numbers without a seed, no "
        f"outside state. If the difference does not matter, set exo.fault.nondeterminism to "
        f"'warn' or 'ignore'"
    )


class RunObserver:
    """Observer of the graph's nodes; this one ignores all calls."""

    def started(self, keys: Iterable[Key]) -> None:
        """Receive the keys of submitted nodes."""

    def finished(self, key: Key, inner: Iterable[Key], location: Local | Remote | None) -> None:
        """Receive a finished node, those fused into it, and the location of its value, if any."""


def stage_keys(stage: Stage) -> list[Key]:
    """Return the keys of the nodes that a shuffle runs."""
    return [stage.key, *(key for part in stage.parts for key, _ in part.nodes)]


def tasks_per_group(work: Plan, labels: Mapping[str, str]) -> dict[str, int]:
    """Return the number of tasks under each of the labels, and of maps of each shuffle."""
    groups = Counter(labels[bundle.group] for bundle in work.bundles)
    groups.update({stage.label: len(stage.parts) for stage in work.stages})
    return dict(groups)


class StoreSampler:
    """Samples of the object stores while a run goes on; ``closely``: before and after it, too.

    That slows short runs down, so without it only longer runs know how much was spilled.
    """

    def __init__(self, futures: Futures, *, closely: bool) -> None:
        self._futures = futures
        self._before: StoreUsage | None = None
        self._last: StoreUsage | None = None
        self._due = futures.now + INTERVAL / 2
        if closely:
            self._read()

    @property
    def timeout(self) -> float:
        """Return the seconds until the next sample."""
        return max(0.0, self._due - self._futures.now)

    def sample(self, progress: Callable[[], tuple[int, str]]) -> None:
        """Emit `events.ClusterSeen` if due; ``progress`` returns tasks in flight, bottleneck."""
        if self.timeout > 0:
            return
        self._due = self._futures.now + INTERVAL
        before, store = self._last, self._read()
        if store is not None:
            in_flight, waits = progress()
            if waits == "memory" and before is not None:  # values move to the disk, or return
                same = (store.spilled, store.restored) == (before.spilled, before.restored)
                waits = waits if same else "disk"
            usage = store.used, store.spilled, store.restored
            events.emit(events.ClusterSeen(*usage, in_flight, waits))

    def spilled(self, *, at_end: bool) -> tuple[int, int]:
        """Return bytes spilled and restored since the first sample; take a last one ``at_end``."""
        if self._before is None:
            return 0, 0
        after = (self._read() if at_end else None) or self._last or self._before
        return after.spilled - self._before.spilled, after.restored - self._before.restored

    def _read(self) -> StoreUsage | None:
        """Sample the stores; if they do not answer, wait longer until the next sample."""
        try:
            self._last = self._futures.store()
        except ClusterError:
            self._due = self._futures.now + RETRY_INTERVAL
            return None
        self._before = self._before or self._last
        return self._last


@contextlib.contextmanager
def observed(futures: Futures) -> Iterator[StoreSampler]:
    """Give a run a number, sample the object stores meanwhile, and emit its totals at its end."""
    closely = events.listening()
    with events.new_run():
        start, sampler = time.perf_counter(), StoreSampler(futures, closely=closely)
        calls, objects, recomputed = futures.calls, futures.objects, len(futures.recomputed())
        failed = True
        try:
            yield sampler
            failed = False
        finally:
            counts = Counter[str]()
            for output in futures.recomputed()[recomputed:]:
                counts[output.name] += output.parts
            if counts:
                events.emit(events.CallsRepeated(dict(counts)))
            spilled, restored = sampler.spilled(at_end=not failed)
            events.emit(
                events.RunFinished(
                    time.perf_counter() - start,
                    futures.calls - calls,
                    futures.objects - objects,
                    spilled,
                    restored,
                    failed,
                    take_counts(),
                )
            )


class NodeWatch:
    """The nodes of an elastic cluster while a run goes on, and its demand for more."""

    def __init__(
        self,
        futures: Futures,
        plan: Plan,
        nodes: Sequence[Node],
        accounting: ShuffleAccounting,
        weight: float,
    ) -> None:
        self._futures, self._accounting, self._weight = futures, accounting, weight
        self._who, self._asked = f"run {uuid.uuid4().hex}", False
        self._last = {node.id for node in nodes}
        self._due = futures.now + NODE_INTERVAL
        self.share: float = 1.0  # of the slots, that the run may use
        units = [(bundle.group, bundle.options, 1) for bundle in plan.bundles]
        units += [(stage.label, stage.options, len(stage.parts)) for stage in plan.stages]
        self._total = Counter[str]()
        for group, _, count in units:
            self._total[group] += count
        self._options = {group: options for group, options, _ in units}

    @property
    def timeout(self) -> float | None:
        """Return the seconds until the next look; None if nodes neither join nor leave."""
        return max(0.0, self._due - self._futures.now) if self._futures.elastic else None

    def begin(self) -> None:
        """Take a share of the cluster."""
        if self._futures.elastic:
            self.share = self._futures.share(self._who, self._weight)

    def look(self) -> list[Node] | None:
        """If it is time, ask for nodes; return the nodes if they, or its share, have changed."""
        if self.timeout != 0.0:
            return None
        self._due = self._futures.now + NODE_INTERVAL
        share = self.share
        try:
            self.begin()
            self._asked = self._futures.ask(self._who, wants_of(self._left())) or self._asked
            nodes = self._futures.nodes()
        except ClusterError:  # it does not answer, or has no node: either may change
            return None
        before, self._last = self._last, {node.id for node in nodes}
        return None if before == self._last and share == self.share else nodes

    def close(self) -> None:
        """Take the demand back."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            if self._futures.elastic:
                self._futures.share(self._who, 0.0)
            if self._asked:
                self._futures.ask(self._who, {})

    def _left(self) -> Iterator[WorkLeft]:
        done, seconds = self._accounting.done, self._accounting.seconds
        for group, options in self._options.items():
            most = None if options.request is None else options.request.max_actors
            left = max(0, self._total[group] - done[group])
            yield WorkLeft(amounts_of(options.needs), left, done[group], seconds[group], most)


class MemoryPressure:
    """Samples of the memory of all machines, at most one a second."""

    def __init__(self, futures: Futures) -> None:
        self._futures = futures
        self._until, self._tight = futures.now, False

    @property
    def tight(self) -> bool:
        """Return whether the memory of a machine is nearly full, as of at most a second ago."""
        if self._futures.now >= self._until:
            used = self._futures.memory()
            self._tight = used is not None and used >= TIGHT
            self._until = self._futures.now + INTERVAL
        return self._tight


def mover_of(futures: Futures, plan: Plan) -> Mover | None:
    """Return a mover for a run that may move, else None."""
    return Mover(futures, plan) if isinstance(futures, HandoverFutures) else None


class Mover:
    """Measures one computation on threads, and moves it to Ray if that is worth it."""

    def __init__(self, futures: HandoverFutures, plan: Plan) -> None:
        self._futures = futures
        self._units = len(plan.bundles) + len(plan.stages)
        parts = [part for stage in plan.stages for part in stage.parts]
        self._samples = {bundle.group: bundle.nodes for bundle in [*plan.bundles, *parts]}
        self._measured = Measured()
        self._spilled = futures.local.store().spilled
        self._begin = self._last = time.perf_counter()
        self._cpu, self._idle, self._busy = time.process_time(), _idle_seconds(), 0.0
        self._reason = ""
        self._told = False

    @property
    def timeout(self) -> float | None:
        """Return the seconds until the next measurement; None if there will be none."""
        return None if self._told else MOVE_INTERVAL

    def consider(self, left: int) -> None:
        """Measure; move if that is worth it, and tell when it is done.

        ``left`` is the number of bundles and shuffles that have not finished.
        """
        if not self._reason:
            self._measure(left)
            reason = reason_to_move(self._measured)
            if reason and all(map(messages.is_picklable, self._samples.values())):
                self._reason = reason
                self._futures.move()
        elif not self._told and not self._futures.shares_memory:
            self._told = True
            events.emit(events.EngineChosen("ray", f"{self._reason}: moved from threads"))

    def _measure(self, left: int) -> None:
        now, cpu, idle = time.perf_counter(), time.process_time(), _idle_seconds()
        seconds, before, store = now - self._last, self._measured, self._futures.local.store()
        self._measured = replace(
            before,
            seconds=now - self._begin,
            done=self._units - left,
            left=left,
            spilled=store.spilled - self._spilled,
        )
        if self._busy >= 2:
            self._measured = replace(
                self._measured,
                parallel=before.parallel + seconds,
                held=before.held + seconds * self._busy,
                cpu=before.cpu + cpu - self._cpu,
                idle=before.idle + idle - self._idle,
            )
        self._last, self._cpu, self._idle = now, cpu, idle
        self._busy = self._futures.local.busy


def _idle_seconds() -> float:
    """Return the seconds that the processors of this machine were idle, all together."""
    return float(psutil.cpu_times().idle)
