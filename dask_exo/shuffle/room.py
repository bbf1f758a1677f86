"""Whether the disks have room for what a shuffle spills: before it starts, and while it runs.

A disk that is full fails whatever needs the object store next. So the shuffle that has made most is
stopped before: when a batch of spilled values may not fit any more while spilled values still grow.
What it holds is let go then, and the others go on.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeVar

from dask_exo.errors import SpillError
from dask_exo.futures import Disk, Futures, Steps
from dask_exo.shuffle.choose import Shape, human_size
from dask_exo.shuffle.costs import Cost
from dask_exo.shuffle.maps import Maps
from dask_exo.shuffle.spec import Spec

T = TypeVar("T")

EVERY = 1.0  # seconds between two looks

BATCH = 4  # a quarter of its store is what a node writes at a time


def check_room(name: str, shape: Shape, cost: Cost | None, disk: int | None) -> None:
    """Raise `SpillError` if what a shuffle must spill has no room on the disks.

    Examples
    --------
    >>> shape = Shape(8 * 10**9, 10, 10, 1, 2, store=10**9)
    >>> check_room("sort", shape, None, disk=6 * 10**9)
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


def short(before: Mapping[str, int], disks: Sequence[Disk], reserve: int) -> Disk | None:
    """Find a directory that fills up.

    Parameters
    ----------
    before : mapping
        Bytes of spilled values in each at the last look; one that is not in it is new.
    disks : sequence of Disk
        How they are now.
    reserve : int
        Bytes that there shall be room for.

    Examples
    --------
    >>> now = [Disk("/a", 70, 90, room=30), Disk("/b", 70, 70, room=900)]
    >>> short({"/a": 60, "/b": 60}, now, reserve=40).path
    '/a'
    >>> short({"/a": 70, "/b": 60}, now, reserve=40)  # nothing has come
    """
    filling = [d for d in disks if d.room < reserve and d.used > before.get(d.path, d.used)]
    return min(filling, key=lambda disk: disk.room, default=None)


class Watch:
    """Looks at the disks while a shuffle runs.

    Parameters
    ----------
    name : str
        Of the shuffle.
    futures : Futures
    maps : Maps
        Its maps.
    spec : Spec
    """

    def __init__(self, name: str, futures: Futures, maps: Maps, spec: Spec) -> None:
        self._name, self._futures, self._maps = name, futures, maps
        self._known = spec.disk is not None
        self._reserve = max(node.store for node in spec.nodes) // BATCH
        self._before: dict[str, int] = {}
        self._due = futures.now + EVERY

    def look(self) -> None:
        """Raise `SpillError` if a disk fills up and no shuffle has made more than this one."""
        if not self._known or self._futures.now < self._due:
            return
        self._due = self._futures.now + EVERY
        disks = self._futures.disks()
        full = short(self._before, disks, self._reserve)
        if full is not None and self is _largest():
            grown = full.used - self._before[full.path]
            raise SpillError(
                f"shuffle {self._name} was stopped before the disk of {full.path!r} is full: it "
                f"has room for {human_size(full.room)}, need {human_size(self._reserve)}, which "
                f"is spilled at a time. Spilled values take {human_size(full.used)} there, "
                f"{human_size(grown)} more than at the last look; this shuffle has made "
                f"{human_size(self._maps.nbytes)} so far. Free space there, name directories on "
                f"larger disks (exo.spill-directory), or raise exo.object-store-memory"
            )
        self._before = {disk.path: disk.used for disk in disks}

    def over(self, steps: Steps[T]) -> Steps[T]:
        """Run a coroutine of the shuffle, and look at the disks whenever it waits."""
        with _lock:
            _watches.append(self)
        try:
            return (yield from _interrupted(steps, self))
        finally:
            with _lock:
                _watches.remove(self)

    @property
    def made(self) -> int:
        """Bytes of the maps so far."""
        return self._maps.nbytes


def _interrupted(steps: Steps[T], watch: Watch) -> Generator[Any, None, T]:
    try:
        while True:
            asked = next(steps)
            watch.look()
            yield asked
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    finally:
        steps.close()


_lock = threading.Lock()
_watches: list[Watch] = []  # of all shuffles of this process, whose connection to a cluster is one


def _largest() -> Watch | None:
    """The shuffle that has made most."""
    with _lock:
        return max(_watches, key=lambda watch: watch.made, default=None)
