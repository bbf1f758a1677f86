"""Disks and networks of simulated nodes, and transfers of arguments over them.

As on Ray, a node brings the arguments of a task before the task gets a slot, and those of several
tasks ahead of their slots, as far as memory goes. Bytes pass a channel in the order in which
they were asked for:

- a value on the node's disk passes the disk, and comes back into the store;
- a value of another node passes that node's network and this one's, and that node's disk if it
  is there; it takes room here as long as tasks of this node take it;
- a value for which there is no room is not kept: each task that takes it reads it again;
- what has to make room passes the disk too, and whoever needs the room waits for it: an argument
  on its way, or a task that has made a value.

References: Ray's pull manager and its local object manager; Exoshuffle section 3.4.3.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dask_exo.testing.simulated.model import Channels
from dask_exo.testing.simulated.store import SPILLED, NodeStore, SimRef, SimValue, fetched

if TYPE_CHECKING:
    from dask_exo.testing.simulated.tasks import SimTask

AHEAD = 0.5  # of the store, for arguments of all tasks, before more are brought ahead


class Channel:
    """Bytes one after another, at one rate.

    Examples
    --------
    >>> disk = Channel(rate=10)
    >>> disk.use(now=0, nbytes=50), disk.use(now=1, nbytes=20), disk.use(now=9, nbytes=10)
    (5.0, 7.0, 10.0)
    """

    __slots__ = ("free", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free = 0.0

    def use(self, now: float, nbytes: int) -> float:
        """Let bytes pass after all others; return when the last one has."""
        self.free = max(now, self.free) + nbytes / self.rate
        return self.free


@dataclass(slots=True)
class Taken:
    """A value that tasks of a node take.

    Attributes
    ----------
    nbytes : int
    arrival : float
        When it is here.
    kept : bool
        Whether it is in memory until all of them have ended.
    lent : int
        Bytes of this node's store that it fills, though it is another node's.
    tasks : int
    """

    nbytes: int
    arrival: float
    kept: bool = True
    lent: int = 0
    tasks: int = 0


class NodeIO:
    """The channels of one life of a node, and what its tasks take.

    Parameters
    ----------
    channels : Channels
        Rates.
    store : NodeStore
        Of this node.
    lanes : dict
        Those of all nodes, by their stores.

    Attributes
    ----------
    ahead : dict
        Tasks whose arguments are on their way or there, and that have no slot.
    ready : deque of SimTask
        Those of them whose arguments are there.
    strangers : int
        Tasks on their way here that any node might have taken.
    """

    def __init__(
        self, channels: Channels, store: NodeStore, lanes: dict[NodeStore, NodeIO]
    ) -> None:
        self.disk = Channel(channels.disk)
        self.inward, self.outward = Channel(channels.net), Channel(channels.net)
        self.ahead: dict[SimTask, None] = {}
        self.ready: deque[SimTask] = deque()
        self.strangers = 0
        self._store, self._lanes = store, lanes
        self._taken: dict[SimValue, Taken] = {}
        self._nbytes = 0  # of all of them

    def has_room(self, task: SimTask) -> bool:
        """Return whether the arguments of one more task may be fetched."""
        new = sum(entry.size for entry in arguments(task) if entry not in self._taken)
        return not self.ahead or self._nbytes + new <= AHEAD * self._store.capacity

    def fetch(self, task: SimTask, now: float) -> float:
        """Fetch the arguments of a task; return the time of their arrival."""
        self.ahead[task] = None
        self.strangers += task.wish is None
        end = now
        for entry in arguments(task):
            taken = self._taken.get(entry) or self._order(task, entry, now)
            end = max(end, taken.arrival)
            if taken.kept:
                if not taken.tasks:
                    self._taken[entry] = taken
                    self._nbytes += taken.nbytes
                taken.tasks += 1
                entry.store.pin(entry)
                task.pinned.append((entry.store, entry))
        self._store.ledger.moved += task.moved
        return end

    def arrived(self, task: SimTask) -> None:
        """Let a task whose arguments are here wait for a slot."""
        self.strangers -= task.wish is None
        self.ready.append(task)

    def make_room(self, task: SimTask, which: range, now: float) -> float:
        """Reserve room for values that a task has made; return when it is free."""
        outs = [(task.outs[i], task.sizes[i]) for i in which]
        nbytes = sum(size for entry, size in outs if entry is not None and entry.refs)
        written, fits = self._written(nbytes)
        if fits:
            task.reserved = nbytes
            self._store.used += nbytes
        else:
            written += nbytes  # it goes to disk itself
        return self.disk.use(now, written) if written else now

    def release_room(self, task: SimTask) -> None:
        """Release the room that was reserved."""
        self._store.used -= task.reserved
        task.reserved = 0

    def leave(self, task: SimTask) -> None:
        """Let go of the arguments of a task that has ended, or will not run here."""
        self.release_room(task)
        if task in self.ahead:
            del self.ahead[task]
            if task in self.ready:
                self.ready.remove(task)
            else:
                self.strangers -= task.wish is None
        for _, entry in task.pinned:
            taken = self._taken[entry]
            taken.tasks -= 1
            if not taken.tasks:
                del self._taken[entry]
                self._nbytes -= taken.nbytes
                self._store.used -= taken.lent

    def _order(self, task: SimTask, entry: SimValue, now: float) -> Taken:
        """Fetch one value that no task of this node takes yet."""
        here = entry.store is self._store
        passing = entry.size if entry.state == SPILLED else 0
        nbytes = passing if here else fetched(entry, self._store)
        if not nbytes:
            return Taken(entry.size, now)
        written, kept = self._written(nbytes)
        ends = [now]
        if here:
            written += nbytes
        if written:
            ends.append(self.disk.use(now, written))
        if not here:
            task.moved += nbytes
            ends.append(self.inward.use(now, nbytes))
            owner = self._lanes.get(entry.store)
            if owner is not None:  # else it is the driver's
                ends.append(owner.outward.use(now, nbytes))
                if passing:
                    ends.append(owner.disk.use(now, nbytes))
            if kept:
                self._store.used += nbytes
        if passing:
            task.restored += nbytes
            if here and kept:
                self._store.restore(entry)
            else:
                self._store.ledger.restored += nbytes
        return Taken(nbytes, max(ends), kept, lent=nbytes if kept and not here else 0)

    def _written(self, nbytes: int) -> tuple[int, bool]:
        """Bytes that go to disk to make room, and whether there is room then."""
        before = self._store.ledger.spilled
        fits = self._store.spill_for(nbytes)
        return self._store.ledger.spilled - before, fits


def arguments(task: SimTask) -> dict[SimValue, None]:
    """Return the values that a task takes, each once."""
    return {arg.entry: None for arg in task.args if type(arg) is SimRef}
