"""When a task is submitted, and to which actor: decisions from numbers alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dask_exo.cluster.resources import Amounts, has

AHEAD = 2  # calls of a worker at a time: the second one's inputs come while the first one runs


@dataclass(frozen=True)
class View:
    """What the driver knows when it could start a task.

    Attributes
    ----------
    in_flight : int
        Tasks that were started and have not finished.
    slots : int
        Tasks that the cluster runs side by side.
    held : int
        Bytes of the values that the driver holds refs of.
    promised : int
        Bytes that the tasks in flight are expected to return.
    expected : int
        Bytes that the next task is expected to return.
    behind : bool
        Whether tasks wait for a worker of their own that come before it in Dask's order.
    tight : bool
        Whether the memory of a machine is nearly full, by whatever.
    trying : bool
        Whether the first tasks of its group are in flight, so that soon it is known what one takes.
    """

    in_flight: int
    slots: int
    held: int
    promised: int
    expected: int
    behind: bool = False
    tight: bool = False
    trying: bool = False

    def fits(self, budget: int) -> bool:
        """Whether what the next task returns is within so many bytes."""
        return self.held + self.promised + self.expected <= budget


def lacking(in_flight: int, most: int, *, ready: bool) -> str:
    """Name what keeps more tasks from starting.

    Parameters
    ----------
    in_flight : int
        Tasks that were started and have not finished.
    most : int
        How many of them there may be.
    ready : bool
        Whether a task could start that was not started.

    Examples
    --------
    >>> lacking(6, 6, ready=True), lacking(2, 6, ready=True), lacking(2, 6, ready=False)
    ('slots', 'memory', 'input')
    """
    if in_flight >= most:
        return "slots"
    return "memory" if ready else "input"


def admit(view: View, *, tasks_per_slot: int, budget: int) -> bool:
    """Whether to start one more task.

    1. An idle cluster always gets a task: what does not fit is spilled, but nothing stalls.
    2. Where memory is nearly full, nothing else: what runs shall end, and not be killed.
    3. No more than ``tasks_per_slot`` tasks a slot are in flight; and one, of a group of which no
       task has ended yet: those that wait may share a call then.
    4. Within the byte budget; over it, one task a slot, since the tasks that free memory come
       first in Dask's order. Those that come after tasks which wait for a worker free nothing.

    Examples
    --------
    >>> full = View(in_flight=2, slots=2, held=90, promised=10, expected=5)
    >>> admit(full, tasks_per_slot=3, budget=100)
    False
    >>> admit(full, tasks_per_slot=3, budget=1000)
    True
    """
    if view.in_flight == 0 and not view.behind:
        return True
    if view.tight or view.in_flight >= view.slots * (1 if view.trying else tasks_per_slot):
        return False
    return view.fits(budget) or (view.in_flight < view.slots and not view.behind)


def fewer(had: float, most: int) -> int | None:
    """Slots that a task takes for itself after its node ran out of memory: half a node, then one.

    Parameters
    ----------
    had : float
        Those that it took.
    most : int
        Those of the largest node.

    Returns
    -------
    int or None
        None where it was alone already.

    Examples
    --------
    >>> fewer(1, 8), fewer(4, 8), fewer(8, 8), fewer(1, 2), fewer(1, 1)
    (4, 8, None, 2, None)
    """
    if had >= most:
        return None
    half = max(2, most // 2)
    return half if had < half else most


@dataclass(frozen=True)
class Crew:
    """Workers that have the same.

    Attributes
    ----------
    idle : int
        Those without a call.
    open : int
        Those with one, that could have another one waiting for them.
    count : int
        All.
    width : int
        How many there may be.
    """

    idle: int
    open: int
    count: int
    width: int


def lend(crew: Crew, *, room: bool, ahead: bool) -> Literal["idle", "new", "open"] | None:
    """Which worker takes the next call; None if it has to wait.

    Parameters
    ----------
    crew : Crew
    room : bool
        Whether there is what one more worker needs.
    ahead : bool
        Whether its inputs may be brought before they can be used.

    Examples
    --------
    >>> lend(Crew(idle=0, open=1, count=1, width=2), room=True, ahead=True)
    'new'
    >>> lend(Crew(idle=0, open=1, count=1, width=1), room=True, ahead=True)
    'open'
    """
    if crew.idle:
        return "idle"
    if room and crew.count < crew.width:
        return "new"
    return "open" if crew.open and ahead else None


def most_of(several: Iterable[Amounts]) -> dict[str, float]:
    """The largest amount of each resource."""
    found: dict[str, float] = {}
    for amounts in several:
        for name, amount in amounts.items():
            found[name] = max(amount, found.get(name, 0))
    return found


def fits(total: Amounts, held: Amounts, more: Amounts, reserve: Amounts) -> bool:
    """Whether ``more`` can be taken too, so that ``reserve`` is left of what it takes."""
    left = {name: total.get(name, 0) - held.get(name, 0) - reserve.get(name, 0) for name in more}
    return has(left, more)
