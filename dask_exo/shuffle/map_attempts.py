"""Map calls in flight: which are late, and copies of those on other nodes.

Whichever call of a part ends first is the one that counts: its blocks stand in the row, its
receipt is read. The other one is cancelled and nobody hears of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref, Steps, Until
from dask_exo.shuffle import stragglers
from dask_exo.shuffle.merge_limits import Owned, Sizes
from dask_exo.shuffle.spec import Receipt, Row, Spec
from dask_exo.shuffle.stragglers import Patience

LOOKS = 8  # at what has finished, while nothing can be late, at most


@dataclass(slots=True, eq=False)
class Copy:
    """A second call of the same parts."""

    blocks: list[Ref]
    receipt: Ref
    node: str | None


@dataclass(slots=True, eq=False)
class Flight:
    """A map call that has not been heard of.

    Attributes
    ----------
    size : int
        Its parts.
    owned : (W,) ranges
        Reducers whose blocks it packs together.
    made : weak reference to Row
        Its blocks, as long as somebody else wants them.
    row : Row or None
        Its blocks, if a copy may replace them.
    args : tuple
        What a copy needs.
    since : float or None
        When it got a slot, as far as can be told: calls get slots in their order.
    late : bool
        Whether it is, and may be copied.
    """

    receipt: Ref
    size: int
    node: str | None
    owned: Owned
    made: ref[Row]
    row: Row | None = None
    args: tuple[Any, ...] = ()
    since: float | None = None
    late: bool = False
    copy: Copy | None = None


class Other(Protocol):
    """A task that takes rows: its last value, and those rows that may still change."""

    end: Ref
    rows: list[Row]


class Flights:
    """Map calls of one shuffle.

    Parameters
    ----------
    futures : Futures
    spec : Spec
    patience : Patience, optional
        Without it, or with one node, there are no copies.

    Attributes
    ----------
    watched : bool
        Whether there may be copies.
    others : list
        Other tasks of this shuffle, which want slots too.
    copies : int
        Made so far.
    sizes : Sizes
        What the receipts have told of the blocks.
    """

    def __init__(self, futures: Futures, spec: Spec, patience: Patience | None) -> None:
        self._futures, self._map, self._slots = futures, spec.map, spec.slots
        self._workers = spec.workers
        self._nodes = {node.id: node.slots for node in spec.nodes}
        self._patience = patience or Patience()
        self.watched = patience is not None and len(spec.nodes) > 1 and spec.workers is None
        self._flying: list[Flight] = []
        self._durations: list[float] = []
        self._times: dict[str, list[float]] = defaultdict(list)
        self._slow: frozenset[str] = frozenset()
        self.others: list[Other] = []
        self.sizes = Sizes()
        self.copies = 0

    def __len__(self) -> int:
        """Calls that somebody waits for: those that are late are not among them, up to a limit."""
        late = sum(flight.late for flight in self._flying)
        return len(self._flying) - min(late, self._slots)

    @property
    def punctual(self) -> bool:
        """Whether any call is in flight that is not late."""
        return any(not flight.late for flight in self._flying)

    def __bool__(self) -> bool:
        """Whether any call is in flight."""
        return bool(self._flying)

    def start(
        self,
        owned: Sequence[range],
        size: int,
        args: tuple[Any, ...],
        *,
        node: str | None,
        revisable: bool,
    ) -> Row:
        """Map some parts; see `Maps.take`."""
        if node is None and self._slow:
            node = self._quick()
        row = Row(owned, size)
        *row[:], receipt = self._call(owned, args, node)
        flight = Flight(receipt, size, node, row.owned, ref(row))
        if self.watched and revisable:
            flight.row, flight.args = row, args
        else:
            row.done = True
        self._flying.append(flight)
        if self.watched and (node is not None or len(self._flying) <= self._slots):
            self._mark()
        return row

    def wait(self, *, oldest: bool = False) -> Steps[None]:
        """Wait for all that are not late, or for the oldest one; not for too long."""
        refs = [flight.receipt for flight in self._flying if not flight.late]
        yield self.beside(refs[:1] if oldest else refs)

    def beside(self, refs: Sequence[Ref]) -> Collection[Ref] | Until:
        """What to wait for in order to see all of ``refs``, and to `land` in time."""
        if not self.watched:
            return refs
        late = [flight for flight in self._flying if flight.late]
        copies = [flight.copy.receipt for flight in late if flight.copy is not None]
        return Until(refs, [*(flight.receipt for flight in late), *copies], self._next_look())

    def land(self) -> list[tuple[int, Receipt]]:
        """Sizes and receipts of calls that have finished; afterwards, copy those that are late."""
        refs = [flight.receipt for flight in self._flying]
        refs += [flight.copy.receipt for flight in self._flying if flight.copy is not None]
        if not refs:
            return []
        done = set(self._futures.wait(refs, timeout=0)[0])
        landed: list[Flight] = []
        flying: list[Flight] = []
        for flight in self._flying:
            over = flight.receipt in done or (flight.copy and flight.copy.receipt in done)
            (landed if over else flying).append(flight)
        self._flying = flying
        copied = [flight for flight in landed if flight.receipt not in done]
        for flight in landed:
            self._decide(flight, copied=flight in copied)
        receipts: list[Receipt] = self._futures.get([flight.receipt for flight in landed])
        for flight, receipt in zip(landed, receipts, strict=True):
            self.sizes.note(flight.owned, flight.size, receipt.sizes, receipt.nbytes)
            if (row := flight.made()) is not None:
                row.sizes = receipt.sizes
        if self.watched:
            for flight, receipt in zip(landed, receipts, strict=True):
                self._measure(flight, receipt, copied=flight in copied)
            self._hurry()
        return [(f.size, receipt) for f, receipt in zip(landed, receipts, strict=True)]

    def slow(self) -> frozenset[str]:
        """Find the nodes that are slow; from now on they get no maps, where others can be asked."""
        late = sum(flight.late for flight in self._flying)
        if self.watched:
            self._slow = stragglers.slow(
                self._times, list(self._nodes), late=late, factor=self._patience.factor
            )
        return self._slow

    def _call(self, owned: Sequence[range], args: tuple[Any, ...], node: str | None) -> list[Ref]:
        if self._workers is not None:
            return self._workers(len(owned) + 1, self._map, owned, *args)
        return self._futures.split(len(owned) + 1, self._map, owned, *args, node=node)

    def _decide(self, flight: Flight, *, copied: bool) -> None:
        """Take the blocks of the call that was first; stop the other one."""
        if flight.copy is not None:
            self._futures.cancel([flight.receipt if copied else flight.copy.receipt])
            if copied and flight.row is not None:
                flight.row[:] = flight.copy.blocks
                flight.receipt = flight.copy.receipt
        if flight.row is not None:
            flight.row.done = True

    def _measure(self, flight: Flight, receipt: Receipt, *, copied: bool) -> None:
        if flight.since is None or copied:
            return
        seconds = (self._futures.now - flight.since) / flight.size
        self._durations.append(seconds)
        if receipt.node is not None:
            self._times[receipt.node].append(seconds)

    def _hurry(self) -> None:
        """Note what is late, and copy it."""
        now, running = self._futures.now, self._mark()
        known = {f: (f.since, f.size) for f in running if f.row is not None and f.since is not None}
        for flight in stragglers.late(known, self._durations, now=now, patience=self._patience):
            flight.late = True
        waiting = [f for f in self._flying if f.late and f.copy is None]
        if not waiting:
            return
        flying = sum(f.copy is not None for f in self._flying)
        busy = len(self._flying) + flying + self._ready()
        room = stragglers.copies(slots=self._slots, busy=busy, flying=flying)
        for flight in waiting[:room]:
            assert flight.row is not None
            node = self._quick(flight.node)
            *blocks, receipt = self._call(flight.row.owned, flight.args, node)
            flight.copy = Copy(blocks, receipt, node)
            self.copies += 1
            events.emit(events.Recovered("late map run a second time"))

    def _ready(self) -> int:
        """How many of the other tasks could run, or do."""
        if not self.others:
            return 0
        done = set(self._futures.wait([other.end for other in self.others], timeout=0)[0])
        self.others = [other for other in self.others if other.end not in done]
        return sum(all(row.done for row in other.rows) for other in self.others)

    def _mark(self) -> list[Flight]:
        """Note since when they run; return those that do."""
        running = self._running(self._slots - self._ready())
        for flight in running:
            flight.since = self._futures.now if flight.since is None else flight.since
        return running

    def _running(self, slots: int) -> list[Flight]:
        """Those that have slots, presumably: the oldest ones, on each node that was named."""
        running: list[Flight] = []
        load: Counter[str] = Counter()
        for flight in self._flying:
            if len(running) >= slots:
                break
            if flight.node is None or load[flight.node] < self._nodes.get(flight.node, 1):
                running.append(flight)
                load.update([] if flight.node is None else [flight.node])
        return running

    def _quick(self, but: str | None = None) -> str | None:
        """The node with the least to do of those that have shown to be quick."""
        able = {
            node: self._nodes[node]
            for node in self._times
            if node not in self._slow and node != but and node in self._nodes
        }
        load = Counter(flight.node for flight in self._flying)
        load.update(flight.copy.node for flight in self._flying if flight.copy is not None)
        known = {node: n for node, n in load.items() if node is not None}
        return stragglers.least_loaded(known, able) if able else None

    def _next_look(self) -> float:
        pause = max(self._patience.floor / LOOKS, 0.001)
        now, usual = self._futures.now, stragglers.usual(self._durations)
        if usual is None:
            return now + pause
        due = [
            f.since + self._patience.allowance(usual, f.size)
            for f in self._running(self._slots)
            if not f.late and f.since is not None
        ]
        return min([now + max(pause, usual / 4), *(time for time in due if time > now)])
