"""Refs, and the stores of simulated nodes: what is in memory, what on disk.

Tens of millions of refs must fit into one process, so a value costs one `SimRef`
(48 bytes), one `SimValue` (80) and one place in a queue (8), and nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_exo.testing.simulated.tasks import SimTask

PENDING, MEMORY, RESTORED, SPILLED, FAILED, FREED = range(6)


class StoreTotals:
    """Counters that the stores of one cluster share."""

    __slots__ = ("live", "moved", "objects", "peak_live", "restored", "spilled", "writes")

    def __init__(self) -> None:
        self.objects = self.live = self.peak_live = 0
        self.spilled = self.writes = self.restored = self.moved = 0

    def made(self, count: int) -> None:
        """Count new refs."""
        self.objects += count
        self.held(count)

    def wrote(self, nbytes: int) -> None:
        """Count a value that goes to disk."""
        self.spilled += nbytes
        self.writes += 1

    def held(self, count: int) -> None:
        """Count values that somebody begins to hold."""
        self.live += count
        self.peak_live = max(self.peak_live, self.live)


class SimValue:
    """One value of the cluster.

    Attributes
    ----------
    refs : int
        Handles to it; without one it is freed.
    size : int
        Bytes; 0 until it exists.
    state : int
        PENDING, MEMORY, RESTORED (in memory and on disk), SPILLED, FAILED or FREED.
    store : NodeStore
        Where it is; the driver's while it is nowhere.
    task : SimTask or None
        What makes it; None when nobody needs to know any more.
    value : object
        The value or, of a failed one, the exception.
    copies : set of NodeStore or None
        Other nodes that have fetched it.
    """

    __slots__ = ("copies", "refs", "size", "state", "store", "task", "value")

    def __init__(self, store: NodeStore, task: SimTask | None) -> None:
        self.refs = 1
        self.size = 0
        self.state = PENDING
        self.store = store
        self.task = task
        self.value: Any = None
        self.copies: set[NodeStore] | None = None


class IndexedSimValue(SimValue):
    """A `SimValue` that can be made again: it knows which output of its task it is."""

    __slots__ = ("index",)

    def __init__(self, store: NodeStore, task: SimTask | None, index: int) -> None:
        super().__init__(store, task)
        self.index = index


class SimRef:
    """A handle to a `SimValue`; the value is freed with the last one."""

    __slots__ = ("entry",)

    def __init__(self, entry: SimValue) -> None:
        self.entry = entry

    def __del__(self) -> None:
        entry = self.entry
        entry.refs -= 1
        if not entry.refs:
            entry.store.free(entry)


def handle(entry: SimValue) -> SimRef:
    """Make one more ref of a value."""
    entry.refs += 1
    if entry.refs == 1:
        entry.store.ledger.held(1)
    return SimRef(entry)


class NodeStore:
    """The object store of one node.

    What does not fit makes the oldest values that no running task takes go to disk; if
    that is not enough, a new value goes to disk itself, whereas an argument is read back
    in any case (`used` is then more than `capacity`).

    Parameters
    ----------
    capacity : int
        Bytes of memory.
    ledger : StoreTotals
        Counts for all nodes.
    listed : bool
        Whether all values must be known, because the node may die.

    Attributes
    ----------
    used, peak : int
        Bytes in memory, and the most there have been.
    """

    __slots__ = (
        "_age", "_count", "_parked", "_pins", "_released", "capacity", "ledger", "listed", "peak",
        "used",
    )  # fmt: skip

    def __init__(self, capacity: int, ledger: StoreTotals, *, listed: bool) -> None:
        self.capacity = capacity
        self.ledger = ledger
        self.listed: dict[SimValue, None] | None = {} if listed else None
        self.used = self.peak = 0
        self._count = 0
        # Oldest first; may hold freed entries, which are dropped when they are too many.
        self._age: deque[SimValue] = deque()
        self._pins: dict[SimValue, int] = {}
        # Pinned when others were spilled, so that a scan need not meet them again.
        self._parked: dict[SimValue, None] = {}
        self._released = False

    def add(self, entry: SimValue) -> None:
        """Store a new value: its size and value are set, somebody holds it."""
        entry.store = self
        if self.listed is not None:
            self.listed[entry] = None
        if self.spill_for(entry.size):
            self._keep(entry, MEMORY)
        else:
            entry.state = SPILLED
            self.ledger.wrote(entry.size)

    def free(self, entry: SimValue) -> None:
        """Forget a value that nobody holds any more."""
        self.ledger.live -= 1
        if entry.state in (MEMORY, RESTORED):
            self.used -= entry.size
            self._count -= 1
            if self._parked:
                self._parked.pop(entry, None)
        if entry.state in (MEMORY, RESTORED, SPILLED):
            entry.state, entry.value = FREED, None
        if self.listed is not None:
            self.listed.pop(entry, None)
        self._tidy()

    def lose(self) -> list[SimValue]:
        """Return, and forget, all values that somebody holds: the node is dead."""
        assert self.listed is not None
        lost = list(self.listed)
        self.listed.clear()
        self._age.clear()
        self._parked.clear()
        return lost

    def pin(self, entry: SimValue) -> None:
        """Do not spill a value while a task takes it."""
        self._pins[entry] = self._pins.get(entry, 0) + 1

    def unpin(self, entry: SimValue) -> None:
        """Undo one `pin`."""
        if self._pins[entry] > 1:
            self._pins[entry] -= 1
        else:
            del self._pins[entry]
            self._released = True

    def restore(self, entry: SimValue) -> int:
        """Read a value back from disk, if it is there, as the newest; return the bytes read."""
        if entry.state != SPILLED:
            return 0
        self.ledger.restored += entry.size
        self.spill_for(entry.size)
        self._keep(entry, RESTORED)
        return entry.size

    def spill_for(self, size: int) -> bool:
        """Spill the oldest values until ``size`` bytes are free; tell whether they are."""
        if self.used + size <= self.capacity:
            return True
        if self._released:
            self._released = False
            loose = [entry for entry in self._parked if entry not in self._pins]
            self._age.extendleft(reversed(loose))
            for entry in loose:
                del self._parked[entry]
        while self._age and self.used + size > self.capacity:
            entry = self._age.popleft()
            if entry in self._pins:
                self._parked[entry] = None
            elif self._holds(entry):
                if entry.state == MEMORY:  # the copy on disk of a restored value is still good
                    self.ledger.wrote(entry.size)
                entry.state = SPILLED
                self.used -= entry.size
                self._count -= 1
        return self.used + size <= self.capacity

    def _keep(self, entry: SimValue, state: int) -> None:
        entry.state = state
        self.used += entry.size
        self._count += 1
        self.peak = max(self.peak, self.used)
        self._age.append(entry)

    def _holds(self, entry: SimValue) -> bool:
        return entry.state in (MEMORY, RESTORED) and entry.store is self

    def _tidy(self) -> None:
        age = self._age
        while age and not self._holds(age[0]):
            age.popleft()
        if len(age) > 1.5 * self._count + 64:
            self._age = deque(entry for entry in age if self._holds(entry))


def fetched(entry: SimValue, store: NodeStore) -> int:
    """Bytes that a node has to fetch to read a value: none where it has a copy already.

    A node keeps copies of what fits the memory of its maker; where that spills, so will this one
    let go of them.
    """
    if entry.copies is not None and store in entry.copies:
        return 0
    if entry.state == MEMORY:
        entry.copies = {store, *(entry.copies or ())}
    return entry.size
