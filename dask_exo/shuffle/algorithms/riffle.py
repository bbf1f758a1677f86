"""Riffle: blocks are merged before they are sent, on the node of their maps.

Every node maps ``factor`` consecutive parts, and merges their blocks for all reducers. So the
reducers read M / F larger blocks instead of M small ones. It writes all data one time more than
`simple` and sends no less; it wins if many small blocks on slow disks are the bottleneck. In the
papers a merge takes any F map outputs of a node. Here they are those of neighbours, so that rows
stay in the order of the input.

References: Exoshuffle section 3.3.2.2, after Riffle (Zhang et al., EuroSys 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
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
from dask_exo.shuffle.merge_stage import MergeStage
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
    """Map ``factor`` parts on each node and merge them there; fewer, where they exceed ``caps``.

    Without a factor there are no merges.
    """
    stage = MergeStage(futures, maps, spec, width, caps)
    rows = yield from maps.take(0, allow_speculation=True)  # those that were measured, if any
    if not factor:
        with maps.unread():
            rows += yield from maps.take(len(maps), allow_speculation=True)
        yield from maps.finish()
        stage.add_unmerged(rows)
        return stage.inputs()
    merges, rows = stage.merge(rows), []
    nodes = [node.id for node in spec.nodes if node.id not in spec.slow]
    for turn in _turns(maps.remaining, factor, len(nodes)):
        outputs = yield from maps.take_on_nodes(dict(zip(nodes, turn, strict=False)))
        started = [stage.merge_here(merge_all, rows, node) for node, rows in outputs.items()]
        del outputs  # held by the merges only
        merges = stage.unfinished([*merges, *chain.from_iterable(started)])
    yield from maps.finish()
    stage.resubmit_stale(merges)
    return stage.inputs()


def _turns(parts: range, factor: int, nodes: int) -> Iterator[list[range]]:
    """Divide parts into turns of equal groups of at most ``factor``, one for each node.

    Examples
    --------
    >>> list(_turns(range(2, 11), 3, 2))
    [[range(2, 4), range(4, 6)], [range(6, 8), range(8, 11)]]
    """
    turns = -(-len(parts) // (factor * nodes)) or 1
    groups = [parts[g.start : g.stop] for g in split_evenly(len(parts), turns * nodes)]
    for start in range(0, len(groups), nodes):
        yield [group for group in groups[start : start + nodes] if group]


def merge_all(
    merge: Callable[..., Iterator[Any]], slots: Sequence[Sequence[range]], *packed: Any
) -> Iterator[Any]:
    """Merge (W · F,) packed blocks, those for the first node first; yield those for each slot."""
    for reducers, part in zip(slots, split_evenly(len(packed), len(slots)), strict=True):
        if reducers:
            yield from merge(reducers, *packed[part.start : part.stop])


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    return estimate_merging(shape, limits, per_merge=_factor(shape, limits) or 1)


def tune(shape: Shape, limits: Limits) -> Knobs:
    """Compute the knob that other algorithms do not have: 0 if blocks need no merge."""
    return {"factor": _factor(shape, limits)}


def _factor(shape: Shape, limits: Limits) -> int:
    # a node merges its own map outputs, beside those of its other slots
    of_a_node = int(shape.store * LARGEST_ROUND) // max(shape.nodes, 1) // shape.part
    large = LARGE_BLOCK * max(shape.reducers, 1) // shape.part
    factor = min(large, of_a_node, shape.parts // max(shape.nodes, 1))
    # on the disk even a block of one map is better divided by reducers, to be read once
    return factor if factor > 1 else int(shape.nbytes > limits.memory_fraction * shape.store)
