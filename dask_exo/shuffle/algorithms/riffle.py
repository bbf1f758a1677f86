"""Riffle: blocks are merged before they are sent, on the node of their maps.

One node maps ``factor`` consecutive parts, and merges their blocks for all reducers. So the
reducers read M / F larger blocks instead of M small ones. It writes all data one time more than
`simple` and sends no less; it wins if many small blocks on slow disks are the bottleneck.

References: Exoshuffle section 3.3.2.2, after Riffle (Zhang et al., EuroSys 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.resources import split_evenly
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import (
    LARGE_BLOCK,
    LARGEST_ROUND,
    Knobs,
    Limits,
    MergeLimits,
    Shape,
    ShuffleCost,
    estimate_merging,
)
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.merge_stage import MergeStage, MergeTask
from dask_exo.shuffle.spec import ReducerInput, Spec

AVOIDS_SLOW_NODES = True


def run(
    futures: Futures,
    maps: MapStage,
    spec: Spec,
    *,
    factor: int,
    width: int = 1,
    caps: MergeLimits | None = None,
) -> Steps[list[ReducerInput]]:
    """Map ``factor`` parts on a node and merge them there; fewer, where they exceed ``caps``."""
    stage = MergeStage(futures, maps, spec, width, caps)
    merges: list[MergeTask] = []
    for node in cycle(node for node in spec.nodes if node.id not in spec.slow):
        if not maps:
            break
        rows = yield from maps.take(factor, node=node.id, allow_speculation=True)  # (F, W)
        merges = stage.unfinished(merges + stage.merge_here(merge_all, rows, node.id))
    yield from maps.finish()
    stage.resubmit_stale(merges)
    return stage.inputs()


def merge_all(
    merge: Callable[..., Iterator[Any]], slots: Sequence[Sequence[range]], *packed: Any
) -> Iterator[Any]:
    """Merge (W · F,) packed blocks, those for the first node first; yield those for each slot."""
    for reducers, part in zip(slots, split_evenly(len(packed), len(slots)), strict=True):
        if reducers:
            yield from merge(reducers, *packed[part.start : part.stop])


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    return estimate_merging(shape, limits, per_merge=_factor(shape))


def tune(shape: Shape, limits: Limits) -> Knobs:  # noqa: ARG001
    """Compute the knob that other algorithms do not have."""
    return {"factor": _factor(shape)}


def _factor(shape: Shape) -> int:
    # a node merges its own map outputs, beside those of its other slots
    of_a_node = int(shape.store * LARGEST_ROUND) // max(shape.nodes, 1) // shape.part
    large = LARGE_BLOCK * max(shape.reducers, 1) // shape.part
    return max(1, min(large, of_a_node, shape.parts))
