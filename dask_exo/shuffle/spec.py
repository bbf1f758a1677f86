"""Description of a shuffle, without the algorithm that runs it.

Names as in the papers: M parts go in, R reducers come out, W nodes do the work. A map computes
a part and divides it into blocks. The blocks of all reducers on one node are packed into one
object, so that a map returns W objects and not R.

Maps and reducers count rows, which are compared at the end: a `Tally` does not depend on their
order, and costs little beside the copies that a shuffle makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from dask_exo.cluster.futures import Node, Ref, current_node
from dask_exo.cluster.resources import split_by_weight, split_evenly
from dask_exo.errors import IntegrityError

Owned = tuple[range, ...]
"""(W,) reducers whose blocks are packed together."""

_WORD = 2**64


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over rows that a shuffle must not change, modulo 2**64.

    Examples
    --------
    >>> Tally(2, 5, ("int64",), 7) + Tally(1, 3, ("int64",), 1)
    Tally(rows=3, places=8, dtypes=('int64',), keys=8)
    >>> Tally() + Tally(1, 3, ("int64",), 1)
    Tally(rows=1, places=3, dtypes=('int64',), keys=1)
    """

    rows: int = 0  # of frames; items of bags, elements of arrays
    places: int = 0  # sum over all rows of a hash of the reducer
    dtypes: tuple[str, ...] | None = ()  # of the key columns; None if parts differ
    keys: int = 0  # sum over the key columns of fixed width; comparable if ``dtypes`` are equal

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of the rows of both."""
        if not self.rows or not other.rows:
            return other if other.rows else self
        same = self.dtypes == other.dtypes
        return Tally(
            self.rows + other.rows,
            (self.places + other.places) % _WORD,
            self.dtypes if same else None,
            (self.keys + other.keys) % _WORD,
        )


def tally(
    counts: np.ndarray, first: int = 0, *, dtypes: tuple[str, ...] = (), keys: int = 0
) -> Tally:
    """Return the tally of ``counts`` : (k,) rows of k reducers, beginning with number ``first``."""
    counts = np.asarray(counts, np.uint64)
    # an odd multiplier of the golden ratio spreads neighbouring numbers over the word
    with np.errstate(over="ignore"):
        hashes = np.arange(first + 1, first + 1 + len(counts), dtype=np.uint64)
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        places = int((hashes * counts).sum(dtype=np.uint64))
    return Tally(int(counts.sum()), places, dtypes, keys)


def verify(name: str, sent: Tally, arrived: Tally) -> None:
    """Raise `IntegrityError` unless both sides of shuffle ``name`` agree.

    Examples
    --------
    >>> verify("shuffle", Tally(10, 4), Tally(10, 4))
    >>> verify("shuffle", Tally(10, 4), Tally(9, 3))
    Traceback (most recent call last):
    ...
    dask_exo.errors.IntegrityError: shuffle: 10 rows went in, 9 came out; no result is returned. \
Compute it again
    """
    if sent.rows != arrived.rows:
        raise IntegrityError(
            f"{name}: {sent.rows} rows went in, {arrived.rows} came out; no result is returned. "
            f"Compute it again"
        )
    comparable = sent.dtypes is not None and sent.dtypes == arrived.dtypes
    if sent.places != arrived.places or (comparable and sent.keys != arrived.keys):
        raise IntegrityError(
            f"{name}: as many rows came out as went in ({sent.rows}), but not the same ones, or "
            f"not where they belong; no result is returned. Compute it again"
        )


class MapOutput(list[Ref]):
    """(W,) packed blocks of one map call, each for the reducers of one range in ``owned``."""

    def __init__(self, owned: Sequence[range], parts: int = 1) -> None:
        super().__init__()
        self.owned: tuple[range, ...] = tuple(owned)
        self.parts = parts  # number
        self.sizes: tuple[int, ...] = ()  # bytes of each block, once the receipt is read
        self.final = False  # until these refs stay: a speculative attempt may replace them all


@dataclass(frozen=True)
class Receipt:
    """Report of a map about itself, for the driver."""

    tally: Tally = field(default_factory=Tally)  # rows and keys that it sent
    nbytes: int = 0  # of all blocks
    seconds: float = 0.0  # without waiting for inputs
    detail: Any = None  # anything that the parts need; see `Parts.note_receipt`
    node: str | None = field(default_factory=current_node)  # where it ran
    sizes: tuple[int, ...] = ()  # (W,) bytes of each block; empty if unknown


class Places:
    """Nodes that run the tasks of a shuffle; others may join, and some leave, before it ends."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.slots_of: dict[str, int] = {node.id: node.slots for node in nodes}
        self.share: float = 1.0  # of the slots, that the shuffle may use
        self.joined: bool = False  # whether a node has joined since the shuffle began

    def update(self, nodes: Sequence[Node]) -> None:
        """Use other nodes."""
        slots_of = {node.id: node.slots for node in nodes}
        self.joined |= not slots_of.keys() <= self.slots_of.keys()
        self.slots_of = slots_of

    @property
    def slots(self) -> int:
        """Number of tasks of the shuffle that the nodes run at the same time."""
        return max(1, int(self.share * self.all_slots))

    @property
    def all_slots(self) -> int:
        """Number of tasks that the nodes run at the same time, also of other programs."""
        return sum(self.slots_of.values())

    def prefer(self, node: str | None) -> str | None:
        """Return the preferred node of a task; None once nodes have joined that may run it, too.

        The cluster then places it by its inputs and by free slots.
        """
        return None if self.joined else node


