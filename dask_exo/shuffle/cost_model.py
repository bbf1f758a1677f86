"""What each algorithm would cost: arithmetic on sizes, for those who choose and those who ask why.

Sizes are measured on the first maps, speeds are constants. Bytes spilled are those that do not fit
the store; bytes restored count a packed object whole each time that a reducer reads it, as Ray
does. Blocks that a program combines are smaller than is said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_exo.shuffle.algorithms.magnet import magnet_objects
from dask_exo.shuffle.algorithms.push import push_objects
from dask_exo.shuffle.algorithms.riffle import riffle_objects
from dask_exo.shuffle.algorithms.simple import simple_objects
from dask_exo.shuffle.algorithms.streaming import streaming_objects
from dask_exo.shuffle.algorithms.two_level import two_level_objects
from dask_exo.shuffle.choose import Choice, Limits, Shape, choose, tune

BOOKKEEPING = 2500  # bytes that Ray's driver keeps for a ref, measured: 2 to 3 kB

COPY = 400e6  # bytes/s that a slot packs, merges or assembles
NET, DISK = 1e9, 400e6  # bytes/s of a node; Ray has been measured to write 320e6, to read 500e6
MADE, TAKEN = 0.001, 0.0001  # seconds for an object that a task makes or takes, measured on Ray


@dataclass(frozen=True)
class Cost:
    """What one algorithm would take for it.

    Attributes
    ----------
    objects : int
        Refs made, if no parts share a call.
    metadata : int
        Bytes that the driver keeps for them.
    spilled, restored, sent : int
        Bytes written to disk, read back, and sent from node to node.
    seconds : float
        Estimate, without what makes the parts: the passes over the bytes, objects made and
        objects taken, on all slots; bytes sent, on all networks; bytes spilled and restored, on all
        disks; one after another, no two tasks sharing a call.
    """

    objects: int
    metadata: int
    spilled: int
    restored: int
    sent: int
    seconds: float


def costs(shape: Shape, choice: Choice) -> dict[str, Cost]:
    """The cost of each algorithm, with the knobs of ``choice``.

    Examples
    --------
    >>> shape = Shape(10**10, parts=100, reducers=100, nodes=1, slots=2, store=2 * 10**9)
    >>> found = costs(shape, Choice("push", 4, ""))
    >>> found["simple"].restored // 10**9, found["push"].restored // 10**9
    (800, 8)
    """
    m, r, w, width = shape.parts, shape.reducers, shape.nodes, choice.width
    rounds, probes = -(-m // choice.per_round), min(m, shape.slots)
    groups = 1 + -(-(m - probes) // choice.per_round)
    over = max(0, shape.nbytes - shape.store)
    twice = max(0, 2 * shape.nbytes - shape.store)
    crossing = shape.nbytes * (w - 1) // w
    readers = -(-r // w)  # of each packed object of `simple`
    merges = -(-m // choice.factor)
    in_two = two_level_objects(
        m, r, w, groups=choice.groups, rounds=groups, width=width, probes=probes
    )
    again = min(2 * crossing, crossing * choice.groups)
    # passes over the bytes, objects made and taken, bytes spilled, restored and sent
    found: dict[str, tuple[int, int, int, int, int, int]] = {
        "simple": (2, simple_objects(m, w), m * r, over, over * readers, crossing),
        "push": (
            3, push_objects(m, r, w, rounds, width), m * w + rounds * r,
            over, over * width, crossing,
        ),
        "two-level": (3, in_two, m * choice.groups + groups * r, over, over * width, again),
        "magnet": (
            3, magnet_objects(m, r, w, rounds, width), m * w + rounds * r,
            twice, over * width, crossing,
        ),
        "riffle": (
            3, riffle_objects(m, r, w, merges, width), m * w + merges * r,
            over, over * width, crossing,
        ),
        "streaming": (
            3, streaming_objects(m, r, w, rounds, width), m * w + rounds * r,
            over, over * width, crossing,
        ),
    }  # fmt: skip
    return {name: _cost(shape, each) for name, each in found.items()}


def weigh(shape: Shape, limits: Limits) -> tuple[Choice, dict[str, Cost]]:
    """Choose how to do a shuffle; say what each algorithm would cost.

    Examples
    --------
    >>> shape = Shape(16 * 10**9, 1024, 1024, nodes=4, slots=16, store=40 * 10**9)
    >>> choice, found = weigh(shape, Limits())
    >>> choice.algorithm, found["simple"].seconds > found["push"].seconds
    ('push', True)
    """
    tuned = tune(shape, limits)
    found = costs(shape, tuned)
    seconds = {name: cost.seconds for name, cost in found.items()}
    return choose(shape, limits, tuned, seconds), found


def _cost(shape: Shape, counts: tuple[int, int, int, int, int, int]) -> Cost:
    passes, objects, taken, spilled, restored, sent = counts
    nodes = max(shape.nodes, 1)
    busy = passes * shape.nbytes / COPY + MADE * objects + TAKEN * taken
    seconds = busy / max(shape.slots, 1) + sent / (NET * nodes)
    seconds += (spilled + restored) / (DISK * nodes)
    return Cost(objects, objects * BOOKKEEPING, spilled, restored, sent, seconds)
