"""What each algorithm would cost: arithmetic on sizes, for those who choose and those who ask why.

Nothing here is measured. Bytes spilled are those that do not fit the store; bytes restored count a
packed object whole each time that a reducer reads it, as Ray does. Blocks that a program combines
are smaller than is said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_exo.shuffle.choose import Choice, Shape
from dask_exo.shuffle.magnet import magnet_objects
from dask_exo.shuffle.push import push_objects
from dask_exo.shuffle.riffle import riffle_objects
from dask_exo.shuffle.simple import simple_objects
from dask_exo.shuffle.streaming import streaming_objects
from dask_exo.shuffle.two_level import two_level_objects

BOOKKEEPING = 2500  # bytes that Ray's driver keeps for a ref, measured: 2 to 3 kB


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
    """

    objects: int
    metadata: int
    spilled: int
    restored: int
    sent: int


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
    return {
        "simple": _cost(simple_objects(m, w), over, over * readers, crossing),
        "push": _cost(push_objects(m, r, w, rounds, width), over, over * width, crossing),
        "two-level": _cost(
            two_level_objects(
                m, r, w, groups=choice.groups, rounds=groups, width=width, probes=probes
            ),
            over,
            over * width,
            min(2 * crossing, crossing * choice.groups),
        ),
        "magnet": _cost(magnet_objects(m, r, w, rounds, width), twice, over * width, crossing),
        "riffle": _cost(riffle_objects(m, r, w, merges, width), over, over * width, crossing),
        "streaming": _cost(streaming_objects(m, r, w, rounds, width), over, over * width, crossing),
    }


def _cost(objects: int, spilled: int, restored: int, sent: int) -> Cost:
    return Cost(objects, objects * BOOKKEEPING, spilled, restored, sent)
