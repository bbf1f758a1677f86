"""Choice of an algorithm and its knobs: decisions from numbers alone.

The guide is Exoshuffle section 3.5.1.2: data that stays in memory is shuffled fastest by `simple`,
which copies nothing twice, unless its M·R blocks are so small that reading them costs more than
merging them. Other data is shuffled by `push`, which writes few large objects where `simple` would
spill and restore many small ones. If M maps times W nodes are more objects than the driver can
track, `two_level` makes M·√W of them.

Each algorithm estimates its own cost by the arithmetic at the end. Sizes are measured on the first
maps, speeds are constants. Bytes spilled are those that do not fit the store. Bytes restored count
a packed object whole, as Ray reads it, but once for all reducers that run at the same time. The
estimate does not know that combined blocks are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask.utils import format_bytes

from dask_exo.shuffle.stragglers import SpeculationPolicy

LARGEST_BATCH = 64 * 2**20  # bytes; a larger call is not batched with others

LARGE_BLOCK = 4 * 2**20  # bytes; a larger merged block costs more by its bytes than as an object

LARGEST_ROUND = 0.3  # of the store; twice that exists at a time, and must fit

SHARED_FRACTION = 0.5  # of a node's store, for running reducers and those that share their blocks

MOST_SHARES = 2  # times the equal share of a round; a node that gets more does several merges

MERGES_PER_NODE = 3  # of `push` that run on a node at the same time; more would starve its maps

INLINED = 100_000  # bytes; Ray keeps smaller outputs of tasks in the driver's memory

BOOKKEEPING = 2500  # bytes that Ray's driver keeps for a ref, measured: 2 to 3 kB

COPY_SPEED = 400e6  # bytes/s that a slot packs, merges or assembles
NET_SPEED = 1e9  # bytes/s of a node
DISK_SPEED = 400e6  # bytes/s of a node; Ray was measured to write 320e6, and to read 500e6
OUTPUT, INPUT = 0.001, 0.0001  # seconds for an output or an input of a task, measured on Ray


@dataclass(frozen=True)
class Shape:
    """Size of a shuffle and of its cluster.

    Attributes
    ----------
    nbytes : int
        Of all map outputs; an estimate.
    parts, reducers, nodes : int
        M, R and W.
    slots : int
        Tasks that the cluster runs at the same time.
    store : int
        Bytes of object store of the whole cluster.
    """

    nbytes: int
    parts: int
    reducers: int
    nodes: int
    slots: int
    store: int

    @property
    def part(self) -> int:
        """Bytes of the map output of one part."""
        return max(self.nbytes // max(self.parts, 1), 1)

    @property
    def sent(self) -> int:
        """Bytes that go from one node to another."""
        return self.nbytes * (self.nodes - 1) // self.nodes

    def spilled(self, copies: int = 1) -> int:
        """Return the bytes that do not fit the store."""
        return max(0, copies * self.nbytes - self.store)


@dataclass(frozen=True)
class Limits:
    """Limits on what a shuffle uses; see ``exo.yaml``.

    Attributes
    ----------
    algorithm : str
        Name of an algorithm, or ``'auto'``.
    memory_fraction : float
        Share of the store that `simple` may fill.
    round_fraction : float
        Share of the store that half of the map output which is alive in `push` should fill; it
        may fill up to `LARGEST_ROUND` where slots would idle otherwise.
    most_objects : int
        Packed blocks that one shuffle may create.
    bundle_target : float
        Seconds of work that one call should at least do.
    tasks_per_slot : int
        Map calls in flight for each slot.
    speculation : SpeculationPolicy, optional
        Thresholds of late map calls and merges; without it, no speculation.
    merge_limit : int, optional
        Bytes that one merge takes at most; by default a share of a node's store.
    """

    algorithm: str = "auto"
    memory_fraction: float = 0.5
    round_fraction: float = 0.08
    most_objects: int = 5 * 10**6
    bundle_target: float = 0.05
    tasks_per_slot: int = 3
    speculation: SpeculationPolicy | None = None
    merge_limit: int | None = None


MergeLimits = tuple[int, int]
"""Maximum bytes of one merge: of the maps that were measured, and of the others."""

Knobs = Mapping[str, Any]
"""Keyword arguments of an algorithm, by name."""


class RoundKnobs(NamedTuple):
    """Knobs that most algorithms share.

    Attributes
    ----------
    per_round : int
        Parts that are mapped in one round.
    alive : int
        Rounds of map output that exist at a time, with the one that is being mapped.
    width : int
        Neighbouring reducers that share merged blocks: one, if those are large enough.
    caps : tuple of int
        See `MergeLimits`.
    whole : int
        Bytes of an output that is sorted as a whole; the sorted runs of a larger one are merged a
        chunk at a time.
    """

    per_round: int
    alive: int
    width: int
    caps: MergeLimits
    whole: int


@dataclass(frozen=True)
class Choice:
    """An algorithm, the reason in words, and knobs by name.

    An algorithm takes those knobs that are its keyword-only parameters.
    """

    algorithm: str
    reason: str
    knobs: Knobs

    @property
    def per_round(self) -> int:
        """See `RoundKnobs`."""
        return int(self.knobs["per_round"])

    @property
    def whole(self) -> int:
        """See `RoundKnobs`."""
        return int(self.knobs["whole"])


def batch_size(*, seconds: float, nbytes: int, remaining: int, slots: int, target: float) -> int:
    """Return how many tasks of one kind share a call that should take ``target`` seconds.

    Such a task takes ``seconds`` and returns ``nbytes`` on average. Each of the ``slots`` gets at
    least two calls of the ``remaining`` tasks.

    Examples
    --------
    >>> batch_size(seconds=0.001, nbytes=1000, remaining=400, slots=2, target=0.05)
    50
    >>> batch_size(seconds=1.0, nbytes=1000, remaining=400, slots=2, target=0.05)
    1
    """
    by_time = int(target / max(seconds, 1e-6))
    by_bytes = LARGEST_BATCH // max(nbytes, 1)
    by_balance = -(-remaining // (2 * slots))
    return max(1, min(by_time, by_bytes, by_balance))


def round_knobs(shape: Shape, limits: Limits) -> RoundKnobs:
    """Compute the size of rounds, and the knobs that depend on it.

    Examples
    --------
    >>> def shape(nbytes, store, parts=100, reducers=1, slots=2):
    ...     return Shape(nbytes, parts, reducers, nodes=1, slots=slots, store=store)
    >>> round_knobs(shape(10**10, 2 * 10**9), Limits()).per_round
    2
    >>> round_knobs(shape(10**10, 2 * 10**9, reducers=10_000), Limits()).width
    209
    >>> wide = round_knobs(shape(10**10, 10**10, slots=8), Limits())
    >>> wide.per_round, wide.alive  # 4 rounds of 4 parts, where 2 of 8 would leave slots idle
    (4, 4)
    """
    per_round, alive = _rounds(shape, limits)
    caps = _merge_limits(shape, limits, per_round, alive)
    # a task that sorts holds its output twice: all slots together take as much as the store
    whole = max(1, min(caps[1], shape.store // (2 * max(shape.slots, 1))))
    return RoundKnobs(per_round, alive, _width(shape, per_round), caps, whole)


def _rounds(shape: Shape, limits: Limits) -> tuple[int, int]:
    """Return the parts of a round, and the rounds that exist at a time."""
    fitting = int(shape.store * limits.round_fraction) // shape.part
    largest = int(shape.store * LARGEST_ROUND) // shape.part
    per_round = max(1, min(shape.parts, max(fitting, min(shape.slots, largest))))
    slots = max(1, shape.slots // max(shape.nodes, 1))  # of a node
    if slots == 1 and per_round > fitting:  # a node has nothing else to do while it merges
        return per_round, 1
    merges = max(1, min(MERGES_PER_NODE, slots - 1))
    alive = min(merges + 1, 2 * per_round)
    rounds = -(-shape.parts // (2 * per_round // alive))
    if rounds * max(shape.reducers, 1) > limits.most_objects:
        alive = 2
    return 2 * per_round // alive, alive


def _width(shape: Shape, per_round: int) -> int:
    """Return how many neighbouring reducers share merged blocks."""
    nodes, reducers = max(shape.nodes, 1), max(shape.reducers, 1)
    slots = max(1, shape.slots // nodes)
    # a shared block is restored whole, and stays until the last neighbour has read it
    output = max(shape.nbytes // reducers, 1)
    of_a_round = max(per_round * shape.part // reducers, 1)
    of_a_node = int(shape.store * SHARED_FRACTION) // nodes // output
    limit = max(LARGEST_BATCH // 2 // output, (of_a_node - slots) // 2)  # two groups are read
    return max(1, min(LARGE_BLOCK // of_a_round, limit, reducers))


def _merge_limits(shape: Shape, limits: Limits, per_round: int, alive: int) -> MergeLimits:
    if limits.merge_limit is not None:
        return limits.merge_limit, limits.merge_limit
    nodes = max(shape.nodes, 1)
    # a node gets an equal part of a round, unless keys are skewed or parts are larger than measured
    largest = int(2 * shape.store * max(LARGEST_ROUND, limits.round_fraction)) // max(2, alive)
    measured = max(largest, max(per_round, min(shape.slots, shape.parts)) * shape.part)
    return max(1, MOST_SHARES * measured // nodes), max(1, MOST_SHARES * largest // nodes)


def choose(shape: Shape, limits: Limits, seconds: Mapping[str, float]) -> tuple[str, str]:
    """Choose the algorithm of one shuffle by estimated ``seconds``; return its name and why.

    On one node nothing is sent, and reducers that share a call read their blocks together, so
    `simple` is chosen whenever the data fits. On several nodes each reducer reads a block of each
    map by itself, so many small blocks can cost more than the merges of `push`.

    Examples
    --------
    >>> def chosen(nbytes, store, parts=100, nodes=1, push=2.0):
    ...     shape = Shape(nbytes, parts, 1, nodes, slots=2 * nodes, store=store)
    ...     return choose(shape, Limits(), {"simple": 1.0, "push": push})[0]
    >>> chosen(10**9, 4 * 10**9), chosen(10**10, 4 * 10**9)
    ('simple', 'push')
    >>> chosen(10**9, 4 * 10**9, nodes=4, push=0.5), chosen(10**14, 10**13, 50_000, nodes=400)
    ('push', 'two-level')
    """
    nbytes, fraction = shape.nbytes, limits.memory_fraction
    size = format_bytes(int(nbytes))
    store = f"{fraction:.0%} of the {format_bytes(shape.store)} store"
    if limits.algorithm != "auto":
        return limits.algorithm, "exo.shuffle.algorithm says so"
    if shape.parts * shape.nodes > limits.most_objects:
        most = f"more than {limits.most_objects:,} objects"
        return "two-level", f"{shape.parts:,} maps on {shape.nodes:,} nodes would make {most}"
    if nbytes > fraction * shape.store:
        return "push", f"{size} exceed {store}"
    if shape.nodes <= 1 or seconds["simple"] <= seconds["push"]:
        return "simple", f"{size} fit into {store}"
    blocks = f"{shape.parts:,} · {shape.reducers:,} small blocks"
    times = f"about {seconds['simple']:.2g} s, push {seconds['push']:.2g} s"
    return "push", f"{size} fit into {store}, but are {blocks}: simple would take {times}"


@dataclass(frozen=True)
class ShuffleCost:
    """Estimated cost of one algorithm.

    Attributes
    ----------
    objects : int
        Refs created, if no parts share a call.
    metadata : int
        Bytes that the driver keeps for them.
    spilled, restored, sent : int
        Bytes written to disk, read back, and sent from node to node.
    seconds : float
        Estimate, without the tasks that compute the parts: passes over the bytes, and outputs and
        inputs of tasks, on all slots; bytes sent, on all networks; bytes spilled and restored, on
        all disks; one after another, no two tasks sharing a call.
    """

    objects: int
    metadata: int
    spilled: int
    restored: int
    sent: int
    seconds: float


def estimate(  # noqa: PLR0913  each is a number of its own
    shape: Shape, *, passes: int, objects: int, inputs: int, spilled: int, restored: int, sent: int
) -> ShuffleCost:
    """Estimate the cost of an algorithm that copies every byte in each of ``passes``.

    Its tasks return ``objects`` objects and read ``inputs`` as arguments.
    """
    nodes = max(shape.nodes, 1)
    busy = passes * shape.nbytes / COPY_SPEED + OUTPUT * objects + INPUT * inputs
    seconds = busy / max(shape.slots, 1) + sent / (NET_SPEED * nodes)
    seconds += (spilled + restored) / (DISK_SPEED * nodes)
    return ShuffleCost(objects, objects * BOOKKEEPING, spilled, restored, sent, seconds)


def estimate_merging(
    shape: Shape, limits: Limits, *, per_merge: int | None = None, copies: int = 1
) -> ShuffleCost:
    """Estimate the cost of an algorithm that merges the output of every map once.

    A merge takes ``per_merge`` parts, by default those of a round. There are ``copies`` of the data
    at the same time.

    Examples
    --------
    >>> shape = Shape(10**10, parts=100, reducers=100, nodes=1, slots=2, store=2 * 10**9)
    >>> cost = estimate_merging(shape, Limits(), per_merge=4)
    >>> cost.objects, cost.restored // 10**9
    (1450, 8)
    """
    m, r, w = shape.parts, shape.reducers, shape.nodes
    knobs = round_knobs(shape, limits)
    merges = -(-m // (per_merge or knobs.per_round))  # that each reducer reads
    return estimate(
        shape,
        passes=3,
        objects=merging_objects(m, r, w, merges, knobs.width),
        inputs=m * w + merges * r,
        spilled=shape.spilled(copies),
        restored=shape.spilled(),  # neighbours that share a block read it together
        sent=shape.sent,
    )


def merging_objects(calls: int, reducers: int, nodes: int, merges: int, width: int = 1) -> int:
    """Count packed blocks, receipts and merged blocks: M·(W + 1) + merges·R / width.

    A round in which a node gets more than one merge counts once for each.
    """
    return calls * (nodes + 1) + merges * merged_objects(reducers, nodes, width)


def merged_objects(reducers: int, nodes: int, width: int) -> int:
    """Count the merged blocks of one round, for all nodes: R, or about R / width."""
    fewer, nodes_with_more = divmod(reducers, nodes)
    larger = nodes_with_more * -(-(fewer + 1) // width)
    return larger + (nodes - nodes_with_more) * -(-fewer // width)
