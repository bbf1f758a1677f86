"""Named places at which a test may let something go wrong; for testing only.

Nothing happens unless the environment variable ``DASK_EXO_FAILPOINTS`` named a directory when the
process began. Each fault that is planted there strikes at its point: in whichever process comes
there, so often as was asked, counted over all processes by files that only one of them can make.

========== =====================================================================================
point      where
========== =====================================================================================
`read`     before a task that has no inputs
`map`      the parts of a map call are made, and not cut yet
`merge`    before each block that a merge makes
`reduce`   before an output of a shuffle is assembled
`made`     a task has made its value (or written its file), and nobody has heard of it
`piece`    a stage of a pipeline has made a piece (or written it), and nobody has heard of it
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
PAUSE = 0.02  # seconds between two looks at whether to go on
LONGEST = 60.0  # seconds that a test may let a process wait

_directory = os.environ.get(VARIABLE)

Point = Literal["read", "map", "merge", "reduce", "made", "piece", "between"]


class FailpointError(ExoError, RuntimeError):
    """A fault that a test has planted."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes
    ----------
    point : str
        Where.
    action : str
        ``"kill"``: SIGKILL to this process. ``"raise"``: `FailpointError`. ``"memory"``: ask for
        more memory than there is. ``"sleep"``. ``"pause"``: wait for `go_on`, in which time the
        test may do anything to the cluster.
    key : str
        Part of the key of the task; all have the empty one.
    first : int
        Which arrival is the first that it strikes, from 0.
    times : int
        How many arrivals it strikes from there on.
    seconds : float
        To sleep.
    """

    point: Point
    action: Literal["kill", "raise", "memory", "sleep", "pause"]
    key: str = ""
    first: int = 0
    times: int = 1
    seconds: float = 0.0


def plant(directory: Path, *faults: Fault) -> None:
    """Say what goes wrong from now on, in all processes of which `VARIABLE` names ``directory``."""
    for path in directory.iterdir():
        path.unlink()
    whole = directory / "faults.new"
    whole.write_text(dumps([asdict(fault) for fault in faults]))
    whole.rename(directory / "faults")  # nobody reads a half


def arrivals(directory: Path) -> dict[int, int]:
    """Which process has come to the point of the first fault, by the number of the arrival."""
    found = {int(path.name.rsplit("-", 1)[1]): path for path in directory.glob("at-0-*")}
    return {arrival: int(path.read_text() or 0) for arrival, path in found.items()}


def go_on(directory: Path) -> None:
    """Let go whatever is paused, now or later."""
    (directory / "go-on").touch()


def reach(point: Point, key: object = "") -> None:
    """Come to a point; what happens there, if anything, `plant` has said."""
    if _directory is None:
        return
    place = Path(_directory)
    try:
        faults = [Fault(**one) for one in loads((place / "faults").read_text())]
    except FileNotFoundError:
        return
    for number, fault in enumerate(faults):
        if fault.point == point and fault.key in str(key):
            arrival = _arrive(place, number)
            if 0 <= arrival - fault.first < fault.times:
                _strike(place, fault, str(key))


def _arrive(place: Path, number: int) -> int:
    """Which arrival this is, of all processes."""
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
