"""Push-based shuffle in rounds: every byte is spilled at most once.

While the maps of one round run, the merges of the previous round combine blocks on the nodes of the
reducers. A merge yields one object for each reducer, or for a few neighbouring reducers with little
data. Map outputs are released when their merges are submitted, and do not reach the disk.
The map output of ``alive`` rounds exists at a time: with two, the merges of round k-1 end before
the maps of round k+1 start; with one, those of round k. More and smaller rounds hold no more bytes,
but let a node run several merges at the same time, where a single one would leave slots idle.

References: Exoshuffle sections 3.4.1 and 3.4.2, listing 7 (ES-push*). The listing submits
each round's maps twice and waits for one merge only; both are corrected here.
"""

from __future__ import annotations

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import Limits, MergeLimits, Shape, ShuffleCost, estimate_merging
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.merge_stage import MergeStage
from dask_exo.shuffle.spec import ReducerInput, Spec

AVOIDS_SLOW_NODES = True


def run(  # noqa: PLR0913  its knobs are its keywords
    futures: Futures,
    maps: MapStage,
    spec: Spec,
    *,
    per_round: int,
    alive: int = 2,
    width: int = 1,
    caps: MergeLimits | None = None,
) -> Steps[list[ReducerInput]]:
    """Map ``per_round`` parts at a time; merge each round on the reducers' nodes.

    ``width`` neighbouring reducers read the same merged blocks. A node that gets more than ``caps``
    in a round runs several merges.
    """
    stage = MergeStage(futures, maps, spec, width, caps)
    while maps:
        yield from stage.wait_for_rounds(alive - 1)
        rows = yield from maps.take(per_round, allow_speculation=True)  # (T, W)
        yield from stage.wait_for_rounds(max(0, alive - 2))
        stage.rounds.append(stage.merge(rows))
        del rows
    yield from maps.finish()
    yield from stage.wait_for_rounds(0)
    return stage.inputs()


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    return estimate_merging(shape, limits)
