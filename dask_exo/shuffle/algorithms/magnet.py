"""Magnet: push-based shuffle that keeps the map outputs, for fast recovery.

As soon as ``per_round`` maps are submitted, so are the merges of their blocks, on the nodes of the
reducers. The map outputs stay in memory or on disk as long as a reducer needs a merged block: if a
node is lost, its blocks are merged again and no part is recomputed. The price is that twice as much
is spilled.

References: Exoshuffle section 3.3.2.3 (ES-push), after Magnet (Shen et al., VLDB 2020).
"""

from __future__ import annotations

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import Limits, MergeLimits, Shape, ShuffleCost, estimate_merging
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.merge_stage import MergeStage, MergeTask
from dask_exo.shuffle.spec import MapOutput, ReducerInput, Spec

AVOIDS_SLOW_NODES = True


def run(
    futures: Futures,
    maps: MapStage,
    spec: Spec,
    *,
    per_round: int,
    width: int = 1,
    caps: MergeLimits | None = None,
) -> Steps[list[ReducerInput]]:
    """Map parts, a window of them at a time; merge each ``per_round`` on the reducers' nodes.

    The map outputs live as long as the inputs of the reducers do.
    """
    stage = MergeStage(futures, maps, spec, width, caps)
    map_outputs: list[MapOutput] = []
    merging: list[MergeTask] = []
    while maps:
        rows = yield from maps.take(per_round, allow_speculation=True)  # (T, W)
        merging += stage.merge(rows)
        map_outputs += rows
    yield from maps.finish()
    yield from stage.wait_for(merging)
    return stage.inputs(map_outputs)


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    return estimate_merging(shape, limits, copies=2)
