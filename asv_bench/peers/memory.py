"""Memory and disk of a tree of processes while it works."""

from __future__ import annotations

import contextlib
import threading

import psutil


class Watch:
    """Samples the memory of a process and of all below it, shared pages counted once.

    Parameters
    ----------
    pid : int
        The process.
    interval : float
        Seconds between two looks. To look takes time for each mapped page, and holds up page
        faults of the process meanwhile: four looks a second made a shuffle of 40 M rows a fifth
        slower.
    """

    def __init__(self, pid: int, interval: float = 1.0) -> None:
        self._root = psutil.Process(pid)
        self._interval = interval
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def take(self) -> int:
        """The largest sum seen since the last call, in bytes."""
        peak, self._peak = max(self._peak, self._now()), 0
        return peak

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(self._interval):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        total = 0
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error, OSError):
                    total += _proportional(process.pid)
        return total


def _proportional(pid: int) -> int:
    """Bytes of a process, what it shares divided by the number of those that share it."""
    with open(f"/proc/{pid}/smaps_rollup") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
