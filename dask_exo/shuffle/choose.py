"""Which shuffle, and with which knobs: decisions from numbers alone.

The guide is Exoshuffle section 3.5.1.2: data that stays in memory is shuffled fastest by
`simple`, which copies nothing twice, unless its M·R blocks are so small that taking them costs more
than to merge them; data that does not is shuffled by `push`, which writes
few large sequential pieces where `simple` would read back its spilled outputs R times. Where M maps
times W nodes are more objects than the driver can keep book of, `two_level` makes M·√W of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dask_exo.shuffle.merge_limits import Caps
from dask_exo.shuffle.stragglers import Patience

LARGEST_BATCH = 64 * 2**20  # bytes; a call beyond this has enough to do by any measure

MERGED = 4 * 2**20  # bytes; a merged block this large costs more by its bytes than as an object

LARGEST_ROUND = 0.3  # of the store; map output of twice that is alive at a time, and must fit

SHARED = 0.5  # of a node's store, which reducers that run may hold, with all for their neighbours

EVEN = 2  # times its part of a round that a node gets: what is more is not merged at once

MERGES = 3  # of `push` that a node does side by side at most: more would starve its maps


@dataclass(frozen=True)
class Shape:
    """A shuffle in numbers.

    Attributes
    ----------
    nbytes : int
        Of all map outputs; an estimate.
    parts, reducers, nodes : int
        M, R and W.
    slots : int
        Tasks that the cluster runs side by side.
    store : int
        Bytes of object store of the whole cluster.
    """

    nbytes: int
    parts: int
    reducers: int
    nodes: int
    slots: int
    store: int


@dataclass(frozen=True)
class Limits:
    """What a shuffle may take; see ``exo.yaml``.

    Attributes
    ----------
    algorithm : str
        The user's word, if not ``'auto'``.
    memory_fraction : float
        Share of the store that `simple` may fill.
    round_fraction : float
        Share of the store that half of the map output which is alive in `push` should fill; it
        may fill up to `LARGEST_ROUND` where slots would idle otherwise.
    most_objects : int
        Packed blocks that one shuffle may make.
    bundle_target : float
        Seconds of work that one call should at least do.
    tasks_per_slot : int
        Map calls in flight for each slot.
    patience : Patience, optional
        When map calls and merges are late; without it, nobody cares.
    merge_limit : int, optional
        Bytes that one merge takes at most; by default a share of a node's store: see `tune`.
    """

    algorithm: str = "auto"
    memory_fraction: float = 0.5
    round_fraction: float = 0.08
    most_objects: int = 5 * 10**6
    bundle_target: float = 0.05
    tasks_per_slot: int = 3
    patience: Patience | None = None
    merge_limit: int | None = None


@dataclass(frozen=True)
class Choice:
    """An algorithm, its knobs, and the reason in words.

    Attributes
    ----------
    algorithm : str
    per_round : int
        Parts in a round of `push`, `magnet`, `two_level` and `streaming`.
    reason : str
    width : int
        Neighbouring reducers that share merged blocks: one, if those are large enough.
    factor : int
        F, parts whose blocks `riffle` merges where they were made.
    groups : int
        G, groups of nodes of `two_level`.
    alive : int
        Rounds of map output of `push` that exist at a time, with the one that is being mapped.
    caps : tuple of int, optional
        Bytes that one merge takes: of the maps that were measured, and of the others.
    whole : int, optional
        Bytes of an output that is sorted as a whole; the sorted runs of a larger one are merged a
        chunk at a time.
    """

    algorithm: str
    per_round: int
    reason: str
    width: int = 1
    factor: int = 1
    groups: int = 1
    alive: int = 2
    caps: Caps | None = None
    whole: int | None = None


def batch_size(*, seconds: float, nbytes: int, remaining: int, slots: int, target: float) -> int:
    """How many tasks of one kind share a call.

    Parameters
    ----------
    seconds, nbytes : float, int
        Mean time and output of one such task.
    remaining : int
        Tasks still to start.
    slots : int
        Tasks that run side by side: each slot shall get two calls at least.
    target : float
        Seconds that a call shall last.

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


