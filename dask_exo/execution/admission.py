"""Decisions of the loop from numbers alone: to submit, to write checkpoints, to move to Ray."""

from __future__ import annotations

from dataclasses import dataclass

START = 4.0  # seconds that a private Ray takes to start
WORTH = 3 * START  # seconds of work that has to be left: on two cores, Ray halves them at best
SAMPLE = 2.0  # seconds with several tasks at once that have to be measured
HELD = 0.6  # share of its slots' processor time below which tasks hold each other back
ONE_CORE = 0.8  # of a core; tasks that use less wait for something else
IDLE = 0.2  # share of that time that processors are idle; else other programs hold tasks back


@dataclass(frozen=True)
class LoopState:
    """Numbers by which the driver decides whether to submit a task."""

    in_flight: int  # tasks that were submitted and have not finished
    slots: int  # tasks that the cluster runs at the same time
    stored_bytes: int  # of the values that the driver holds refs of
    in_flight_bytes: int  # expected, of the outputs of tasks in flight
    next_bytes: int  # expected, of the next task's output
    behind: bool = False  # tasks that come earlier in Dask's order wait for an actor
    tight: bool = False  # the memory of a machine is nearly full, for any reason
    probing: bool = False  # the first tasks of the group are in flight: durations are not known yet

    def fits(self, budget: int) -> bool:
        """Return whether the output of the next task fits into the byte budget."""
        return self.stored_bytes + self.in_flight_bytes + self.next_bytes <= budget


def bottleneck(view: LoopState, *, tasks_per_slot: int, budget: int) -> str:
    """Return what a ready task has to wait for; nothing if it is to be submitted.

    1. An idle cluster always gets a task: what does not fit is spilled, but nothing stalls.
    2. Where memory is nearly full, no more tasks: running ones must end before they are killed.
    3. At most ``tasks_per_slot`` tasks per slot are in flight, and one per slot as long as no task
       of the group has finished: those that wait may then share a call.
    4. Within the byte budget. Above it, one task per slot, since the tasks that free memory come
       first in Dask's order; tasks behind those that wait for an actor free nothing.
    """
    if not view.slots:  # actors have them all
        return "an actor"
    if view.in_flight == 0 and not view.behind:
        return ""
    if view.tight:
        return "the machine's memory"
    if view.in_flight >= view.slots * tasks_per_slot:
        return "slots"
    if view.probing and view.in_flight >= view.slots:
        return "the first measurement"
    fits = view.fits(budget) or (view.in_flight < view.slots and not view.behind)
    # while nothing is stored, the expected outputs are of tasks that have all slots
    wait = "memory" if view.stored_bytes or view.behind else "slots"
    return "" if fits else wait


SPEED = 250e6  # bytes that one task pickles, hashes and writes per second, on a local disk
FILE = 0.01  # seconds per file of any size, on a local disk


def worth_checkpointing(
    nbytes: int, *, work: float, checkpoint_seconds: float, share: float
) -> bool:
    """Decide whether to write checkpoints of some more values.

    Writing stays below a ``share`` of the work that it saves from being recomputed: the seconds
    of all tasks of this computation so far. Other checkpoints took about ``checkpoint_seconds``.

    Examples
    --------
    A gigabyte that took two minutes of work, and one that took a second:

    >>> worth_checkpointing(10**9, work=120.0, checkpoint_seconds=0.0, share=0.05)
    True
    >>> worth_checkpointing(10**9, work=1.0, checkpoint_seconds=0.0, share=0.05)
    False
    """
    return checkpoint_seconds + write_seconds(nbytes) <= share * work


def write_seconds(nbytes: int) -> float:
    """Return the task seconds that writing values takes."""
    return nbytes / SPEED


def single_write_seconds(nbytes: int, *, seconds: float, share: float) -> float | None:
    """Return the seconds that writing one value takes, or None if that exceeds its share.

    Examples
    --------
    >>> single_write_seconds(10**6, seconds=1.0, share=0.05)
    0.014
    >>> single_write_seconds(10**6, seconds=0.1, share=0.05)
    """
    cost = FILE + write_seconds(nbytes)
    return cost if cost <= share * seconds else None


@dataclass(frozen=True)
class Measured:
    """Seconds that a computation has run, and what its tasks did.

    ``parallel`` are the seconds with several tasks at once, ``held`` the slots that they had, times
    seconds, ``cpu`` the processor time that they used meanwhile, and ``idle`` what nobody used.
    """

    seconds: float = 0.0
    parallel: float = 0.0
    held: float = 0.0
    cpu: float = 0.0
    idle: float = 0.0
    done: int = 0
    left: int = 0
    spilled: int = 0  # bytes

    @property
    def remaining(self) -> float:
        """Seconds that it will take at this pace; none are known before a task is done."""
        return self.seconds * self.left / max(1, self.done)


def reason_to_move(measured: Measured) -> str:
    """Return why a computation should move to Ray; nothing if it should stay.

    Examples
    --------
    >>> reason_to_move(Measured(5, parallel=4, held=8, cpu=4.1, idle=3.9, done=10, left=100))
    'its functions hold the interpreter lock'
    >>> reason_to_move(Measured(5, parallel=4, held=8, cpu=7.7, idle=0.3, done=10, left=100))
    ''
    """
    if measured.remaining < WORTH:
        return ""
    if measured.spilled:
        return "its values do not fit in memory beside the program"
    enough = measured.parallel >= SAMPLE and measured.idle >= IDLE * measured.held
    if enough and ONE_CORE * measured.parallel <= measured.cpu <= HELD * measured.held:
        return "its functions hold the interpreter lock"
    return ""
