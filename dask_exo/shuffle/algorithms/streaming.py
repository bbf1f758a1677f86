"""Streaming shuffle: what its rounds have brought so far can be looked at.

Parts are mapped in rounds. After each round, on its node, every reducer combines its state with
the blocks of the round into a new state; neighbouring reducers that get little share one. The old
state is dropped. Where blocks cannot be combined they pile up, as in `push`. Rounds are strict: the
states of round k-1 are there before the maps of round k+1 start.

References: Exoshuffle section 3.3.3.1, listing 6 (``streaming_shuffle``, for online aggregation).
The listing waits for states that do not exist yet in its first round; that is corrected here.
"""

from __future__ import annotations

from dask_exo.cluster.futures import Futures, Steps
from dask_exo.shuffle.layout import merged_objects
from dask_exo.shuffle.map_stage import Maps
from dask_exo.shuffle.spec import Column, Spec
from dask_exo.shuffle.streaming_state import States


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
