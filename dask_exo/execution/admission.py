"""When the driver starts the next task: decisions from numbers alone."""

from __future__ import annotations

from dataclasses import dataclass


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
