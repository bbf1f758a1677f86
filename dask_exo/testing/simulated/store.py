"""Refs, stores and channels of simulated nodes: what is in memory, on disk, or on its way.

Tens of millions of refs must fit into one process, so a value costs one `SimRef`
(48 bytes), one `SimValue` (80) and one place in a queue (8), and nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_exo.testing.simulated.tasks import Channels, SimTask

PENDING, MEMORY, RESTORED, SPILLED, FAILED, FREED = range(6)  # RESTORED: in memory and on disk


@dataclass(slots=True, eq=False)
class StoreTotals:
    """Counters of a whole cluster since its beginning.

    ``objects`` are refs made; ``live`` are values with holders, a task that is to take them
    included. ``spilled``, ``restored`` and ``moved`` are bytes written to disk, read back, and
    taken by tasks from another node. ``writes`` are values written to disk.
    """

    objects: int = 0
    live: int = 0
    peak_live: int = 0
    spilled: int = 0
    writes: int = 0
    restored: int = 0
    moved: int = 0

    def count_refs(self, count: int) -> None:
        """Count new refs."""
        self.objects += count
        self.count_live(count)

    def count_spill(self, nbytes: int) -> None:
        """Count a value that is written to disk."""
        self.spilled += nbytes
        self.writes += 1

    def count_live(self, count: int) -> None:
        """Count values that get their first holder."""
        self.live += count
        self.peak_live = max(self.peak_live, self.live)


@dataclass(slots=True, eq=False, repr=False)
class SimValue:
    """One value of the cluster."""

    store: NodeStore  # that of the driver until it exists
    task: SimTask | None
    refs: int = 1  # its handles; without one it is freed
    size: int = 0  # until it exists
    state: int = PENDING
    value: Any = None  # the exception of a failed one
    copies: set[NodeStore] | None = None  # other nodes that have fetched it


class IndexedSimValue(SimValue):
    """A `SimValue` that can be recomputed: it knows which output of its task it is."""

    __slots__ = ("index",)

    def __init__(self, store: NodeStore, task: SimTask | None, index: int) -> None:
        super().__init__(store, task)
        self.index: int = index


class SimRef:
    """A handle to a `SimValue`; the value is freed with the last one."""

    __slots__ = ("entry",)

    def __init__(self, entry: SimValue) -> None:
        self.entry: SimValue = entry

    def __del__(self) -> None:
        entry = self.entry
        entry.refs -= 1
        if not entry.refs:
            entry.store.free(entry)


def handle(entry: SimValue) -> SimRef:
    """Return one more ref of a value."""
    entry.refs += 1
    if entry.refs == 1:
        entry.store.ledger.count_live(1)
    return SimRef(entry)


class NodeStore:
    """The object store of one node.

    When it is full, the oldest values that no running task takes are written to disk. If that is
    not enough, a new value goes to disk itself, whereas an argument is read back in any case
    (`used` is then more than `capacity`). All values are ``listed`` if the node may die.
    """

    __slots__ = (
        "_by_age", "_count", "_parked", "_pins", "_released", "capacity", "ledger", "listed",
        "peak", "used",
    )  # fmt: skip

    used: int
    peak: int

    def __init__(self, capacity: int, ledger: StoreTotals, *, listed: bool) -> None:
        self.capacity: int = capacity
        self.ledger: StoreTotals = ledger
        self.listed: dict[SimValue, None] | None = {} if listed else None
        self.used = self.peak = 0
        self._count = 0
        # Oldest first; may hold freed entries, which are dropped when they are too many.
        self._by_age: deque[SimValue] = deque()
        self._pins: dict[SimValue, int] = {}
        # Pinned when others were spilled, so that a scan need not meet them again.
        self._parked: dict[SimValue, None] = {}
        self._released = False

    def add(self, entry: SimValue) -> None:
        """Store a new value, whose size and value are set."""
        entry.store = self
        if self.listed is not None:
            self.listed[entry] = None
        if self.spill_for(entry.size):
            self._insert(entry, MEMORY)
        else:
            entry.state = SPILLED
            self.ledger.count_spill(entry.size)

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

    def drop_all(self) -> list[SimValue]:
        """Forget and return all values that have holders: the node is dead."""
        assert self.listed is not None
        lost = list(self.listed)
        self.listed.clear()
        self._by_age.clear()
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
        """Read a value back from disk, if it is there; return the bytes read."""
        if entry.state != SPILLED:
            return 0
        self.ledger.restored += entry.size
        self.spill_for(entry.size)
        self._insert(entry, RESTORED)
        return entry.size

    def spill_for(self, size: int) -> bool:
        """Spill the oldest values until ``size`` bytes are free; return whether they are."""
        if self.used + size <= self.capacity:
            return True
        if self._released:
            self._released = False
            unpinned = [entry for entry in self._parked if entry not in self._pins]
            self._by_age.extendleft(reversed(unpinned))
            for entry in unpinned:
                del self._parked[entry]
        while self._by_age and self.used + size > self.capacity:
            entry = self._by_age.popleft()
            if entry in self._pins:
                self._parked[entry] = None
            elif self._holds(entry):
                if entry.state == MEMORY:  # the copy on disk of a restored value is still good
                    self.ledger.count_spill(entry.size)
                entry.state = SPILLED
                self.used -= entry.size
                self._count -= 1
        return self.used + size <= self.capacity

    def _insert(self, entry: SimValue, state: int) -> None:
        entry.state = state
        self.used += entry.size
        self._count += 1
        self.peak = max(self.peak, self.used)
        self._by_age.append(entry)

    def _holds(self, entry: SimValue) -> bool:
        return entry.state in (MEMORY, RESTORED) and entry.store is self

    def _tidy(self) -> None:
        age = self._by_age
        while age and not self._holds(age[0]):
            age.popleft()
        if len(age) > 1.5 * self._count + 64:
            self._by_age = deque(entry for entry in age if self._holds(entry))


def fetched(entry: SimValue, store: NodeStore) -> int:
    """Return the bytes that a node fetches to read a value: none if it has a copy.

    A node keeps copies of values that fit the memory of their maker.
    """
    if entry.copies is not None and store in entry.copies:
        return 0
    if entry.state == MEMORY:
        entry.copies = {store, *(entry.copies or ())}
    return entry.size


AHEAD_FRACTION = 0.5  # of the store, for arguments of all tasks, before more are brought ahead


@dataclass(slots=True, eq=False)
class Channel:
    """Bytes one after another, at one rate."""

    rate: float
    seek: float = 0.0
    free: float = 0.0

    def use(self, now: float, nbytes: int, seeks: int = 0) -> float:
        """Let bytes pass after all others, found by so many seeks; return when the last one has."""
        self.free = max(now, self.free) + nbytes / self.rate + seeks * self.seek
        return self.free


@dataclass(slots=True)
class FetchedArgument:
    """An argument of tasks of a node."""

    nbytes: int
    arrival: float
    in_memory: bool = True  # until all of these tasks have ended
    copied: int = 0  # bytes of this node's store, if the value is another node's
    tasks: int = 0


class NodeIO:
    """The channels of one life of a node, and the arguments of its tasks.

    As on Ray, a node fetches the arguments of a task before the task gets a slot, and those of
    several tasks ahead of their slots, as far as memory goes. Bytes pass a channel in the order of
    requests:

    - a value on the node's disk passes the disk, and is stored again;
    - a value of another node passes both networks, and the disk of that node if it is there; it
      takes room here as long as tasks of this node take it;
    - a value for which there is no room is not stored: each task that takes it reads it again;
    - what is spilled to make room passes the disk too, and whoever needs the room waits for it.

    References: Ray's pull manager and local object manager; Exoshuffle section 3.4.3.
    """

    inward: Channel
    outward: Channel

    def __init__(
        self, channels: Channels, store: NodeStore, all_io: dict[NodeStore, NodeIO]
    ) -> None:
        self.disk: Channel = Channel(channels.disk, channels.seek)
        self.inward, self.outward = Channel(channels.net), Channel(channels.net)
        self.ahead: dict[SimTask, None] = {}  # without a slot; arguments in transfer or here
        self.ready: deque[SimTask] = deque()  # those whose arguments are here
        self.unplaced: int = 0  # those in transfer that requested no node
        self._store, self._all_io = store, all_io
        self._arguments: dict[SimValue, FetchedArgument] = {}
        self._nbytes = 0  # of all of them

    def has_room(self, task: SimTask) -> bool:
        """Return whether the arguments of one more task may be fetched."""
        new = sum(entry.size for entry in arguments(task) if entry not in self._arguments)
        return not self.ahead or self._nbytes + new <= AHEAD_FRACTION * self._store.capacity

    def fetch(self, task: SimTask, now: float) -> float:
        """Fetch the arguments of a task; return the time of their arrival."""
        self.ahead[task] = None
        self.unplaced += task.target is None
        end = now
        for entry in arguments(task):
            argument = self._arguments.get(entry) or self._fetch_value(task, entry, now)
            end = max(end, argument.arrival)
            if argument.in_memory:
                if not argument.tasks:
                    self._arguments[entry] = argument
                    self._nbytes += argument.nbytes
                argument.tasks += 1
                entry.store.pin(entry)
                task.pinned.append((entry.store, entry))
        self._store.ledger.moved += task.moved
        return end

    def arrived(self, task: SimTask) -> None:
        """Let a task whose arguments have arrived wait for a slot."""
        self.unplaced -= task.target is None
        self.ready.append(task)

    def make_room(self, task: SimTask, indices: range, now: float) -> float:
        """Reserve room for outputs of a task; return the time at which it is free."""
        outputs = [(task.outputs[i], task.sizes[i]) for i in indices]
        nbytes = sum(size for entry, size in outputs if entry is not None and entry.refs)
        write_bytes, fits = self._spill_for(nbytes)
        if fits:
            task.reserved = nbytes
            self._store.used += nbytes
        else:
            write_bytes += nbytes  # it goes to disk itself
        return self.disk.use(now, write_bytes) if write_bytes else now

    def release_room(self, task: SimTask) -> None:
        """Release the room that was reserved."""
        self._store.used -= task.reserved
        task.reserved = 0

    def leave(self, task: SimTask) -> None:
        """Release the arguments of a task that has ended, or will not run here."""
        self.release_room(task)
        if task in self.ahead:
            del self.ahead[task]
            if task in self.ready:
                self.ready.remove(task)
            else:
                self.unplaced -= task.target is None
        for _, entry in task.pinned:
            argument = self._arguments[entry]
            argument.tasks -= 1
            if not argument.tasks:
                del self._arguments[entry]
                self._nbytes -= argument.nbytes
                self._store.used -= argument.copied

    def _fetch_value(self, task: SimTask, entry: SimValue, now: float) -> FetchedArgument:
        """Fetch one value that no task of this node takes yet."""
        is_local = entry.store is self._store
        disk_bytes = entry.size if entry.state == SPILLED else 0
        nbytes = disk_bytes if is_local else fetched(entry, self._store)
        if not nbytes:
            return FetchedArgument(entry.size, now)
        write_bytes, in_memory = self._spill_for(nbytes)
        ends = [now]
        if is_local:
            write_bytes += nbytes
        if write_bytes:
            ends.append(self.disk.use(now, write_bytes, is_local))
        if not is_local:
            task.moved += nbytes
            ends.append(self.inward.use(now, nbytes))
            owner = self._all_io.get(entry.store)
            if owner is not None:  # else it is the driver's
                ends.append(owner.outward.use(now, nbytes))
                if disk_bytes:
                    ends.append(owner.disk.use(now, nbytes, 1))
            if in_memory:
                self._store.used += nbytes
        if disk_bytes:
            task.restored += nbytes
            if is_local and in_memory:
                self._store.restore(entry)
            else:
                self._store.ledger.restored += nbytes
        copied = nbytes if in_memory and not is_local else 0
        return FetchedArgument(nbytes, max(ends), in_memory, copied)

    def _spill_for(self, nbytes: int) -> tuple[int, bool]:
        """Return the bytes spilled to make room, and whether there is room then."""
        before = self._store.ledger.spilled
        fits = self._store.spill_for(nbytes)
        return self._store.ledger.spilled - before, fits


def arguments(task: SimTask) -> dict[SimValue, None]:
    """Return the values that a task takes, each once."""
    return {arg.entry: None for arg in task.args if type(arg) is SimRef}