@dataclass(frozen=True)
class Spec:
    """Functions and places of one shuffle, for every algorithm.

    ``map(owned, *call) -> (W packed blocks…, Receipt)`` takes (W,) ranges of reducers, and the
    arguments from `Parts.call`. ``merge(owned, *packed) -> iterator`` yields a packed block for
    each range of reducers in ``owned``: those blocks of every argument, in order. ``workers`` runs
    the maps in place of `Futures.split`, if they need more than plain tasks have; there are no
    speculative attempts then.
    """

    reducers: int  # R, the number of output partitions
    nodes: tuple[Node, ...]  # (W,) that reduce
    map: Callable[..., Sequence[Any]]
    merge: Callable[..., Iterator[Any]]
    slow: frozenset[str] = frozenset()  # nodes that get no reducers
    combines: bool = False  # ``merge`` returns one block a reducer, and accepts it as input, too
    workers: Callable[..., list[Ref]] | None = None
    places: Places = field(default_factory=lambda: Places(()), compare=False)  # from the nodes
    owned: Owned = field(init=False)  # the reducers of each node, in proportion to its slots

    def __post_init__(self) -> None:
        if not self.places.slots_of:
            self.places.slots_of = Places(self.nodes).slots_of
        weights = [0 if node.id in self.slow else node.slots for node in self.nodes]
        owned = split_by_weight(self.reducers, weights)
        object.__setattr__(self, "owned", tuple(owned))

    def place(self, w: int) -> str | None:
        """Return the preferred node of the reducers of node ``w``; None if it is the only one."""
        return self.places.prefer(self.nodes[w].id) if len(self.nodes) > 1 else None

    @property
    def slots(self) -> int:
        """Number of tasks that the cluster runs at the same time."""
        return self.places.slots

    @property
    def store(self) -> int:
        """Bytes of object store of the whole cluster."""
        return sum(node.store for node in self.nodes)

    @property
    def disk(self) -> int | None:
        """Free bytes of all disks for spilled values; None if those of a node are unknown."""
        free = [node.disk for node in self.nodes]
        return None if None in free else sum(size for size in free if size is not None)


@dataclass(frozen=True, slots=True)
class ReducerInput:
    """Input of reducer ``slot``: its block of every packed block in ``refs``.

    It should run on ``node``, where others read the same objects. ``keep_alive`` holds refs that
    live as long as the input does: those of the map outputs that were merged.
    """

    refs: tuple[Ref, ...] | list[Ref]
    slot: int
    node: str | None = None
    keep_alive: object = None


@dataclass(slots=True, eq=False)
class BlockRefs:
    """Objects with blocks of the same neighbouring reducers: a merged one, or map outputs."""

    reducers: range
    refs: list[Ref]


@dataclass(slots=True, eq=False)
class ReducerGroup:
    """Neighbouring reducers on node ``w`` that share merged blocks, and these blocks.

    A block that is a plain ref is final and for all reducers of the group.
    """

    w: int
    reducers: range
    blocks: list[BlockRefs | Ref]


def reducer_inputs(
    groups: Sequence[ReducerGroup], spec: Spec, keep_alive: object = None
) -> list[ReducerInput]:
    """Return the (R,) inputs of the reducers; ``keep_alive`` lives as long as they do."""
    return [
        ReducerInput(refs, slot, spec.place(group.w), keep_alive)
        for group in groups
        for slots, refs in group_by_refs(group.reducers, group.blocks)
        for slot in slots
    ]


def group_by_refs(
    reducers: range, blocks: Sequence[BlockRefs | Ref]
) -> Iterator[tuple[range, list[Ref]]]:
    """Divide ``reducers`` into ranges that read the same refs; yield each range and its refs."""
    partial = [block for block in blocks if isinstance(block, BlockRefs)]
    cuts = {cut for block in partial for cut in (block.reducers.start, block.reducers.stop)}
    inner = sorted(cut for cut in cuts if reducers.start < cut < reducers.stop)
    if not reducers:
        return
    for start, stop in pairwise([reducers.start, *inner, reducers.stop]):
        refs: list[Ref] = []
        for block in blocks:
            if not isinstance(block, BlockRefs):
                refs.append(block)
            elif start in block.reducers:
                refs += block.refs
        yield range(start, stop), refs


def overlap(a: range, b: range) -> range:
    """Return the reducers in both ranges."""
    return range(max(a.start, b.start), min(a.stop, b.stop))


def reducer_groups(spec: Spec, width: int) -> list[ReducerGroup]:
    """Divide the reducers of each node into groups of about ``width``, without blocks yet.

    Examples
    --------
    >>> spec = Spec(10, (Node("a", 1, 0), Node("b", 1, 0)), list, iter)
    >>> [group.reducers for group in reducer_groups(spec, 2) if group.w == 1]
    [range(5, 6), range(6, 8), range(8, 10)]
    """
    return [
        ReducerGroup(w, owned[part.start : part.stop], [])
        for w, owned in enumerate(spec.owned)
        if owned
        for part in split_evenly(len(owned), -(-len(owned) // width))
    ]
