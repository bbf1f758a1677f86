"""Cost of a shuffle: arithmetic on sizes, from which each algorithm estimates its own.

Sizes are measured on the first maps, speeds are constants. Bytes spilled are those that do not fit
the store; bytes restored count a packed object whole each time that a reducer reads it, as Ray
does. Blocks that a program combines are smaller than is said here.
"""

from __future__ import annotations

from dataclasses import dataclass

from dask_exo.shuffle.choose import Shape

BOOKKEEPING = 2500  # bytes that Ray's driver keeps for a ref, measured: 2 to 3 kB

COPY = 400e6  # bytes/s that a slot packs, merges or assembles
NET, DISK = 1e9, 400e6  # bytes/s of a node; Ray has been measured to write 320e6, to read 500e6
MADE, TAKEN = 0.001, 0.0001  # seconds for an object that a task makes or takes, measured on Ray


@dataclass(frozen=True)
class ShuffleCost:
    """Estimated cost of one algorithm.

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


def estimate(  # noqa: PLR0913  each is a number of its own
    shape: Shape, *, passes: int, objects: int, taken: int, spilled: int, restored: int, sent: int
) -> ShuffleCost:
    """Estimate the cost of one algorithm.

    Parameters
    ----------
    shape : Shape
    passes : int
        Times that every byte is copied.
    objects, taken : int
        Objects that tasks make, and that they take as arguments.
    spilled, restored, sent : int
        Bytes; see `ShuffleCost`.
    """
    nodes = max(shape.nodes, 1)
    busy = passes * shape.nbytes / COPY + MADE * objects + TAKEN * taken
    seconds = busy / max(shape.slots, 1) + sent / (NET * nodes)
    seconds += (spilled + restored) / (DISK * nodes)
    return ShuffleCost(objects, objects * BOOKKEEPING, spilled, restored, sent, seconds)


def estimate_merging(shape: Shape, merges: int, width: int, *, held: int = 1) -> ShuffleCost:
    """Estimate the cost of an algorithm that merges the output of every map once.

    Parameters
    ----------
    shape : Shape
    merges : int
        Merges for each reducer.
    width : int
        Neighbouring reducers that share merged blocks.
    held : int
        Copies of the data that exist at the same time.

    Examples
    --------
    >>> shape = Shape(10**10, parts=100, reducers=100, nodes=1, slots=2, store=2 * 10**9)
    >>> cost = estimate_merging(shape, merges=25, width=1)
    >>> cost.objects, cost.restored // 10**9
    (2700, 8)
    """
    m, r, w = shape.parts, shape.reducers, shape.nodes
    return estimate(
        shape,
        passes=3,
        objects=merging_objects(m, r, w, merges, width),
        taken=m * w + merges * r,
        spilled=excess(shape, held),
        restored=excess(shape) * width,
        sent=crossing(shape),
    )


def merging_objects(calls: int, reducers: int, nodes: int, merges: int, width: int = 1) -> int:
    """Count packed blocks, receipts and merged blocks: M·(W + 1) + merges·R.

    Where ``width`` reducers share merged blocks, there are as many times fewer of those. Rounds in
    which a node gets more than one merge may take count more than once.
    """
    return calls * (nodes + 1) + merges * merged_objects(reducers, nodes, width)


def merged_objects(reducers: int, nodes: int, width: int) -> int:
    """Count the merged blocks of one round, for all nodes: R, or about R / width."""
    fewer, nodes_with_more = divmod(reducers, nodes)
    return (nodes - nodes_with_more) * -(-fewer // width) + nodes_with_more * -(
        -(fewer + 1) // width
    )


def excess(shape: Shape, copies: int = 1) -> int:
    """Count the bytes that do not fit the store."""
    return max(0, copies * shape.nbytes - shape.store)


def crossing(shape: Shape) -> int:
    """Count the bytes that go from one node to another."""
    return shape.nbytes * (shape.nodes - 1) // shape.nodes
