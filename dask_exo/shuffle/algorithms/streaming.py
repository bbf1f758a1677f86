"""Streaming shuffle: its outputs can be read after every round.

Parts are mapped in rounds. After each round every reducer combines its state with the blocks of the
round into a new state, on its node; neighbouring reducers with little data share one. The old state
is released. Blocks that cannot be combined accumulate, as in `push`. Rounds are strict: the states
of round k-1 are ready before the maps of round k+1 start.

References: Exoshuffle section 3.3.3.1, listing 6 (``streaming_shuffle``, for online aggregation).
The listing waits for states that do not exist yet in its first round; that is corrected here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import Limits, Shape, ShuffleCost, estimate_merging
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.spec import (
    MapOutput,
    ReducerGroup,
    ReducerInput,
    Spec,
    reducer_groups,
    reducer_inputs,
)


def run(
    futures: Futures, maps: MapStage, spec: Spec, *, per_round: int, width: int = 1
) -> Steps[list[ReducerInput]]:
    """Map ``per_round`` parts at a time; combine each round with the states of the reducers."""
    states = ReducerStates(futures, maps, spec, width)
    while maps:
        yield from states.round(per_round)
    return (yield from states.finish())


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    return estimate_merging(shape, limits)


class ReducerStates:
    """States of all reducers: the combined blocks of the rounds so far.

    ``width`` neighbouring reducers share a state.
    """

    def __init__(self, futures: Futures, maps: MapStage, spec: Spec, width: int) -> None:
        self._futures, self._maps, self._spec = futures, maps, spec
        self._groups = reducer_groups(spec, width)
        self._pending: list[Ref] = []
        self._rows: list[MapOutput] = []

    def start_maps(self, count: int) -> Steps[None]:
        """Submit maps of the next round, for ``count`` parts."""
        self._rows += yield from self._maps.take(count)

    def round(self, count: int) -> Steps[list[ReducerInput]]:
        """Map ``count`` parts, with those of `start_maps`; replace the states.

        The inputs are those of the reducers for all parts so far; read them before the next round.
        """
        yield from self.start_maps(max(0, count - sum(row.parts for row in self._rows)))
        yield self._pending  # of the round before
        on_nodes = groupby(self._groups, key=lambda group: group.w)
        self._pending = [self._combine(w, list(groups)) for w, groups in on_nodes]
        self._rows = []
        return reducer_inputs(self._groups, self._spec)

    def finish(self) -> Steps[list[ReducerInput]]:
        """Wait for all maps and states."""
        yield from self._maps.finish()
        yield self._pending
        return reducer_inputs(self._groups, self._spec)

    def _combine(self, w: int, groups: list[ReducerGroup]) -> Ref:
        """Combine the round with the states of node ``w``, on that node; return the last state."""
        combines, slots = self._spec.combines, [group.reducers for group in groups]
        states = [state for group in groups for state in group.blocks] if combines else []
        args = [self._spec.merge, slots, len(states), *states, *[row[w] for row in self._rows]]
        node = self._spec.places.prefer(self._spec.nodes[w].id)
        blocks = self._futures.stream(len(groups), combine_states, *args, node=node)
        for group, block in zip(groups, blocks, strict=True):
            group.blocks = [block] if combines else [*group.blocks, block]
        return blocks[-1]


def combine_states(
    merge: Callable[..., Iterator[Any]], groups: Sequence[range], count: int, *blocks: Any
) -> Iterator[Any]:
    """Merge packed blocks; combine each merged block with its state.

    ``blocks`` are ``count`` states, one for each of the ``groups`` of reducers (none in the first
    round), and T packed blocks.
    """
    states, packed = blocks[:count], blocks[count:]
    merged = merge(groups, *packed)
    if not states:
        yield from merged
        return
    for reducers, state, block in zip(groups, states, merged, strict=True):
        yield from merge([reducers], state, block)
