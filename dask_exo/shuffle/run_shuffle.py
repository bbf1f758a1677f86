"""Checks that outputs fit into memory, and spilled values on the disks.

Both are checked before a shuffle starts, and the disks while it runs.

A full disk fails whatever needs the object store next. So the largest running shuffle is stopped
before: when the next batch of spilled values may not fit while spilled values still grow. Its
values are released then, and other shuffles go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dask_exo import events
from dask_exo.cluster.futures import DiskUsage, Futures, Node
from dask_exo.cluster.waiting import Steps
from dask_exo.config import Config
from dask_exo.errors import OutOfMemoryError, SpillError
from dask_exo.shuffle import algorithms
from dask_exo.shuffle.choose import Choice, Limits, Shape, ShuffleCost, human_size
from dask_exo.shuffle.map_stage import MapStage, Parts
from dask_exo.shuffle.spec import ReducerInput, Spec, Tally
from dask_exo.shuffle.stragglers import SpeculationPolicy

T = TypeVar("T")

CHECK_INTERVAL = 1.0  # seconds

SPILL_SHARE = 4  # a node spills a quarter of its store at a time

MEMORY_MARGIN = 2  # times the memory, since sizes are estimated from the first maps


def check_outputs(name: str, shape: Shape, nodes: Sequence[Node]) -> None:
    """Raise `OutOfMemoryError` if an output does not fit the memory of any node.

    It raises only if an output certainly does not fit: outputs are assembled in memory.

    Examples
    --------
    >>> node = Node("a", slots=2, store=10**9, resources={"memory": 4e9})
    >>> check_outputs("sort", Shape(80 * 10**9, 100, 20, 1, 2, store=10**9), [node])
    >>> check_outputs("sort", Shape(80 * 10**9, 100, 8, 1, 2, store=10**9), [node])
    Traceback (most recent call last):
    ...
    dask_exo.errors.OutOfMemoryError: each of the 8 outputs of shuffle sort takes about 10 GB (by \
its first maps), the largest node has 4 GB for its tasks. Make more of them: npartitions=20 or more
    """
    have = max((memory for node in nodes if (memory := _memory(node))), default=None)
    need = shape.nbytes // max(shape.reducers, 1)
    if have is None or need <= MEMORY_MARGIN * have:
        return
    raise OutOfMemoryError(
        f"each of the {shape.reducers} outputs of shuffle {name} takes about {human_size(need)} "
        f"(by its first maps), the largest node has {human_size(have)} for its tasks. Make more "
        f"of them: npartitions={-(-shape.nbytes // int(have))} or more"
    )


def _memory(node: Node) -> float | None:
    return (node.resources or {}).get("memory")


def check_disk_space(name: str, shape: Shape, cost: ShuffleCost | None, disk: int | None) -> None:
    """Raise `SpillError` if spilled values of a shuffle do not fit on the disks.

    Examples
    --------
    >>> shape = Shape(8 * 10**9, 10, 10, 1, 2, store=10**9)
    >>> check_disk_space("sort", shape, None, disk=6 * 10**9)
    Traceback (most recent call last):
    ...
    dask_exo.errors.SpillError: shuffle sort moves about 8 GB (by its first maps), the object \
