"""Speculation: map calls in flight, and second attempts of late ones on other nodes.

The attempt that finishes first wins: its blocks are the map output, its receipt is read. The other
one is cancelled. `dask_exo.shuffle.stragglers` decides which calls are late. An algorithm opts in
by ``allow_speculation=True`` where it takes maps.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps, Until, await_reachable, widen_request
from dask_exo.errors import OutOfMemoryError, OwnerUnreachableError
from dask_exo.shuffle import stragglers
from dask_exo.shuffle.spec import MapOutput, Owned, Receipt, Spec
from dask_exo.shuffle.stragglers import SpeculationPolicy

CHECKS = 8  # for finished calls within ``SpeculationPolicy.floor``, at most


@dataclass(slots=True, eq=False)
class SpeculativeAttempt:
    """Second attempt of a late map call."""

    blocks: list[Ref]
    receipt: Ref
    node: str | None


@dataclass(slots=True, eq=False)
class MapAttempt:
    """Map call in flight, for ``size`` parts."""

    receipt: Ref
    size: int
    node: str | None
    owned: Owned
    output: ref[MapOutput]  # its blocks, as long as the algorithm holds them
    row: MapOutput | None = None  # its blocks, if a speculative attempt may replace them
    args: tuple[Any, ...] = ()  # for a speculative attempt
    since: float | None = None  # estimated time when it got a slot: calls get slots in their order
    late: bool = False
    copy: SpeculativeAttempt | None = None
    needs: dict[str, Any] | None = None  # its options
    unreachable: int = 0  # attempts that could not read a value of this program


class MapConsumer(Protocol):
    """Task that reads map outputs: its last value, and those outputs that may still change."""

    end: Ref
    rows: list[MapOutput]


class MapAttempts:
    """Map calls in flight of one shuffle.

    Without a ``policy``, or with one node, there are no speculative attempts. ``consumers`` are
    other tasks of the shuffle that need slots.
    """

    def __init__(self, futures: Futures, spec: Spec, policy: SpeculationPolicy | None) -> None:
        self._futures, self._map, self._workers = futures, spec.map, spec.workers
        self._places = spec.places
        self._policy = policy or SpeculationPolicy()
        self.speculates: bool = policy is not None and len(spec.nodes) > 1 and spec.workers is None
        self._in_flight: list[MapAttempt] = []
        self._durations: list[float] = []
        self._times: dict[str, list[float]] = defaultdict(list)
        self._slow: frozenset[str] = frozenset()
        self.consumers: list[MapConsumer] = []
        self.unread = False  # no task reads an output before its map has finished
        self.needs: dict[str, Any] | None = None  # more slots, once a map has lacked memory

    @property
    def _slots(self) -> int:
        return self._places.slots

    @property
    def _nodes(self) -> dict[str, int]:
        return self._places.slots_of

    def __len__(self) -> int:
        """Count the calls in flight, except late ones up to one per slot."""
        late = sum(attempt.late for attempt in self._in_flight)
        return len(self._in_flight) - min(late, self._slots)

    @property
    def on_time(self) -> bool:
        """Return whether any call in flight is not late."""
        return any(not attempt.late for attempt in self._in_flight)

    def __bool__(self) -> bool:
        """Return whether any call is in flight."""
        return bool(self._in_flight)

    def start(
        self, row: MapOutput, args: tuple[Any, ...], *, node: str | None, allow_speculation: bool
    ) -> None:
        """Map the parts of a row, which gets the blocks; see `MapStage.take`."""
        if node is None and self._slow:
            node = self._choose_fast_node()
        *row[:], receipt = self._call(row.owned, args, node)
        attempt = MapAttempt(receipt, row.parts, node, row.owned, ref(row), needs=self.needs)
        if (self.speculates or self.unread) and allow_speculation and self._workers is None:
            attempt.row, attempt.args = row, args
        else:
            row.final = True
        self._in_flight.append(attempt)
        if self.speculates and (node is not None or len(self._in_flight) <= self._slots):
            self._note_starts()

    def wait(self, *, oldest: bool = False) -> Steps[None]:
        """Wait for all calls that are not late, or for the oldest one, until the next check."""
        refs = [attempt.receipt for attempt in self._in_flight if not attempt.late]
        yield self.wait_condition(refs[:1] if oldest else refs)

    def wait_condition(self, refs: Sequence[Ref]) -> Collection[Ref] | Until:
        """Return a condition that waits for ``refs`` and wakes up for late calls."""
        if not self.speculates:
            return refs
        late = [attempt for attempt in self._in_flight if attempt.late]
        copies = [attempt.copy.receipt for attempt in late if attempt.copy is not None]
        return Until(refs, [*(attempt.receipt for attempt in late), *copies], self._next_check())

    def collect_finished(self) -> list[tuple[Owned, int, Receipt]]:
        """Return packing, size and receipt of finished calls; start attempts of late ones."""
        refs = [attempt.receipt for attempt in self._in_flight]
        refs += [attempt.copy.receipt for attempt in self._in_flight if attempt.copy is not None]
        if not refs:
            return []
        done = set(self._futures.wait(refs, timeout=0)[0])
        finished: list[MapAttempt] = []
        in_flight: list[MapAttempt] = []
        for attempt in self._in_flight:
            is_finished = attempt.receipt in done or (attempt.copy and attempt.copy.receipt in done)
            (finished if is_finished else in_flight).append(attempt)
        self._in_flight = in_flight
        won_by_copy = [attempt for attempt in finished if attempt.receipt not in done]
        for attempt in finished:
            self._keep_first(attempt, copied=attempt in won_by_copy)
        receipts = self._receipts(finished)
        if len(receipts) < len(finished):  # some have been started again
            finished = [attempt for attempt in finished if attempt not in self._in_flight]
        for attempt, receipt in zip(finished, receipts, strict=True):
            if attempt.row is not None:
                attempt.row.final = True
            if (row := attempt.output()) is not None:
                row.sizes = receipt.sizes
            if attempt not in won_by_copy:
                self._record_duration(attempt, receipt)
        if self.speculates:
            self._launch_speculative()
        return [(f.owned, f.size, receipt) for f, receipt in zip(finished, receipts, strict=True)]

    def _receipts(self, finished: Sequence[MapAttempt]) -> list[Receipt]:
        """Return the receipts of calls; start those again that their nodes could not run."""
        try:
            return self._futures.get([attempt.receipt for attempt in finished])
        except (OutOfMemoryError, OwnerUnreachableError) as error:
            if len(finished) > 1:
                return [r for attempt in finished for r in self._receipts([attempt])]
            if finished[0].row is None:  # a merge reads its blocks already
                raise
            if isinstance(error, OwnerUnreachableError):
                await_reachable(self._futures, finished[0].unreachable, error)
                finished[0].unreachable += 1
            else:
                self._widen(finished[0], error)
            self._start_again(finished[0])
            return []

    def _widen(self, attempt: MapAttempt, error: OutOfMemoryError) -> None:
        """Request more slots for all further calls, so fewer neighbours."""
        nodes = self._futures.nodes()
        if attempt.needs == self.needs:  # it is the first of those that ran side by side
            self.needs = widen_request(self.needs, nodes, "a map of a shuffle", error)
            events.emit(events.GaveWay("map", self.needs["num_cpus"]))

    def _start_again(self, attempt: MapAttempt) -> None:
        assert attempt.row is not None
        *attempt.row[:], attempt.receipt = self._call(attempt.owned, attempt.args, None)
        attempt.needs, attempt.since, attempt.copy = self.needs, None, None
        attempt.node, attempt.late = None, False
        self._in_flight.append(attempt)

    def slow_nodes(self) -> frozenset[str]:
        """Return the slow nodes; from now on they get no maps if others can run them."""
        late = sum(attempt.late for attempt in self._in_flight)
        if self.speculates:
            self._slow = stragglers.slow_nodes(
                self._times, list(self._nodes), late=late, factor=self._policy.factor
            )
        return self._slow

    def _call(self, owned: Sequence[range], args: tuple[Any, ...], node: str | None) -> list[Ref]:
        if self._workers is not None:
            return self._workers(len(owned) + 1, self._map, owned, *args)
        node, options = self._places.prefer(node), self.needs
        return self._futures.split(
            len(owned) + 1, self._map, owned, *args, node=node, options=options
        )

    def _keep_first(self, attempt: MapAttempt, *, copied: bool) -> None:
        """Keep the blocks of the attempt that finished first; cancel the other one."""
        if attempt.copy is not None:
            self._futures.cancel([attempt.receipt if copied else attempt.copy.receipt])
            if copied and attempt.row is not None:
                attempt.row[:] = attempt.copy.blocks
                attempt.receipt = attempt.copy.receipt

    def _record_duration(self, attempt: MapAttempt, receipt: Receipt) -> None:
        if attempt.since is None:
            return
        seconds = (self._futures.now - attempt.since) / attempt.size
        self._durations.append(seconds)
        if receipt.node is not None:
            self._times[receipt.node].append(seconds)

    def _launch_speculative(self) -> None:
        """Mark late calls, and start speculative attempts of them."""
        now, running = self._futures.now, self._note_starts()
        since = {f: (f.since, f.size) for f in running if f.row is not None and f.since is not None}
        for attempt in stragglers.late(since, self._durations, now=now, policy=self._policy):
            attempt.late = True
        late = [f for f in self._in_flight if f.late and f.copy is None]
        if not late:
            return
        speculative = sum(f.copy is not None for f in self._in_flight)
        busy = len(self._in_flight) + speculative + self._ready_consumers()
        room = stragglers.speculation_budget(slots=self._slots, busy=busy, speculative=speculative)
        for attempt in late[:room]:
            assert attempt.row is not None
            node = self._choose_fast_node(attempt.node)
            *blocks, receipt = self._call(attempt.row.owned, attempt.args, node)
            attempt.copy = SpeculativeAttempt(blocks, receipt, node)
            events.emit(events.Recovered("late map run a second time"))

    def _ready_consumers(self) -> int:
        """Return the number of consumers whose inputs are ready."""
        if not self.consumers:
            return 0
        done = set(self._futures.wait([consumer.end for consumer in self.consumers], timeout=0)[0])
        self.consumers = [consumer for consumer in self.consumers if consumer.end not in done]
        return sum(all(row.final for row in consumer.rows) for consumer in self.consumers)

    def _note_starts(self) -> list[MapAttempt]:
        """Note the start of calls that run now; return those that run."""
        running = self._running(self._slots - self._ready_consumers())
        for attempt in running:
            attempt.since = self._futures.now if attempt.since is None else attempt.since
        return running

    def _running(self, slots: int) -> list[MapAttempt]:
        """Return the calls that presumably have a slot: the oldest ones, per requested node."""
        running: list[MapAttempt] = []
        load: Counter[str] = Counter()
        for attempt in self._in_flight:
            if len(running) >= slots:
                break
            if attempt.node is None or load[attempt.node] < self._nodes.get(attempt.node, 1):
                running.append(attempt)
                load.update([] if attempt.node is None else [attempt.node])
        return running

    def _choose_fast_node(self, excluded: str | None = None) -> str | None:
        """Return the least loaded of the nodes that have proved to be fast."""
        fast = {
            node: self._nodes[node]
            for node in self._times
            if node not in self._slow and node != excluded and node in self._nodes
        }
        load = Counter(attempt.node for attempt in self._in_flight)
        load.update(attempt.copy.node for attempt in self._in_flight if attempt.copy is not None)
        load_by_node = {node: n for node, n in load.items() if node is not None}
        return stragglers.least_loaded(load_by_node, fast) if fast else None

    def _next_check(self) -> float:
        pause = max(self._policy.floor / CHECKS, 0.001)
        now, usual = self._futures.now, stragglers.median_duration(self._durations)
        if usual is None:
            return now + pause
        due = [
            f.since + self._policy.allowance(usual, f.size)
            for f in self._running(self._slots)
            if not f.late and f.since is not None
        ]
        return min([now + max(pause, usual / 4), *(time for time in due if time > now)])
