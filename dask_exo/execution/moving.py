"""When a computation on threads moves to Ray: decided from what its first seconds cost.

Threads need no start, and read values where they are. But Python code holds the interpreter lock,
so on threads it uses one core. And it is not known before a function has run whether it does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from dask_exo import events
from dask_exo.cluster.futures import Futures
from dask_exo.cluster.handover import HandoverFutures
from dask_exo.execution import messages
from dask_exo.planning.plan import Plan

INTERVAL = 0.5  # seconds between two measurements
START = 4.0  # seconds that a private Ray takes to start
WORTH = 3 * START  # seconds of work that has to be left: on two cores, Ray halves them at best
SAMPLE = 2.0  # seconds with several tasks at once that have to be measured
HELD = 0.6  # share of its slots' processor time below which tasks hold each other back
ONE_CORE = 0.8  # of a core; tasks that use less wait for something else


@dataclass(frozen=True)
class Measured:
    """Seconds that a computation has run, and what its tasks did.

    ``parallel`` are the seconds with several tasks at once, ``held`` the slots that they had, times
    seconds, and ``cpu`` the processor time that they used meanwhile.
    """

    seconds: float = 0.0
    parallel: float = 0.0
    held: float = 0.0
    cpu: float = 0.0
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
    >>> reason_to_move(Measured(seconds=5, parallel=4, held=8, cpu=4.1, done=10, left=100))
    'its functions hold the interpreter lock'
    >>> reason_to_move(Measured(seconds=5, parallel=4, held=8, cpu=7.7, done=10, left=100))
    ''
    """
    if measured.remaining < WORTH:
        return ""
    if measured.spilled:
        return "its values do not fit in memory beside the program"
    enough = measured.parallel >= SAMPLE
    if enough and ONE_CORE * measured.parallel <= measured.cpu <= HELD * measured.held:
        return "its functions hold the interpreter lock"
    return ""


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
        self._cpu, self._busy = time.process_time(), 0.0
        self._reason = ""
        self._told = False

    @property
    def timeout(self) -> float | None:
        """Return the seconds until the next measurement; None if there will be none."""
        return None if self._told else INTERVAL

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
        now, cpu, store = time.perf_counter(), time.process_time(), self._futures.local.store()
        seconds, before = now - self._last, self._measured
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
            )
        self._last, self._cpu, self._busy = now, cpu, self._futures.local.busy
