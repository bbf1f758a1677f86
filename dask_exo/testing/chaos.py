"""Inject faults into a Ray cluster: kill or pause its processes at random moments.

A seed determines the moments, and the choice among the processes that run at each moment. It does
not determine which processes run, so a seed does not replay a run. On a simulated cluster it does:
see `asv_bench/simulation/random_faults.py`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple

import psutil

Mode = Literal["kill", "pause", "node"]
WORKER = "ray::"  # prefix of the name of a worker; the name of its function follows
IGNORED = re.compile(r"ray::(IDLE|.*Agent)")  # workers that are idle, or do not run tasks


class Strike(NamedTuple):
    """A fault that was injected: seconds after the beginning, and the function of the process."""

    at: float
    name: str


class Chaos:
    """Context in which processes of the Ray that this process started are killed or paused.

    It strikes at most ``most`` times, ``rate`` times per second on average: it kills a busy worker,
    or pauses it for ``away`` seconds, or kills a node, any but the first of a
    `ray.cluster_utils.Cluster`. Names of workers must match the regular expression ``filter``, as
    in ``"run_map|merge"``.

    Examples
    --------
    >>> with Chaos(seed=7, rate=100, filter="no worker has this name") as chaos:
    ...     time.sleep(0.1)
    >>> chaos.strikes
    []
    """

    def __init__(
        self,
        seed: int,
        *,
        rate: float = 0.2,
        mode: Mode = "kill",
        filter: str = "",  # noqa: A002  what it is
        most: int | None = None,
        away: float = 5.0,
    ) -> None:
        if mode not in {"kill", "pause", "node"} or rate <= 0:
            raise ValueError(f"mode={mode!r}, rate={rate}: need kill, pause or node, more than 0")
        self.strikes: list[Strike] = []
        self._killed: set[psutil.Process] = set()  # they may need a moment to end
        self._random, self._rate, self._mode = Random(seed), rate, mode
        self._filter, self._most, self._away = re.compile(filter), most, away
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="dask_exo-chaos", daemon=True)

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=self._away + 10)

    def _main(self) -> None:
        start = time.perf_counter()
        while not self._stop.wait(self._random.expovariate(self._rate)):
            if self._most is not None and len(self.strikes) >= self._most:
                return
            found = victims(self._mode, self._filter)
            processes = [(process, name) for process, name in found if process not in self._killed]
            if not processes:
                continue
            process, name = self._random.choice(processes)
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                self._strike(process)
                self.strikes.append(Strike(time.perf_counter() - start, name))

    def _strike(self, process: psutil.Process) -> None:
        if self._mode != "pause":
            process.kill()
            self._killed.add(process)
            return
        process.suspend()
        self._stop.wait(self._away)
        process.resume()


def victims(mode: Mode, pattern: re.Pattern[str]) -> Sequence[tuple[psutil.Process, str]]:
    """Return the child processes that may be struck, oldest first, with their names."""
    processes = []
    children = psutil.Process().children(recursive=True)
    for process in sorted(children, key=lambda p: (p.create_time(), p.pid)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            command = process.cmdline()
            processes.append((process, command[0] if command else process.name()))
    if mode == "node":
        return [(p, name) for p, name in processes if name.endswith("/raylet")][1:]
    return [
        (process, name.removeprefix(WORKER))
        for process, name in processes
        if name.startswith(WORKER) and not IGNORED.match(name)
        if pattern.search(name.removeprefix(WORKER))
    ]
