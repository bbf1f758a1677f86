"""Merged blocks on their way to the reducers that read them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref, Steps, evenly
from dask_exo.shuffle import stragglers
from dask_exo.shuffle.layout import Piece, Pile, alike, both, sharing
from dask_exo.shuffle.map_stage import Maps
from dask_exo.shuffle.merge_limits import Caps, within
from dask_exo.shuffle.spec import Column, Row, Spec


@dataclass(slots=True, eq=False)
class Merge:
    """A merge that was submitted.

    Attributes
    ----------
    pieces : list of (int, Pile, Piece)
        What it makes: of which block of the rows, and for whom.
    submit : callable
        Submits it, given what it takes.
    end : Ref
        When it is there, the merge is done.
    rows : list of Row
        What it takes, while rows may still be replaced.
    given : list of Ref
        Their blocks when it was submitted, as long as they may have to replace what it makes.
    since : float
        When that was.
    """

    pieces: list[tuple[int, Pile, Piece]]
    submit: Callable[..., list[Ref]]
    end: Ref
    rows: list[Row]
    given: list[Ref]
    since: float

    @property
    def blocks(self) -> list[int]:
        """Which blocks of each row it takes."""
        return sorted({i for i, _, _ in self.pieces})

    def args(self) -> list[Ref]:
        """What it takes, by now."""
        return [row[i] for i in self.blocks for row in self.rows]

    def taken(self) -> dict[int, list[Ref]]:
        """What it has taken, by block."""
        parts = evenly(len(self.given), len(self.blocks))
        return {
            i: self.given[part.start : part.stop]
            for i, part in zip(self.blocks, parts, strict=True)
        }


class Merged:
    """Which merged blocks each reducer reads.

    Parameters
    ----------
    futures : Futures
    maps : Maps
        What makes the rows that are merged.
    spec : Spec
    width : int
        Neighbouring reducers that share merged blocks.
    caps : tuple of int, optional
        Bytes that one merge takes at most, unless they are one block: of the maps that were
        measured, and of the others.
    """

    def __init__(
        self, futures: Futures, maps: Maps, spec: Spec, width: int, caps: Caps | None = None
    ) -> None:
        self._futures, self._maps, self._spec, self._caps = futures, maps, spec, caps
        self._piles = [
            Pile(w, reducers, [])
            for w, mine in enumerate(spec.owned)
            for reducers in sharing(mine, width)
        ]
        self._starts = [pile.reducers.start for pile in self._piles]
        self._measured = maps.probed

    def merge(self, rows: Sequence[Row], nodes: Sequence[str] | None = None) -> list[Merge]:
        """Merge (T, W) packed blocks; take note of what is made.

        Where blocks for the same reducers exceed the cap, there are several merges of them. A block
        that would be merged with no other one, for readers who all read the whole of it, goes to
        them as it is.

        Parameters
        ----------
        rows : (T, W)
        nodes : (W,), optional
            Where to merge each of the W; by default on the nodes of their reducers.

        Returns
        -------
        list of Merge
        """
        started = []
        for owned, same in groupby(rows, key=lambda row: row.owned):
            together = list(same)
            sizes, cap = self._weigh(together)
            for i, reducers in enumerate(owned):
                groups = within([size[i] for size in sizes], cap)
                for group in groups:
                    some = together[group.start : group.stop]
                    pieces = self._cut(i, reducers)
                    if len(groups) > 1 and self._settled(some) and len(pieces) == 1:
                        started += self._hand_on(some[0], *pieces[0])
                        continue
                    for w, mine in groupby(pieces, key=lambda p: p[1].w if nodes is None else 0):
                        node = self._spec.nodes[w].id if nodes is None else nodes[i]
                        started.append(self._start(some, list(mine), node))
        return started

    def merge_here(
        self, fn: Callable[..., Any], rows: Sequence[Row], node: str | None
    ) -> list[Merge]:
        """Merge (T, W) packed blocks for all in one task, by ``fn(merge, slots, *blocks)``.

        It takes `Spec.merge`, lists of the ranges that are made of each of the W blocks of a row,
        and (W · T,) blocks.
        """
        started = []
        for owned, same in groupby(rows, key=lambda row: row.owned):
            together = list(same)
            sizes, cap = self._weigh(together)
            for group in within([sum(size) for size in sizes], cap):
                some = together[group.start : group.stop]
                pieces = [piece for i, mine in enumerate(owned) for piece in self._cut(i, mine)]
                started.append(self._start(some, pieces, node, fn))
        return started

    def settle(self, merges: Sequence[Merge]) -> Steps[None]:
        """Wait until merges that were started together are done.

        Those that are late are given up: the reducers read the blocks that they were to merge.
        Merges of rows that a copy has replaced are started again.
        """
        submitted = sum(merge.submit is not _nothing for merge in merges)
        yield from self._settle(merges)
        self._maps.merged += submitted

    def _settle(self, merges: Sequence[Merge]) -> Steps[None]:
        if not self._maps.revised:
            yield [merge.end for merge in merges]
            return
        durations: list[float] = []
        waiting = self.ongoing(merges, durations)
        while waiting:
            yield self._maps.beside([merge.end for merge in waiting])
            waiting = self._give_up(self.ongoing(waiting, durations), durations)

    def ongoing(self, merges: Sequence[Merge], durations: list[float] | None = None) -> list[Merge]:
        """Those that are not done, or may have to start again; add the ``durations`` of others."""
        if not self._maps.revised:
            return []
        self._maps.look()
        self.renew(merges)
        done = set(self._futures.wait([merge.end for merge in merges], timeout=0)[0])
        waiting = []
        for merge in merges:
            if merge.end in done and not merge.rows:
                merge.given, merge.pieces = [], []
                if durations is not None:
                    durations.append(self._futures.now - merge.since)
            else:
                waiting.append(merge)
        return waiting

    def renew(self, merges: Iterable[Merge]) -> None:
        """Start those merges again that have taken blocks which a copy has replaced."""
        for merge in merges:
            if merge.rows and (args := merge.args()) != merge.given:
                self._futures.cancel([merge.end])
                self._submit(merge, args)
            if all(row.done for row in merge.rows):
                merge.rows = []

    def columns(self, kept: object = None) -> list[Column]:
        """What each reducer reads.

        Parameters
        ----------
        kept : object, optional
            Refs that shall live as long as the columns do.

        Returns
        -------
        list of Column : (R,)
        """
        return [
            Column(refs, slot, self._spec.place(pile.w), kept)
            for pile in self._piles
            for slots, refs in alike(pile.reducers, pile.pieces)
            for slot in slots
        ]

    def _weigh(self, rows: Sequence[Row]) -> tuple[Sequence[Sequence[float]], int | None]:
        """(T, W) bytes of packed blocks, and how many of them one merge takes."""
        measured, self._measured = self._measured, False
        if self._caps is None:
            return [[0.0] * len(row) for row in rows], None
        return self._maps.weigh(rows), self._caps[0 if measured else 1]

    def _settled(self, rows: Sequence[Row]) -> bool:
        """Whether this is one row, and no copy will replace it."""
        return len(rows) == 1 and (rows[0].done or not self._maps.revised)

    def _hand_on(self, row: Row, i: int, pile: Pile, piece: Piece) -> list[Merge]:
        """Give block ``i`` of a row to its readers as it is; who waits for it waits for its map."""
        piece.refs = [row[i]]
        pile.pieces.append(piece)
        # where copies may replace rows, only those are handed on that are there
        return [] if self._maps.revised else [Merge([], _nothing, row[i], [], [], 0.0)]

    def _cut(self, i: int, reducers: range) -> list[tuple[int, Pile, Piece]]:
        """Make a piece of block ``i``, with ``reducers``, for each pile that those are in."""
        if not reducers:
            return []
        first = bisect_right(self._starts, reducers.start) - 1
        last = bisect_left(self._starts, reducers.stop)
        return [
            (i, pile, Piece(both(reducers, pile.reducers), [])) for pile in self._piles[first:last]
        ]

    def _start(
        self,
        rows: list[Row],
        pieces: list[tuple[int, Pile, Piece]],
        node: str | None,
        fn: Callable[..., Any] | None = None,
    ) -> Merge:
        slots: list[Any] = [piece.reducers for _, _, piece in pieces]
        if fn is not None:
            of_block = groupby(pieces, key=lambda piece: piece[0])
            slots = [[piece.reducers for _, _, piece in mine] for _, mine in of_block]

        call = [self._spec.merge] if fn is None else [fn, self._spec.merge]
        submit = partial(self._futures.stream, len(pieces), *call, slots, node=node)
        merge = Merge(pieces, submit, None, rows, [], 0.0)
        self._submit(merge, merge.args())
        self._maps.merges += 1
        revised = self._maps.revised
        for _, pile, piece in pieces:
            stays = not revised and piece.reducers == pile.reducers
            pile.pieces.append(piece.refs[0] if stays else piece)
        if revised:
            self._maps.heed(merge)
        else:
            merge.rows, merge.given, merge.pieces = [], [], []
        return merge

    def _submit(self, merge: Merge, args: list[Ref]) -> None:
        blocks = merge.submit(*args)
        merge.given, merge.end, merge.since = args, blocks[-1], self._futures.now
        for (_, _, piece), block in zip(merge.pieces, blocks, strict=True):
            piece.refs = [block]

    def _give_up(self, merges: Sequence[Merge], durations: Sequence[float]) -> list[Merge]:
        """Stop those that are late; return the others."""
        patience = self._maps.patience
        assert patience is not None
        running = {merge: (merge.since, 1) for merge in merges if not merge.rows}
        late = stragglers.late(running, durations, now=self._futures.now, patience=patience)
        for merge in late:
            self._futures.cancel([merge.end])
            events.emit(events.Recovered("late merge given up"))
            taken = merge.taken()
            for i, _, piece in merge.pieces:
                piece.refs = taken[i]
            merge.given, merge.pieces = [], []
        return [merge for merge in merges if merge not in late]


def _nothing(*blocks: Ref) -> list[Ref]:  # noqa: ARG001  as a merge is submitted
    """Make nothing."""
    return []
