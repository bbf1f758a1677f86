"""What is shuffled, apart from how.

Names as in the papers: M parts go in, R reducers come out, W nodes do the work. A map makes
one part and cuts it; the blocks of all the reducers that live on one node are packed into one
object, so that a map returns W objects and not R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from dask_exo.cluster.futures import Node, Ref, evenly, here, in_proportion
from dask_exo.shuffle.integrity import Tally


class MapOutput(list[Ref]):
    """(W,) the packed blocks of one map call.

    Attributes
    ----------
    owned : (W,) ranges
        Reducers whose blocks are packed together in each.
    parts : int
        Parts of the call.
    sizes : tuple of int, (W,)
        Bytes of each block, when the call has told them.
    final : bool
        Whether these refs will stay: until then a copy of the call may replace them all.
    """

    def __init__(self, owned: Sequence[range], parts: int = 1) -> None:
        super().__init__()
        self.owned = tuple(owned)
        self.parts = parts
        self.sizes: tuple[int, ...] = ()
        self.final = False


@dataclass(frozen=True)
class Receipt:
    """What a map tells the driver about itself.

    Attributes
    ----------
    tally : Tally
        Rows and keys it sent.
    nbytes : int
        Bytes of the blocks it made.
    seconds : float
        Time it took, without waiting.
    detail : object, optional
        What the maker of the parts wants to know; see `Parts.note_receipt`.
    node : str, optional
        Where it ran.
    sizes : tuple of int, (W,)
        Bytes of each of those blocks; empty where that is not known.
    """

    tally: Tally = field(default_factory=Tally)
    nbytes: int = 0
    seconds: float = 0.0
    detail: Any = None
    node: str | None = field(default_factory=here)
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Spec:
    """One shuffle, for every algorithm.

    Attributes
    ----------
    reducers : int
        R, the number of output partitions.
    nodes : tuple of Node
        (W,) the nodes that reduce.
    map : callable
        ``map(owned, *call) -> (W packed blocks…, Receipt)`` with ``owned`` : (W,) ranges of
        reducers and ``call`` what `Parts.call` returned.
    merge : callable
        ``merge(owned, *packed) -> iterator`` with a packed block for each of the ranges of reducers
        in ``owned``: those blocks of every argument, in order.
    slow : frozenset of str
        Nodes that shall do as little as possible: no reducers live there.
    combines : bool
        Whether ``merge`` makes one block that stands for all, and takes what it has made too.
    workers : callable, optional
        Runs the maps, if they need what plain tasks do not have: as `Worker.split`. They run where
        the workers are then, and late ones are not copied.
    owned : tuple of range
        (W,) the reducers of each node, as many as it has slots in proportion.
    """

    reducers: int
    nodes: tuple[Node, ...]
    map: Callable[..., Sequence[Any]]
    merge: Callable[..., Iterator[Any]]
    slow: frozenset[str] = frozenset()
    combines: bool = False
    workers: Callable[..., list[Ref]] | None = None
    owned: tuple[range, ...] = field(init=False)

    def __post_init__(self) -> None:
        weights = [0 if node.id in self.slow else node.slots for node in self.nodes]
        owned = in_proportion(self.reducers, weights)
        object.__setattr__(self, "owned", tuple(owned))

    def place(self, w: int) -> str | None:
        """Where the reducers of node ``w`` shall run; None where there is only one place."""
        return self.nodes[w].id if len(self.nodes) > 1 else None

    @property
    def slots(self) -> int:
        """Tasks the cluster runs side by side."""
        return sum(node.slots for node in self.nodes)

    @property
    def store(self) -> int:
        """Bytes of object store of the whole cluster."""
        return sum(node.store for node in self.nodes)

    @property
    def disk(self) -> int | None:
        """Bytes free for what does not fit the store; None where a node's are not known."""
        free = [node.disk for node in self.nodes]
        return None if None in free else sum(size for size in free if size is not None)


@dataclass(frozen=True, slots=True)
class ReducerInput:
    """All that goes to reducer ``slot``: its block of every packed block in ``refs``.

    It should run on ``node``, where others read the same objects. What is ``kept`` lives
    as long as the column does: refs of what the blocks were merged from.
    """

    refs: tuple[Ref, ...] | list[Ref]
    slot: int
    node: str | None = None
    kept: object = None


@dataclass(slots=True, eq=False)
class BlockRefs:
    """Objects with blocks of the same neighbouring reducers: a merged one, or those of the maps."""

    reducers: range
    refs: list[Ref]


@dataclass(slots=True, eq=False)
class ReducerGroup:
    """What is there for neighbouring reducers on node ``w`` that share merged blocks.

    Attributes
    ----------
    blocks : list of BlockRefs or Ref
        Just a ref of what is for all of them and stays as it is.
    """

    w: int
    reducers: range
    blocks: list[BlockRefs | Ref]


def reducer_inputs(rows: Sequence[MapOutput], spec: Spec) -> list[ReducerInput]:
    """What each reducer reads of rows that nobody merges: (R,)."""
    packings = [(owned, list(same)) for owned, same in groupby(rows, key=lambda row: row.owned)]
    return [
        ReducerInput(refs, slot, spec.place(w))
        for w, mine in enumerate(spec.owned)
        for slots, refs in group_by_refs(
            mine,
            [
                BlockRefs(reducers, [row[i] for row in same])
                for owned, same in packings
                for i, reducers in enumerate(owned)
                if overlap(reducers, mine)
            ],
        )
        for slot in slots
    ]


def group_by_refs(
    reducers: range, blocks: Sequence[BlockRefs | Ref]
) -> Iterator[tuple[range, list[Ref]]]:
    """Cut ``reducers`` into those that read the same objects; list these, once for all of them."""
    some = [block for block in blocks if isinstance(block, BlockRefs)]
    cuts = {cut for block in some for cut in (block.reducers.start, block.reducers.stop)}
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
    """Reducers that are in both."""
    return range(max(a.start, b.start), min(a.stop, b.stop))


def reducer_groups(mine: range, width: int) -> list[range]:
    """Groups of about ``width`` neighbouring reducers of a node, which share merged blocks.

    Examples
    --------
    >>> reducer_groups(range(5, 10), 2)
    [range(5, 6), range(6, 8), range(8, 10)]
    """
    count = _group_count(mine, width)
    return [mine[p.start : p.stop] for p in evenly(len(mine), count)] if count else []


def merged_objects(reducers: int, nodes: int, width: int) -> int:
    """Merged blocks of one round, for all nodes: R, or R / width."""
    return sum(_group_count(mine, width) for mine in evenly(reducers, nodes))


def _group_count(mine: range, width: int) -> int:
    return -(-len(mine) // width)
