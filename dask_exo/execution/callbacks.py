"""Callbacks on promises: a thread that waits for them and calls functions."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dask_exo.execution.background import stop_with_all
from dask_exo.execution.persisted import POLL, Promise, wait

Act = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    promises: Sequence[Promise]
    act: Act
    known: bool  # and not only when the values are there


class PromiseCallbacks:
    """A thread that calls functions when promises are known or done; it ends when none are left.

    Parameters
    ----------
    name : str
        Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self._new = threading.Event()
        self._thread: threading.Thread | None = None

    def when_known(self, promises: Sequence[Promise], act: Act) -> None:
        """Call ``act`` when the refs or values of all ``promises`` are known, or have failed."""
        self._add(_Pending(promises, act, known=True))

    def when_done(self, promise: Promise, act: Act) -> None:
        """Call ``act`` when the value of a promise exists, or has failed."""
        self._add(_Pending([promise], act, known=False))

    def stop(self) -> None:
        """Drop all callbacks and wait for the thread to end."""
        with self._lock:
            self._pending.clear()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def _add(self, pending: _Pending) -> None:
        stop_with_all(self)
        with self._lock:
            self._pending.append(pending)
            self._new.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                self._thread.start()

    def _main(self) -> None:
        try:
            while self._round():
                pass
        except Exception:  # the connection is gone, and with it all promises
            logging.getLogger(__name__).exception("%s has ended", self._name)
            with self._lock:
                self._pending.clear()
                self._thread = None

    def _round(self) -> bool:
        """Run callbacks that are due, or wait a moment; return False when none are left."""
        with self._lock:
            pending = list(self._pending)
            self._new.clear()
            if not pending:
                self._thread = None
                return False
        ready = _ready(pending)
        for one in ready:
            with self._lock, contextlib.suppress(ValueError):  # of a list that was cleared
                self._pending.remove(one)
            try:
                one.act()
            except Exception:
                logging.getLogger(__name__).exception("in a callback of a future")
        if not ready:
            self._new.wait(POLL)
        return True


def _ready(pending: Sequence[_Pending]) -> list[_Pending]:
    """Return the callbacks that are due."""
    kept, _ = wait([one.promises[0] for one in pending if not one.known], timeout=0)
    done = {id(promise) for promise in kept}
    return [
        one
        for one in pending
        if (all(p.known for p in one.promises) if one.known else id(one.promises[0]) in done)
    ]
