"""Work in background threads: computations, and copies of values off nodes that end."""

from __future__ import annotations

import contextlib
import threading
import traceback
import weakref
from typing import Protocol

from dask_exo.cluster.futures import Futures
from dask_exo.errors import CancelledError, IntegrityError
from dask_exo.execution.accounting import observed
from dask_exo.execution.loop import Run
from dask_exo.execution.persisted import (
    Local,
    Promise,
    Remote,
    promises_exist,
    stored_refs,
)
from dask_exo.execution.ready_queue import RunAbandoned
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Plan
from dask_exo.planning.plan_passes import PassContext

RESCUE_INTERVAL = 2.0  # seconds between two looks for nodes that are about to end


class Stoppable(Protocol):
    """Something that has to end with the connection to the cluster."""

    def stop(self) -> None:
        """End it."""
        ...


_running: weakref.WeakSet[Stoppable] = weakref.WeakSet()


class BackgroundRun:
    """One computation in a background thread.

    It holds weak references to its promises: a dropped promise frees its value, and the
    computation ends when all are dropped. If rows of a shuffle do not arrive, all promises fail,
    those of values that have been delivered, too.
    """

    def __init__(self, plan: Plan, context: PassContext, futures: Futures) -> None:
        self._plan, self._context, self._futures = plan, context, futures
        self._promises: weakref.WeakValueDictionary[Key, Promise] = weakref.WeakValueDictionary()
        self._stopped, self._verifies = False, bool(plan.stages)
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._main, name="dask_exo-run", daemon=True)

    def start(self) -> dict[Key, Promise]:
        """Start the thread; return the promise of each of the plan's results."""
        promises = {key: Promise(self._futures) for key in self._plan.results}
        self._promises.update(promises)
        _running.add(self)
        self._thread.start()
        if self._futures.elastic:
            RescueThread.start(self._futures)
        return promises

    def stop(self) -> None:
        """End the computation as soon as possible; unfulfilled promises fail."""
        self._stopped = True
        self._thread.join(timeout=10)

    def is_wanted(self) -> bool:
        """See `Consumer.is_wanted`."""
        promises = self._promises.values()
        return not self._stopped and any(self._verifies or not p.known for p in promises)

    def take(self, key: Key, location: Local | Remote) -> None:
        """See `Consumer.take`."""
        promise = self._promises.get(key)
        if promise is not None:
            promise.fulfil(location)

    def fail(self, key: Key, error: BaseException) -> None:
        """See `Consumer.fail`."""
        promise = self._promises.get(key)
        if promise is not None:
            self._errors.append(error)
            promise.fail(error)

    def _main(self) -> None:
        error: BaseException = CancelledError("the computation was stopped before its end")
        try:
            with observed(self._futures) as sampler:
                run = Run.planned(
                    self._plan, self._context, self._futures, consumer=self, sampler=sampler
                )
                run.results()
        except RunAbandoned:
            pass
        except BaseException as exc:  # noqa: BLE001  raised where a result is used
            error = exc
        finally:
            _running.discard(self)
            del self._plan, self._context
            for e in (*self._errors, error):
                traceback.clear_frames(e.__traceback__)  # its frames hold refs
            for key in list(self._promises):
                promise = self._promises.get(key)
                if promise is not None and (not promise.known or isinstance(error, IntegrityError)):
                    promise.fail(error)
                del promise


class RescueThread:
    """A thread that copies promised values off nodes which are about to end.

    It ends when no promised value is in the store.
    """

    _lock = threading.Lock()
    _only: RescueThread | None = None

    def __init__(self, futures: Futures) -> None:
        self._futures, self._stopped = futures, threading.Event()
        self._thread = threading.Thread(target=self._main, name="dask_exo-rescue", daemon=True)
        _running.add(self)
        self._thread.start()

    @classmethod
    def start(cls, futures: Futures) -> None:
        """Start the thread unless it runs."""
        with cls._lock:
            cls._only = cls._only or RescueThread(futures)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(timeout=10)

    def _main(self) -> None:
        while not self._stopped.wait(RESCUE_INTERVAL):
            with RescueThread._lock:
                if not promises_exist():
                    RescueThread._only = None
                    return
            with contextlib.suppress(Exception):  # the cluster does not answer: the next time
                self._futures.rescue(stored_refs())
        with RescueThread._lock:
            RescueThread._only = None


def stop_all() -> None:
    """Stop all background work of this process."""
    for background in list(_running):
        background.stop()


def stop_with_all(running: Stoppable) -> None:
    """Register something for `stop_all`; only a weak reference is held."""
    _running.add(running)
