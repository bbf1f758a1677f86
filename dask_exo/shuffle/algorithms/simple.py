"""Simple shuffle: every reducer reads its block of every map.

It is the fastest while the data stays in memory: each row is copied once by the map and once by the
reducer. Blocks of one node's reducers are packed into one object, so M·W objects are made
where the textbook's M·R would be. Out of core such an object would be restored whole for each of
its reducers, so only those share one that run at the same time. Then blocks are many and small, as
in the textbook: use `push`.

References: Exoshuffle section 3.3.2.1, listing 2 (``simple_shuffle``).
"""

from __future__ import annotations

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import (
    INLINED,
    Knobs,
    Limits,
    Shape,
    ShuffleCost,
    estimate,
    merged_objects,
)
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.merge_stage import MergeStage
from dask_exo.shuffle.spec import ReducerInput, Spec

AVOIDS_SLOW_NODES = True


def run(futures: Futures, maps: MapStage, spec: Spec, *, sharing: int) -> Steps[list[ReducerInput]]:
    """Map every part; ``sharing`` neighbouring reducers read the same object of each."""
    stage = MergeStage(futures, maps, spec, sharing)
    owned = None  # those of each node
    if stage.owned != tuple(filter(None, spec.owned)):
        owned = stage.owned
        # the measured parts are packed for all reducers of a node
        measured = yield from maps.take(0, allow_speculation=True)
        stage.rounds.append(stage.merge(measured))
        del measured
    with maps.unread():
        rows = yield from maps.take(len(maps), owned=owned, allow_speculation=True)
    yield from maps.finish()
    yield from stage.wait_for_rounds(0)
    stage.add_unmerged(rows)
    return stage.inputs()


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    m, r, w = shape.parts, shape.reducers, shape.nodes
    sharing = _sharing(shape, limits)
    return estimate(
        shape,
        passes=2,
        objects=packed_objects(m, r, w, min(m, shape.slots), sharing),
        inputs=m * r,
        spilled=shape.spilled(),
        restored=shape.spilled() * -(-min(sharing, -(-r // w)) // max(1, shape.slots // w)),
        sent=shape.sent,
    )


def tune(shape: Shape, limits: Limits) -> Knobs:
    """Compute the knob that other algorithms do not have."""
    return {"sharing": _sharing(shape, limits)}


def packed_objects(calls: int, reducers: int, nodes: int, probes: int, sharing: int) -> int:
    """Count packed blocks and receipts; ``probes`` of the ``calls`` were measured first."""
    groups = merged_objects(reducers, nodes, sharing)
    if groups <= min(reducers, nodes):
        return calls * (nodes + 1)
    return probes * (nodes + 1) + groups + (calls - probes) * (groups + 1)


def _sharing(shape: Shape, limits: Limits) -> int:
    if shape.nbytes <= limits.memory_fraction * shape.store:
        return max(1, shape.reducers)
    together = max(1, shape.slots // shape.nodes)  # that run on a node
    block = max(1, shape.part // shape.reducers)
    fewest = -(-shape.parts * shape.reducers // limits.most_objects)
    stored = -(-6 * INLINED // (5 * block))  # some blocks are smaller than the mean
    return max(1, min(max(together, fewest, stored), shape.reducers))
