"""The matrix: what goes wrong, and where. Each cell that makes sense is a test."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from dask_exo.cluster.failpoints import Fault

PLACES: dict[str, tuple[str, Fault]] = {
    "read": ("shuffle", Fault("read", "pause", first=3)),
    "map": ("shuffle", Fault("map", "pause", first=3)),
    "merge": ("shuffle", Fault("merge", "pause", first=1)),
    "reduce": ("shuffle", Fault("reduce", "pause", first=2)),
    "between stages": ("two shuffles", Fault("between", "pause")),
    "write": ("files", Fault("made", "pause", key="parquet", first=3)),
    "persisted data": ("persisted", Fault("between", "pause", key="persisted")),
    "stream stage": ("pipeline", Fault("piece", "pause", key="halves", first=3)),
    "stream write": ("pipeline to files", Fault("piece", "pause", key="to_parquet", first=3)),
}
"""Place → the program that comes there, and the point; of several arrivals one in the middle."""


@dataclass(frozen=True)
class Cell:
    """A fault at a place.

    Attributes
    ----------
    fault, place : str
        For people.
    job : str
        See `tests.faults.jobs.JOBS`.
    planted : Fault
    lose : str
        What the test takes away while a process is paused there: ``"node"``, ``"node and back"``,
        ``"spilled"`` files, or nothing.
    make : str
        See `tests.faults.jobs.MAKES`.
    retries : int
        That Dask's annotation allows.
    errors : tuple of str
        Which errors are as good as the result; empty where the result must come.
    note : str
        Part of what the error, or a note of it, has to say.
    """

    fault: str
    place: str
    job: str
    planted: Fault
    lose: str = ""
    make: str = "part"
    retries: int = 0
    errors: tuple[str, ...] = ()
    note: str = ""

    def line(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> Cell:
        """What `line` has made."""
        told = json.loads(line)
        return cls(**{**told, "planted": Fault(**told["planted"]), "errors": tuple(told["errors"])})

    @property
    def name(self) -> str:
        """For pytest."""
        return f"{self.fault}-{self.place}".replace(" ", "_")


IN_DRIVER = ("between stages", "persisted data")
"""Places where no task runs: nothing of these can be killed, fail, or be slow but the driver."""

NO_SENSE = {
    ("worker killed", "between stages"): "no task runs there",
    ("worker killed", "persisted data"): "no task runs there; the store outlives a worker",
    ("actor killed", "read"): "plain tasks run there; in an actor the place is 'actor'",
    ("actor killed", "map"): "maps run in plain tasks",
    ("actor killed", "merge"): "merges run in plain tasks",
    ("actor killed", "reduce"): "reducers run in plain tasks",
    ("actor killed", "write"): "files are written by plain tasks",
    ("actor killed", "between stages"): "no task runs there",
    ("actor killed", "persisted data"): "no task runs there",
    ("actor killed", "stream write"): "a stage that writes runs in plain tasks",
    ("slow", "between stages"): "no task runs there",
    ("slow", "persisted data"): "no task runs there",
    ("out of memory", "between stages"): "no task runs there",
    ("out of memory", "persisted data"): "no task runs there",
    ("raises once", "between stages"): "no code of the user's runs there",
    ("raises once", "persisted data"): "no code of the user's runs there",
    ("raises once", "map"): "cutting is no code of the user's: what made the part is in 'read'",
    ("raises once", "merge"): "no code of the user's runs there",
    ("raises once", "stream write"): "no code of the user's runs there",
    ("raises always", "between stages"): "no code of the user's runs there",
    ("raises always", "persisted data"): "no code of the user's runs there",
}


NEVER = Fault("read", "raise", key="no such key")


def calm() -> list[Cell]:
    """Each program without a fault, to compare times with."""
    jobs = dict.fromkeys(job for job, _ in PLACES.values())
    return [Cell("none", job, job, NEVER) for job in [*jobs, "actors"]]


def cells() -> list[Cell]:
    """All cells that make sense."""
    found = []
    for place, (job, point) in PLACES.items():
        cell = Cell("", place, job, point)
        if place not in IN_DRIVER:
            found += _in_tasks(cell)
        found.append(replace(cell, fault="node lost", lose="node"))
        found.append(replace(cell, fault="node lost and back", lose="node and back"))
        if place in ("reduce", "between stages", "persisted data"):
            gone = replace(cell, fault="spilled file gone", lose="spilled", make="wide")
            found.append(replace(gone, errors=("StalledError",), note="were written to disk"))
        lost = replace(cell, lose="node")
        found.append(replace(lost, fault="random numbers", make="drawn"))
        errors = ("NonDeterminismError", "IntegrityError")
        found.append(replace(lost, fault="not deterministic", make="fickle", errors=errors))
    kept = Fault("made", "kill", first=3)
    found.append(Cell("actor killed", "actor", "actors", kept))
    found.append(
        Cell("actor killed", "stream stage", "pipeline", Fault("piece", "kill", "Double", first=3))
    )
    return found


def _in_tasks(cell: Cell) -> list[Cell]:
    """Those of a place where tasks run."""
    killed = replace(cell.planted, action="kill")
    raising = replace(cell.planted, action="raise")
    always = replace(raising, first=0, times=10**6)
    full = replace(cell.planted, action="memory", first=0, times=10**6)
    key = "no result of task" if cell.place == "merge" else "raised by task"
    found = [
        replace(cell, fault="worker killed", planted=killed),
        replace(cell, fault="slow", planted=replace(cell.planted, action="sleep", seconds=4.0)),
        replace(cell, fault="raises always", planted=always, errors=("FailpointError",), note=key),
        replace(cell, fault="out of memory", planted=full, errors=("MemoryError",), note=key),
    ]
    if ("raises once", cell.place) not in NO_SENSE:
        if cell.place == "stream stage":
            raising = replace(raising, key="inside a function")
        found.append(replace(cell, fault="raises once", planted=raising, retries=1))
    return found
