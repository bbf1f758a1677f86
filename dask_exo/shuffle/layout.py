"""Which objects each reducer reads, where they are not packed for the same reducers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from dask_exo.cluster.futures import Ref, evenly
from dask_exo.shuffle.spec import Column, Row, Spec


@dataclass(slots=True, eq=False)
class Piece:
    """Objects with blocks of the same neighbouring reducers: a merged one, or those of the maps."""

    reducers: range
    refs: list[Ref]


@dataclass(slots=True, eq=False)
class Pile:
    """What is there for neighbouring reducers on node ``w`` that share merged blocks.

    Attributes
    ----------
    pieces : list of Piece or Ref
        Just a ref of what is for all of them and stays as it is.
    """

    w: int
    reducers: range
    pieces: list[Piece | Ref]


def columns_of(rows: Sequence[Row], spec: Spec) -> list[Column]:
    """What each reducer reads of rows that nobody merges: (R,)."""
    packings = [(owned, list(same)) for owned, same in groupby(rows, key=lambda row: row.owned)]
    return [
        Column(refs, slot, spec.place(w))
        for w, mine in enumerate(spec.owned)
        for slots, refs in alike(
            mine,
            [
                Piece(reducers, [row[i] for row in same])
                for owned, same in packings
                for i, reducers in enumerate(owned)
                if both(reducers, mine)
            ],
        )
        for slot in slots
    ]


def alike(reducers: range, pieces: Sequence[Piece | Ref]) -> Iterator[tuple[range, list[Ref]]]:
    """Cut ``reducers`` into those that read the same objects; list these, once for all of them."""
    some = [piece for piece in pieces if isinstance(piece, Piece)]
    cuts = {cut for piece in some for cut in (piece.reducers.start, piece.reducers.stop)}
    inner = sorted(cut for cut in cuts if reducers.start < cut < reducers.stop)
    if not reducers:
        return
    for start, stop in pairwise([reducers.start, *inner, reducers.stop]):
        refs: list[Ref] = []
        for piece in pieces:
            if not isinstance(piece, Piece):
                refs.append(piece)
            elif start in piece.reducers:
                refs += piece.refs
        yield range(start, stop), refs


def both(a: range, b: range) -> range:
    """Reducers that are in both."""
    return range(max(a.start, b.start), min(a.stop, b.stop))


def sharing(mine: range, width: int) -> list[range]:
    """Groups of about ``width`` neighbouring reducers of a node, which share merged blocks.

    Examples
    --------
    >>> sharing(range(5, 10), 2)
    [range(5, 6), range(6, 8), range(8, 10)]
    """
    count = _groups(mine, width)
    return [mine[p.start : p.stop] for p in evenly(len(mine), count)] if count else []


def merged_objects(reducers: int, nodes: int, width: int) -> int:
    """Merged blocks of one round, for all nodes: R, or R / width."""
    return sum(_groups(mine, width) for mine in evenly(reducers, nodes))


def _groups(mine: range, width: int) -> int:
    return -(-len(mine) // width)