store has 1 GB, so about 7 GB must be spilled; the disks have room for 6 GB. Name \
directories on larger disks (exo.spill-directory), or raise exo.object-store-memory
    """
    need = max(0, shape.nbytes - shape.store) if cost is None else cost.spilled
    if disk is None or need <= disk:
        return
    moves, store = human_size(shape.nbytes), human_size(shape.store)
    raise SpillError(
        f"shuffle {name} moves about {moves} (by its first maps), the object store has {store}, so "
        f"about {human_size(need)} must be spilled; the disks have room for {human_size(disk)}. "
        f"Name directories on larger disks (exo.spill-directory), or raise "
        f"exo.object-store-memory"
    )


def find_full_disk(
    before: Mapping[str, int], disks: Sequence[DiskUsage], reserve: int
) -> DiskUsage | None:
    """Return the fullest directory that is about to fill up, if there is one.

    Parameters
    ----------
    before : mapping
        Bytes of spilled values in each directory at the last check; a missing one is new.
    disks : sequence of DiskUsage
        Present state.
    reserve : int
        Bytes that must fit.

    Examples
    --------
    >>> now = [DiskUsage("/a", 70, 90, room=30), DiskUsage("/b", 70, 70, room=900)]
    >>> find_full_disk({"/a": 60, "/b": 60}, now, reserve=40).path
    '/a'
    >>> find_full_disk({"/a": 70, "/b": 60}, now, reserve=40)  # nothing was spilled
    """
    filling = [d for d in disks if d.room < reserve and d.used > before.get(d.path, d.used)]
    return min(filling, key=lambda disk: disk.room, default=None)


class SpillWatch:
    """Periodic check of the disks while a shuffle runs.

    Parameters
    ----------
    name : str
        Of the shuffle.
    futures : Futures
    maps : MapStage
        Its maps.
    spec : Spec
    """

    def __init__(self, name: str, futures: Futures, maps: MapStage, spec: Spec) -> None:
        self._name, self._futures, self._maps = name, futures, maps
        self._known = spec.disk is not None
        self._reserve = max(node.store for node in spec.nodes) // SPILL_SHARE
        self._before: dict[str, int] = {}
        self._due = futures.now + CHECK_INTERVAL

    def check(self) -> None:
        """Raise `SpillError` if a disk fills up and this is the largest running shuffle."""
        if not self._known or self._futures.now < self._due:
            return
        self._due = self._futures.now + CHECK_INTERVAL
        disks = self._futures.disks()
        full = find_full_disk(self._before, disks, self._reserve)
        if full is not None and self is _largest():
            grown = full.used - self._before[full.path]
            raise SpillError(
                f"shuffle {self._name} was stopped before the disk of {full.path!r} is full: it "
                f"has room for {human_size(full.room)}, need {human_size(self._reserve)}, which "
                f"is spilled at a time. Spilled values take {human_size(full.used)} there, "
                f"{human_size(grown)} more than at the last check; the maps of this shuffle wrote "
                f"{human_size(self._maps.nbytes)} so far. Free space there, name directories on "
                f"larger disks (exo.spill-directory), or raise exo.object-store-memory"
            )
        self._before = {disk.path: disk.used for disk in disks}

    def run(self, steps: Steps[T]) -> Steps[T]:
        """Run a coroutine of the shuffle; check the disks whenever it waits."""
        with _lock:
            _watches.append(self)
        try:
            return (yield from _checked(steps, self))
        finally:
            with _lock:
                _watches.remove(self)

    @property
    def nbytes(self) -> int:
        """Bytes of map outputs so far."""
        return self._maps.nbytes


def _checked(steps: Steps[T], watch: SpillWatch) -> Generator[Any, None, T]:
    try:
        while True:
            condition = next(steps)
            watch.check()
            yield condition
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


_lock = threading.Lock()
_watches: list[
    SpillWatch
] = []  # of all shuffles of this process, whose connection to a cluster is one


def _largest() -> SpillWatch | None:
    """Return the running shuffle with the largest map outputs."""
    with _lock:
        return max(_watches, key=lambda watch: watch.nbytes, default=None)


PROGRESS_INTERVAL = 0.5  # seconds


@dataclass(frozen=True)
class Shuffled:
    """Result of a shuffle: its maps and merges have finished, its reducers have not started.

    Attributes
    ----------
    inputs : list of ReducerInput
        (R,) what each reducer has to read.
    choice : Choice
        Algorithm and why.
    calls, nbytes : int
        Totals of the map side.
    tally : Tally
        Rows and keys that the maps sent.
    """

    inputs: list[ReducerInput]
    choice: Choice
    calls: int
    nbytes: int
    tally: Tally


def run_shuffle(
    futures: Futures, parts: Parts, spec: Spec, limits: Limits, name: str = "shuffle"
) -> Steps[Shuffled]:
    """Shuffle ``parts`` by the algorithm that suits their measured size.

    Parameters
    ----------
    futures : Futures
    parts : Parts
        (M,)
    spec : Spec
    limits : Limits
    name : str
        Name of the shuffle in events and errors.
    """
    started, m, r = time.perf_counter(), len(parts), spec.reducers
    window = spec.slots * limits.tasks_per_slot
    maps = MapStage(
        futures, parts, spec, window=window, target=limits.bundle_target, policy=limits.speculation
    )
    yield from maps.probe(spec.slots)
    estimate = maps.nbytes * m // max(maps.parts, 1)
    shape = Shape(estimate, m, r, len(spec.nodes), spec.slots, spec.store)
    choice, costs = algorithms.choose_algorithm(shape, limits)
    check_outputs(name, shape, spec.nodes)
    check_disk_space(name, shape, costs.get(choice.algorithm), spec.disk)
    how = choice.algorithm, choice.reason, m, r
    events.emit(events.ShuffleChosen(name, *how, choice.per_round))
    watch = SpillWatch(name, futures, maps, spec)
    steps = algorithms.start(choice, futures, maps, spec)
    inputs = yield from watch.run(_with_progress(steps, name, futures, maps))
    seconds = time.perf_counter() - started
    events.emit(
        events.ShuffleFinished(
            name, *how, maps.rounds, maps.calls, maps.tally.rows, maps.nbytes, seconds
        )
    )
    return Shuffled(inputs, choice, maps.calls, maps.nbytes, maps.tally)


def limits_of(config: Config) -> Limits:
    """Return the configured limits; raise `ConfigError` for an unknown algorithm."""
    algorithms.check(config.shuffle_algorithm)
    return Limits(
        config.shuffle_algorithm,
        config.shuffle_memory_fraction,
        config.shuffle_round_fraction,
        config.shuffle_most_objects,
        config.bundle_target,
        config.tasks_per_slot,
        SpeculationPolicy(config.late_factor, config.late_floor)
        if config.shuffle_speculation
        else None,
        config.shuffle_merge_limit,
    )


def _with_progress(
    steps: Steps[T], name: str, futures: Futures, maps: MapStage
) -> Generator[Any, None, T]:
    """Run a coroutine of a shuffle; emit a `ShuffleSeen` about twice a second, and at its end."""
    due = futures.now + PROGRESS_INTERVAL
    try:
        while True:
            condition = next(steps)
            if futures.now >= due:
                due = futures.now + PROGRESS_INTERVAL
                _emit_progress(name, maps)
            yield condition
    except StopIteration as stop:
        _emit_progress(name, maps)
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def _emit_progress(name: str, maps: MapStage) -> None:
    events.emit(
        events.ShuffleSeen(name, maps.parts, len(maps), maps.merged, maps.merges, maps.nbytes)
    )
