"""One shuffle from start to end: measure the first maps, choose an algorithm, run it, report.

Outputs must fit into memory, and spilled values on the disks. Both are checked before the algorithm
starts, and the disks while it runs. On a full disk every task that needs the object store fails.
So the largest running shuffle is stopped before: when the next batch of spilled values may not fit
while spilled values still grow. Its values are released then, and other shuffles go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dask.utils import format_bytes

from dask_exo import events
from dask_exo.cluster.futures import DiskUsage, Futures, Node
from dask_exo.cluster.waiting import Steps
from dask_exo.config import Config
from dask_exo.errors import OutOfMemoryError, SpillError
from dask_exo.shuffle import algorithms
from dask_exo.shuffle.choose import Choice, Limits, Shape, ShuffleCost
from dask_exo.shuffle.map_stage import MapStage, Parts
from dask_exo.shuffle.spec import ReducerInput, Spec, Tally
from dask_exo.shuffle.stragglers import SpeculationPolicy

CHECK_INTERVAL = 1.0  # seconds

SPILL_SHARE = 4  # a node spills a quarter of its store at a time

MEMORY_MARGIN = 2  # times the memory, since sizes are estimated from the first maps


@dataclass(frozen=True)
class Shuffled:
    """Result of a shuffle: its maps and merges have finished, its reducers have not started."""

    inputs: list[ReducerInput]  # (R,)
    choice: Choice
    calls: int  # of maps
    nbytes: int  # of map outputs
    tally: Tally  # rows and keys that the maps sent


def run_shuffle(
    futures: Futures, parts: Parts, spec: Spec, limits: Limits, name: str = "shuffle"
) -> Steps[Shuffled]:
    """Shuffle (M,) ``parts`` by the algorithm that suits their measured size.

    Events and errors have the ``name``.
    """
    started, m, r = time.perf_counter(), len(parts), spec.reducers
    window = spec.slots * limits.tasks_per_slot
    maps = MapStage(
        futures, parts, spec, window=window, target=limits.bundle_target, policy=limits.speculation
    )
    estimate = yield from _measure(maps, parts, spec.slots)
    shape = Shape(estimate, m, r, len(spec.nodes), spec.slots, spec.store)
    maps.planned_slots = max(1, spec.places.all_slots)
    choice, costs = algorithms.choose_algorithm(shape, limits)
    check_outputs(name, shape, spec.nodes)
    check_disk_space(name, shape, costs.get(choice.algorithm), spec.disk)
    how = choice.algorithm, choice.reason, m, r
    events.emit(events.ShuffleChosen(name, *how, choice.per_round))
    steps = algorithms.start(choice, futures, maps, spec)
    inputs = yield from ShuffleMonitor(name, futures, maps, spec).run(steps)
    seconds = time.perf_counter() - started
    rows, nbytes = maps.tally.rows, maps.nbytes
    counts = maps.rounds, maps.calls, rows, parts.left_out
    events.emit(events.ShuffleFinished(name, *how, *counts, nbytes, seconds))
    return Shuffled(inputs, choice, maps.calls, nbytes, maps.tally)


def _measure(maps: MapStage, parts: Parts, count: int) -> Steps[int]:
    """Map the first parts; return the bytes of all map outputs, if the others are like these."""
    mapped, nbytes = 0, 0
    yield from maps.probe(1 if parts.may_wait else count)
    factor = len(maps) / max(maps.parts, 1)
    yield from parts.measured(int(maps.nbytes * factor), int(maps.tally.rows * factor))
    if parts.may_wait:  # from here on, maps may send fewer rows
        mapped, nbytes = maps.parts, maps.nbytes
        yield from maps.probe(mapped + count)
    mean = (maps.nbytes - nbytes) / max(maps.parts - mapped, 1)
    return maps.nbytes + int(mean * (len(maps) - maps.parts))


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


class ShuffleMonitor:
    """A shuffle that emits its progress, and checks the disks, whenever it waits."""

    def __init__(self, name: str, futures: Futures, maps: MapStage, spec: Spec) -> None:
        self.maps = maps
        self._name, self._futures = name, futures
        self._disks_known = spec.disk is not None
        self._reserve = max(node.store for node in spec.nodes) // SPILL_SHARE
        self._last_used: dict[str, int] = {}

    def run(self, steps: Steps[list[ReducerInput]]) -> Steps[list[ReducerInput]]:
        """Run the coroutine of the algorithm.

        Raises
        ------
        SpillError
            A disk fills up, and this is the largest running shuffle.
        """
        due = self._futures.now + CHECK_INTERVAL
        with _lock:
            _running.append(self)
        try:
            while True:
                condition = next(steps)
                if self._futures.now >= due:
                    due = self._futures.now + CHECK_INTERVAL
                    self._emit_progress()
                    self._check_disks()
                yield condition
        except StopIteration as stop:
            self._emit_progress()
            inputs: list[ReducerInput] = stop.value
            return inputs
        finally:
            steps.close()
            with _lock:
                _running.remove(self)

    def _emit_progress(self) -> None:
        maps = self.maps
        done = maps.parts, len(maps), maps.merged, maps.merges, maps.nbytes
        events.emit(events.ShuffleSeen(self._name, *done))

    def _check_disks(self) -> None:
        if not self._disks_known:
            return
        disks = self._futures.disks()
        full = find_full_disk(self._last_used, disks, self._reserve)
        if full is not None and self is _largest():
            grown = full.used - self._last_used[full.place]
            raise SpillError(
                f"shuffle {self._name} was stopped before the disk of {full.place} is full: it "
                f"has room for {format_bytes(full.room)}, need {format_bytes(self._reserve)}, "
                f"which is spilled at a time. Spilled values take {format_bytes(full.used)} there, "
                f"{format_bytes(grown)} more than at the last check; the maps of this shuffle "
                f"wrote {format_bytes(self.maps.nbytes)} so far. Free space there, name "
                f"directories on larger disks (exo.spill-directory), or raise "
                f"exo.object-store-memory"
            )
        self._last_used = {disk.place: disk.used for disk in disks}


_lock = threading.Lock()
_running: list[ShuffleMonitor] = []  # of this process, which has one connection to a cluster


def _largest() -> ShuffleMonitor | None:
    """Return the running shuffle with the largest map outputs."""
    with _lock:
        return max(_running, key=lambda shuffle: shuffle.maps.nbytes, default=None)


def find_full_disk(
    before: Mapping[str, int], disks: Sequence[DiskUsage], reserve: int
) -> DiskUsage | None:
    """Return the fullest directory that is about to fill up, if there is one.

    It has less room than ``reserve`` bytes, and more spilled values than at the last check
    (``before``: bytes by place; a missing directory is new).

    Examples
    --------
    >>> now = [DiskUsage("/a", 70, room=30), DiskUsage("/b", 70, room=900)]
    >>> find_full_disk({"'/a'": 60, "'/b'": 60}, now, reserve=40).path
    '/a'
    >>> find_full_disk({"'/a'": 70, "'/b'": 60}, now, reserve=40)  # nothing was spilled
    """
    filling = [d for d in disks if d.room < reserve and d.used > before.get(d.place, d.used)]
    return min(filling, key=lambda disk: disk.room, default=None)


def check_outputs(name: str, shape: Shape, nodes: Sequence[Node]) -> None:
    """Raise `OutOfMemoryError` if an output, which is assembled in memory, fits no node's memory.

    Examples
    --------
    >>> node = Node("a", slots=2, store=10**9, resources={"memory": 4e9})
    >>> check_outputs("sort", Shape(80 * 10**9, 100, 20, 1, 2, store=10**9), [node])
    >>> check_outputs("sort", Shape(80 * 10**9, 100, 8, 1, 2, store=10**9), [node])
    Traceback (most recent call last):
    ...
    dask_exo.errors.OutOfMemoryError: each of the 8 outputs of shuffle sort takes about \