def tune(shape: Shape, limits: Limits) -> Choice:
    """Set the knobs of all algorithms for one shuffle, before one of them is chosen.

    Examples
    --------
    >>> def shape(nbytes, store, parts=100, reducers=1, slots=2):
    ...     return Shape(nbytes, parts, reducers, nodes=1, slots=slots, store=store)
    >>> tune(shape(10**10, 2 * 10**9), Limits()).per_round
    2
    >>> tune(shape(10**10, 2 * 10**9, reducers=10_000), Limits()).width
    209
    >>> wide = tune(shape(10**10, 10**10, slots=8), Limits())
    >>> wide.per_round, wide.alive  # 4 rounds of 4 parts, where 2 of 8 would leave slots idle
    (4, 4)
    """
    nbytes, parts, nodes, store = shape.nbytes, shape.parts, max(shape.nodes, 1), shape.store
    reducers = max(shape.reducers, 1)
    part = max(nbytes // max(parts, 1), 1)
    wanted_round = int(store * limits.round_fraction) // part
    largest_round = int(store * LARGEST_ROUND) // part
    per_round = max(1, min(parts, max(wanted_round, min(shape.slots, largest_round))))
    slots = max(1, shape.slots // nodes)  # of a node
    merges = max(1, min(MERGES, slots - 1))
    alive = min(merges + 1, 2 * per_round)
    if -(-parts // (2 * per_round // alive)) * reducers > limits.most_objects:
        alive = 2
    per_round = 2 * per_round // alive
    # what neighbours share is restored whole, and stays until the last of them has read it
    output = max(nbytes // reducers, 1)
    of_a_round = max(per_round * part // reducers, 1)
    together = max(LARGEST_BATCH // 2 // output, int(store * SHARED) // nodes // output - slots)
    width = max(1, min(MERGED // of_a_round, together, reducers))
    # a node merges what it has mapped, beside what its other slots make
    of_a_node = int(store * LARGEST_ROUND) // nodes // part
    factor = max(1, min(MERGED * reducers // part, of_a_node, parts))
    groups = math.ceil(math.sqrt(nodes))
    # a node gets an equal part of a round, unless keys are skewed or parts are larger than measured
    largest = int(2 * store * max(LARGEST_ROUND, limits.round_fraction)) // alive
    measured = max(largest, max(per_round, min(shape.slots, parts)) * part)
    caps = max(1, EVEN * measured // nodes), max(1, EVEN * largest // nodes)
    if limits.merge_limit is not None:
        caps = limits.merge_limit, limits.merge_limit
    # a task that sorts holds its output twice: all slots together take as much as the store
    whole = max(1, min(caps[1], store // (2 * max(shape.slots, 1))))
    return Choice(limits.algorithm, per_round, "", width, factor, groups, alive, caps, whole)


def choose(shape: Shape, limits: Limits, tuned: Choice, seconds: Mapping[str, float]) -> Choice:
    """Pick the algorithm of one shuffle; see `costs.weigh`.

    On one node nothing is sent, and reducers that share a call read their blocks together: there
    `simple` is taken whenever the data fits. On several nodes each reducer takes a block of each
    map by itself, so that many small ones can cost more than the merges of `push`.

    Parameters
    ----------
    tuned : Choice
        Knobs.
    seconds : mapping
        What each algorithm is estimated to take.

    Examples
    --------
    >>> def chosen(nbytes, store, parts=100, nodes=1, push=2.0):
    ...     shape = Shape(nbytes, parts, 1, nodes, slots=2 * nodes, store=store)
    ...     tuned = tune(shape, Limits())
    ...     return choose(shape, Limits(), tuned, {"simple": 1.0, "push": push}).algorithm
    >>> chosen(10**9, 4 * 10**9), chosen(10**10, 4 * 10**9)
    ('simple', 'push')
    >>> chosen(10**9, 4 * 10**9, nodes=4, push=0.5), chosen(10**14, 10**13, 50_000, nodes=400)
    ('push', 'two-level')
    """
    nbytes, fraction = shape.nbytes, limits.memory_fraction
    size, store = human_size(nbytes), f"{fraction:.0%} of the {human_size(shape.store)} store"
    if limits.algorithm != "auto":
        algorithm, why = limits.algorithm, "exo.shuffle.algorithm says so"
    elif shape.parts * shape.nodes > limits.most_objects:
        algorithm = "two-level"
        most = f"more than {limits.most_objects:,} objects"
        why = f"{shape.parts:,} maps on {shape.nodes:,} nodes would make {most}"
    elif nbytes > fraction * shape.store:
        algorithm, why = "push", f"{size} exceed {store}"
    elif shape.nodes <= 1 or seconds["simple"] <= seconds["push"]:
        algorithm, why = "simple", f"{size} fit into {store}"
    else:
        algorithm = "push"
        blocks = f"{shape.parts:,} · {shape.reducers:,} small blocks"
        times = f"about {seconds['simple']:.2g} s, push {seconds['push']:.2g} s"
        why = f"{size} fit into {store}, but are {blocks}: simple would take {times}"
    return replace(tuned, algorithm=algorithm, reason=why)


def human_size(nbytes: float) -> str:
    """Bytes for people: ``'3.2 GB'``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000 or unit == "TB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    raise AssertionError
