"""Which shuffle, and with which knobs: decisions from numbers alone.

The guide is Exoshuffle section 3.5.1.2: data that stays in memory is shuffled fastest by
`simple`, which copies nothing twice; data that does not is shuffled by `push`, which writes
few large sequential pieces where `simple` would read back its spilled outputs R times. Where M maps
times W nodes are more objects than the driver can keep book of, `two_level` makes M·√W of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST_BATCH = 64 * 2**20  # bytes; a call beyond this has enough to do by any measure

MERGED = 4 * 2**20  # bytes; a merged block this large costs more by its bytes than as an object

LARGEST_ROUND = 0.3  # of the store; two rounds of `push` are alive at a time, and must fit


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
        Share of the store that one round of `push` should fill; it may fill up to `LARGEST_ROUND`
        where slots would idle otherwise.
    most_objects : int
        Packed blocks that one shuffle may make.
    bundle_target : float
        Seconds of work that one call should at least do.
    tasks_per_slot : int
        Map calls in flight for each slot.
    """

    algorithm: str = "auto"
    memory_fraction: float = 0.5
    round_fraction: float = 0.08
    most_objects: int = 5 * 10**6
    bundle_target: float = 0.05
    tasks_per_slot: int = 3


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
    """

    algorithm: str
    per_round: int
    reason: str
    width: int = 1
    factor: int = 1
    groups: int = 1


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


def choose(shape: Shape, limits: Limits) -> Choice:
    """Pick the algorithm of one shuffle, and its knobs.

    Examples
    --------
    >>> def shape(nbytes, store, parts=100, reducers=1, nodes=1):
    ...     return Shape(nbytes, parts, reducers, nodes, slots=2, store=store)
    >>> choose(shape(10**9, 4 * 10**9), Limits()).algorithm
    'simple'
    >>> choose(shape(10**10, 2 * 10**9), Limits()).per_round
    2
    >>> choose(shape(10**10, 2 * 10**9, reducers=10_000), Limits()).width
    33
    >>> choose(shape(10**14, 10**13, 50_000, nodes=400), Limits()).algorithm
    'two-level'
    """
    nbytes, parts, nodes, store = shape.nbytes, shape.parts, shape.nodes, shape.store
    reducers, most = max(shape.reducers, 1), limits.most_objects
    part = max(nbytes // max(parts, 1), 1)
    wanted_round = int(store * limits.round_fraction) // part
    largest_round = int(store * LARGEST_ROUND) // part
    per_round = max(1, min(parts, max(wanted_round, min(shape.slots, largest_round))))
    # what neighbours share is restored whole: a call must be able to take all of it at once
    output = max(nbytes // reducers, 1)
    of_a_round = max(per_round * part // reducers, 1)
    width = max(1, min(MERGED // of_a_round, LARGEST_BATCH // 2 // output, reducers))
    # a node merges what it has mapped, beside what its other slots make
    of_a_node = int(store * LARGEST_ROUND) // max(nodes, 1) // part
    factor = max(1, min(MERGED * reducers // part, of_a_node, parts))
    fraction = limits.memory_fraction
    if limits.algorithm != "auto":
        algorithm, why = limits.algorithm, "exo.shuffle.algorithm says so"
    elif parts * nodes > most:
        algorithm = "two-level"
        why = f"{parts:,} maps on {nodes:,} nodes would make more than {most:,} objects"
    elif nbytes <= fraction * store:
        algorithm = "simple"
        why = f"{human_size(nbytes)} fit into {fraction:.0%} of the {human_size(store)} store"
    else:
        algorithm = "push"
        why = f"{human_size(nbytes)} exceed {fraction:.0%} of the {human_size(store)} store"
    return Choice(algorithm, per_round, why, width, factor, math.ceil(math.sqrt(nodes)))


def human_size(nbytes: float) -> str:
    """Bytes for people: ``'3.2 GB'``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 1000 or unit == "TB":
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    raise AssertionError
