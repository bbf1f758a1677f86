"""Failpoints: named places in the code where a test makes a fault happen.

Nothing happens unless the environment variable ``DASK_EXO_FAILPOINTS`` named a directory when the
process started. A fault that is planted in that directory strikes processes that reach its
point. Arrivals are counted over all processes, by files that are created exclusively.

========== =====================================================================================
point      where
========== =====================================================================================
`read`     before a task that has no inputs
`map`      the input of a map call is read, and not divided yet
`merge`    before each block that a merge writes
`reduce`   before an output of a shuffle is assembled
`made`     a task has computed its value (or written its file), and not reported it
`piece`    a stage of a pipeline has computed a block (or written it), and not reported it
`between`  in the driver: a shuffle has ended, and no task has read it
========== =====================================================================================
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, dataclass
from itertools import count
from json import dumps, loads
from pathlib import Path
from typing import Literal

from dask_exo.errors import ExoError

VARIABLE = "DASK_EXO_FAILPOINTS"
PAUSE = 0.02  # seconds between two checks whether to continue
LONGEST = 60.0  # seconds that a process is paused, at most

_directory = os.environ.get(VARIABLE)

Point = Literal["read", "map", "merge", "reduce", "made", "piece", "between"]


class FailpointError(ExoError, RuntimeError):
    """A fault that a test has planted."""


@dataclass(frozen=True)
class Fault:
    """A fault to inject.

    Actions: ``"kill"`` this process with SIGKILL, ``"raise"`` `FailpointError`, allocate more
    ``"memory"`` than there is, ``"sleep"``, or ``"pause"`` until `go_on`.
    """

    point: Point
    action: Literal["kill", "raise", "memory", "sleep", "pause"]
    key: str = ""  # part of the key of the task; the empty string matches all
    first: int = 0  # number of the first arrival that it strikes
    times: int = 1  # number of arrivals that it strikes
    seconds: float = 0.0  # of sleep


def plant(directory: Path, *faults: Fault) -> None:
    """Inject faults from now on, in all processes whose `VARIABLE` names ``directory``."""
    for path in directory.iterdir():
        path.unlink()
    new_file = directory / "faults.new"
    new_file.write_text(dumps([asdict(fault) for fault in faults]))
    new_file.rename(directory / "faults")  # atomic: readers see all faults or none


def arrivals(directory: Path) -> dict[int, int]:
    """Return the processes that reached the first fault, by number of arrival."""
    paths = {int(path.name.rsplit("-", 1)[1]): path for path in directory.glob("at-0-*")}
    return {arrival: int(path.read_text() or 0) for arrival, path in paths.items()}


def go_on(directory: Path) -> None:
    """Resume processes that are paused, now or later."""
    (directory / "go-on").touch()


def reach(point: Point, key: object = "") -> None:
    """Reach a failpoint; strike if `plant` has planted a fault there."""
    if _directory is None:
        return
    place = Path(_directory)
    try:
        faults = [Fault(**fields) for fields in loads((place / "faults").read_text())]
    except FileNotFoundError:
        return
    for number, fault in enumerate(faults):
        if fault.point == point and fault.key in str(key):
            arrival = _arrive(place, number)
            if 0 <= arrival - fault.first < fault.times:
                _strike(place, fault, str(key))


def _arrive(place: Path, number: int) -> int:
    """Return the number of this arrival, counted over all processes."""
    for arrival in count():
        try:
            with (place / f"at-{number}-{arrival}").open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            continue
        return arrival
    raise AssertionError


def _strike(place: Path, fault: Fault, key: str) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "raise":
        raise FailpointError(f"a test lets {fault.point} of {key!r} fail")
    elif fault.action == "memory":
        bytearray(2**62)
    elif fault.action == "sleep":
        time.sleep(fault.seconds)
    else:
        end = time.monotonic() + LONGEST
        while not (place / "go-on").exists() and time.monotonic() < end:
            time.sleep(PAUSE)
