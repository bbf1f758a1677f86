"""Streaming shuffle: what its rounds have brought so far can be looked at.

Parts are mapped in rounds. After each round, on its node, every reducer combines its state with
the blocks of the round into a new state; neighbouring reducers that get little share one. The old
state is dropped. Where blocks cannot be combined they pile up, as in `push`. Rounds are strict: the
states of round k-1 are there before the maps of round k+1 start.

References: Exoshuffle section 3.3.3.1, listing 6 (``streaming_shuffle``, for online aggregation).
The listing waits for states that do not exist yet in its first round; that is corrected here.
"""

from __future__ import annotations

from dask_exo.futures import Futures, Ref, Steps
from dask_exo.shuffle.maps import Maps, Row
from dask_exo.shuffle.merged import Merged, merged_objects
from dask_exo.shuffle.spec import Column, Spec


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
        self._futures, self._maps, self._combines = futures, maps, spec.combines
        self._merged = Merged(spec, width)
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
        renew = self._merged.renew if self._combines else self._merged.merge
        self._making = renew(self._futures, self._rows)
        self._rows, self._begun = [], 0
        return self._merged.columns()

    def finish(self) -> Steps[list[Column]]:
        """Wait for all maps and states."""
        yield from self._maps.finish()
        yield self._making
        return self._merged.columns()


def streaming(
    futures: Futures, maps: Maps, spec: Spec, *, per_round: int, width: int = 1
) -> Steps[list[Column]]:
    """Map ``per_round`` parts at a time; combine each round with the states of the reducers.

    Returns
    -------
    list of Column : (R,)
        One state, or one object of each round.
    """
    states = States(futures, maps, spec, width)
    while maps:
        yield from states.round(per_round)
    return (yield from states.finish())


def streaming_objects(calls: int, reducers: int, nodes: int, rounds: int, width: int = 1) -> int:
    """Packed blocks, receipts and states that `streaming` makes: M·(W + 1) + rounds·R.

    Where ``width`` reducers share a state, there are as many times fewer of those.
    """
    return calls * (nodes + 1) + rounds * merged_objects(reducers, nodes, width)
