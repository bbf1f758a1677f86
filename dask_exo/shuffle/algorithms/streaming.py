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
from typing import Any

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import Knobs, Limits, Shape, ShuffleCost, estimate_merging, round_knobs
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.spec import MapOutput, ReducerInput, Spec, reducer_groups


def run(
    futures: Futures, maps: MapStage, spec: Spec, *, per_round: int, width: int = 1
) -> Steps[list[ReducerInput]]:
    """Map ``per_round`` parts at a time; combine each round with the states of the reducers.

    Returns
    -------
    list of ReducerInput : (R,)
        One state, or one object of each round.
    """
    states = ReducerStates(futures, maps, spec, width)
    while maps:
        yield from states.round(per_round)
    return (yield from states.finish())


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    knobs = round_knobs(shape, limits)
    return estimate_merging(shape, -(-shape.parts // knobs.per_round), knobs.width)


def tune(shape: Shape, limits: Limits) -> Knobs:
    """Compute the knobs of `run`."""
    return round_knobs(shape, limits)._asdict()


class ReducerStates:
    """States of all reducers: the combined blocks of the rounds so far.

    Parameters
    ----------
    futures : Futures
    maps : MapStage
    spec : Spec
    width : int
        Number of neighbouring reducers that share a state.
    """

    def __init__(self, futures: Futures, maps: MapStage, spec: Spec, width: int) -> None:
        self._futures, self._maps, self._spec = futures, maps, spec
        # (W, G) reducers that share a state, and its blocks
        self._groups = [reducer_groups(owned, width) for owned in spec.owned]
        self._blocks: list[list[list[Ref]]] = [[[] for _ in groups] for groups in self._groups]
        self._pending: list[Ref] = []
        self._rows: list[MapOutput] = []
        self._started = 0

    def start_maps(self, count: int) -> Steps[None]:
        """Submit maps of the next round, for ``count`` parts."""
        self._started += count
        self._rows += yield from self._maps.take(count)

    def round(self, count: int) -> Steps[list[ReducerInput]]:
        """Map ``count`` parts, with those of `start_maps`; replace the states.

        Returns
        -------
        list of ReducerInput : (R,)
            Inputs of the reducers for all parts so far; read them before the next round.
        """
        yield from self.start_maps(max(0, count - self._started))
        yield self._pending  # of the round before
        self._pending = [self._combine(w)[-1] for w, owned in enumerate(self._spec.owned) if owned]
        self._rows, self._started = [], 0
        return self._inputs()

    def finish(self) -> Steps[list[ReducerInput]]:
        """Wait for all maps and states."""
        yield from self._maps.finish()
        yield self._pending
        return self._inputs()

    def _combine(self, w: int) -> list[Ref]:
        """Combine the round with the states of node ``w``, on that node."""
        groups, blocks_of_groups = self._groups[w], self._blocks[w]
        states = (
            [block for held in blocks_of_groups for block in held] if self._spec.combines else []
        )
        blocks = self._futures.stream(
            len(groups),
            combine_states,
            self._spec.merge,
            groups,
            len(states),
            *states,
            *[row[w] for row in self._rows],
            node=self._spec.nodes[w].id,
        )  # (G,)
        for held, block in zip(blocks_of_groups, blocks, strict=True):
            if self._spec.combines:
                held.clear()
            held.append(block)
        return blocks

    def _inputs(self) -> list[ReducerInput]:
        return [
            ReducerInput(tuple(held), slot, self._spec.place(w))
            for w, (groups, blocks_of_groups) in enumerate(
                zip(self._groups, self._blocks, strict=True)
            )
            for reducers, held in zip(groups, blocks_of_groups, strict=True)
            for slot in reducers
        ]


def combine_states(
    merge: Callable[..., Iterator[Any]], groups: Sequence[range], count: int, *blocks: Any
) -> Iterator[Any]:
    """Merge packed blocks; combine each merged block with its state.

    Parameters
    ----------
    merge : callable
        See `Spec`.
    groups : sequence of range
        (G,) reducers that share a state.
    count : int
        Number of states: G, or 0 in the first round.
    *blocks
        (count + T,) states and packed blocks.
    """
    states, packed = blocks[:count], blocks[count:]
    merged = merge(groups, *packed)
    if not states:
        yield from merged
        return
    for reducers, state, block in zip(groups, states, merged, strict=True):
        yield from merge([reducers], state, block)
