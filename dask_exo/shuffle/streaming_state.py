"""States of reducers, which each round of a streaming shuffle renews."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dask_exo.cluster.futures import Futures, Ref, Steps
from dask_exo.shuffle.layout import sharing
from dask_exo.shuffle.map_stage import Maps
from dask_exo.shuffle.spec import Column, Row, Spec


class States:
    """What the reducers have got so far.

    Parameters
    ----------
    futures : Futures
    maps : Maps
    spec : Spec
    width : int
        Neighbouring reducers that share a state.
    """

    def __init__(self, futures: Futures, maps: Maps, spec: Spec, width: int) -> None:
        self._futures, self._maps, self._spec = futures, maps, spec
        # (W, G) reducers that share a state, and its blocks
        self._sharing = [sharing(mine, width) for mine in spec.owned]
        self._piles: list[list[list[Ref]]] = [[[] for _ in mine] for mine in self._sharing]
        self._making: list[Ref] = []
        self._rows: list[Row] = []
        self._begun = 0

    def begin(self, count: int) -> Steps[None]:
        """Start maps of the next round, for ``count`` parts."""
        self._begun += count
        self._rows += yield from self._maps.take(count)

    def round(self, count: int) -> Steps[list[Column]]:
        """Map ``count`` parts, those of `begin` included; make new states.

        Returns
        -------
        list of Column : (R,)
            What reducers read to know of all parts so far; to be read before the next round.
        """
        yield from self.begin(max(0, count - self._begun))
        yield self._making  # of the round before
        self._making = [self._renew(w)[-1] for w, mine in enumerate(self._spec.owned) if mine]
        self._rows, self._begun = [], 0
        return self._columns()

    def finish(self) -> Steps[list[Column]]:
        """Wait for all maps and states."""
        yield from self._maps.finish()
        yield self._making
        return self._columns()

    def _renew(self, w: int) -> list[Ref]:
        """Bring the round to node ``w``, and make new states there of the old ones."""
        sharing, piles = self._sharing[w], self._piles[w]
        states = [block for pile in piles for block in pile] if self._spec.combines else []
        blocks = self._futures.stream(
            len(sharing),
            renewed,
            self._spec.merge,
            sharing,
            len(states),
            *states,
            *[row[w] for row in self._rows],
            node=self._spec.nodes[w].id,
        )  # (G,)
        for pile, block in zip(piles, blocks, strict=True):
            if self._spec.combines:
                pile.clear()
            pile.append(block)
        return blocks

    def _columns(self) -> list[Column]:
        return [
            Column(tuple(pile), slot, self._spec.place(w))
            for w, (sharing, piles) in enumerate(zip(self._sharing, self._piles, strict=True))
            for mine, pile in zip(sharing, piles, strict=True)
            for slot in mine
        ]


def renewed(
    merge: Callable[..., Iterator[Any]], sharing: Sequence[range], count: int, *blocks: Any
) -> Iterator[Any]:
    """Merge packed blocks, and each merged one with its state; the states come first.

    Parameters
    ----------
    merge : callable
        See `Spec`.
    sharing : sequence of range
        (G,) reducers that share a state.
    count : int
        States: G, or none in the first round.
    *blocks
        (count + T,) states and packed blocks.
    """
    states, packed = blocks[:count], blocks[count:]
    made = merge(sharing, *packed)
    if not states:
        yield from made
        return
    for mine, state, block in zip(sharing, states, made, strict=True):
        yield from merge([mine], state, block)