9.31 GiB (by its first maps), the largest node has 3.73 GiB for its tasks. Make more of them: \
npartitions=20 or more
    """
    memory = [(node.resources or {}).get("memory") for node in nodes]
    largest = max((size for size in memory if size), default=None)
    need = shape.nbytes // max(shape.reducers, 1)
    if largest is None or need <= MEMORY_MARGIN * largest:
        return
    raise OutOfMemoryError(
        f"each of the {shape.reducers} outputs of shuffle {name} takes about {format_bytes(need)} "
        f"(by its first maps), the largest node has {format_bytes(int(largest))} for its tasks. "
        f"Make more of them: npartitions={-(-shape.nbytes // int(largest))} or more"
    )


def check_disk_space(name: str, shape: Shape, cost: ShuffleCost | None, disk: int | None) -> None:
    """Raise `SpillError` if spilled values of a shuffle do not fit on the disks.

    Examples
    --------
    >>> shape = Shape(8 * 10**9, 10, 10, 1, 2, store=10**9)
    >>> check_disk_space("sort", shape, None, disk=6 * 10**9)
    Traceback (most recent call last):
    ...
    dask_exo.errors.SpillError: shuffle sort moves about 7.45 GiB (by its first maps), the object \
store has 0.93 GiB, so about 6.52 GiB must be spilled; the disks have room for 5.59 GiB. Name \
directories on larger disks (exo.spill-directory), or raise exo.object-store-memory
    """
    spilled = shape.spilled() if cost is None else cost.spilled
    if disk is None or spilled <= disk:
        return
    moved, store = format_bytes(shape.nbytes), format_bytes(shape.store)
    raise SpillError(
        f"shuffle {name} moves about {moved} (by its first maps), the object store has {store}, so "
        f"about {format_bytes(int(spilled))} must be spilled; the disks have room for "
        f"{format_bytes(disk)}. Name directories on larger disks (exo.spill-directory), or raise "
        f"exo.object-store-memory"
    )
