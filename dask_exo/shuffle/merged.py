"""Merged blocks on their way to the reducers that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dask_exo.futures import Futures, Ref, evenly
from dask_exo.shuffle.maps import Row
from dask_exo.shuffle.spec import Column, Spec


class Merged:
    """Which merged blocks each reducer reads.

    Parameters
    ----------
    spec : Spec
    width : int
        Neighbouring reducers that share merged blocks.

    Attributes
    ----------
    slots : list of list of range
        (W, G) of each node the reducers, counted from its first one, that share blocks.
    """

    def __init__(self, spec: Spec, width: int) -> None:
        self._spec = spec
        self.slots = [
            evenly(len(mine), _groups(mine, width)) if mine else [] for mine in spec.owned
        ]
        self._blocks: list[list[list[Ref]]] = [[[] for _ in slots] for slots in self.slots]

    def add(self, w: int, blocks: Sequence[Ref]) -> None:
        """Take note of (G,) merged blocks for the reducers of node ``w``."""
        for mine, block in zip(self._blocks[w], blocks, strict=True):
            mine.append(block)

    def merge(self, futures: Futures, rows: Sequence[Row]) -> list[Ref]:
        """Merge (T, W) packed blocks, on the node of their reducers; take note of what is made.

        Returns
        -------
        list : (W,)
            The last block of each node that has reducers: when it is there, its merge is done.
        """
        ends: list[Ref] = []
        for w, slots in enumerate(self.slots):
            if not slots:
                continue
            blocks = futures.stream(
                len(slots),
                self._spec.merge,
                slots,
                *[row[w] for row in rows],
                node=self._spec.nodes[w].id,
            )  # (G,)
            self.add(w, blocks)
            ends.append(blocks[-1])
        return ends

    def renew(self, futures: Futures, rows: Sequence[Row]) -> list[Ref]:
        """Do as `merge` does, and combine what is made with what was there, which is dropped.

        Returns
        -------
        list : (W,)
            See `merge`.
        """
        ends: list[Ref] = []
        for w, slots in enumerate(self.slots):
            if not slots:
                continue
            states = [block for pile in self._blocks[w] for block in pile]  # (G,), or none yet
            blocks = futures.stream(
                len(slots),
                renewed,
                self._spec.merge,
                slots,
                len(states),
                *states,
                *[row[w] for row in rows],
                node=self._spec.nodes[w].id,
            )  # (G,)
            self._blocks[w] = [[block] for block in blocks]
            ends.append(blocks[-1])
        return ends

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
            Column(blocks, slot, self._spec.place(w), kept)
            for w, (ranges, piles) in enumerate(zip(self.slots, self._blocks, strict=True))
            for slots, blocks in zip(ranges, piles, strict=True)
            for slot in range(len(slots))
        ]


def renewed(
    merge: Callable[..., Iterator[Any]], slots: Sequence[range], count: int, *blocks: Any
) -> Iterator[Any]:
    """Merge packed blocks, and each merged one with its state; the states come first.

    Parameters
    ----------
    merge : callable
        See `Spec`.
    slots : sequence of range
        (G,)
    count : int
        States: G, or none in the first round.
    *blocks
        (count + T,) states and packed blocks.
    """
    states, packed = blocks[:count], blocks[count:]
    made = merge(slots, *packed)
    if not states:
        yield from made
        return
    for mine, state, block in zip(slots, states, made, strict=True):
        yield from merge([range(len(mine))], state, block)


def merged_objects(reducers: int, nodes: int, width: int) -> int:
    """Merged blocks of one round, for all nodes: R, or R / width."""
    return sum(_groups(mine, width) for mine in evenly(reducers, nodes) if mine)


def _groups(mine: range, width: int) -> int:
    return max(1, -(-len(mine) // width))
