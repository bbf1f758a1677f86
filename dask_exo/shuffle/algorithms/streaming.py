"""Streaming shuffle: its outputs can be read after every round.

Parts are mapped in rounds. After each round every reducer combines its state with the blocks of the
round into a new state, on its node; neighbouring reducers with little data share one. The old state
is released. Blocks that cannot be combined accumulate, as in `push`. Rounds are strict: the states
of round k-1 are ready before the maps of round k+1 start.

References: Exoshuffle section 3.3.3.1, listing 6 (``streaming_shuffle``, for online aggregation).
The listing waits for states that do not exist yet in its first round; that is corrected here.
"""

from __future__ import annotations

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import Knobs, Limits, Shape, round_knobs
from dask_exo.shuffle.cost_model import ShuffleCost, estimate_merging
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.spec import ReducerInput, Spec
from dask_exo.shuffle.streaming_state import ReducerStates


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
