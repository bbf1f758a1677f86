"""Simple shuffle: every reducer reads its block of every map.

It is the fastest while the data stays in memory: each row is copied once by the map and once by the
reducer. Blocks of one node's reducers are packed into one object, so M·W objects are made
where the textbook's M·R would be. Out of core, each of the R reducers restores every spilled
packed object whole: use `push`.

References: Exoshuffle section 3.3.2.1, listing 2 (``simple_shuffle``).
"""

from __future__ import annotations

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle.choose import Limits, Shape, ShuffleCost, estimate
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.spec import ReducerInput, Spec, unmerged_inputs

AVOIDS_SLOW_NODES = True


def run(futures: Futures, maps: MapStage, spec: Spec) -> Steps[list[ReducerInput]]:  # noqa: ARG001
    """Map every part; reducer ``r`` of node ``w`` reads object ``w`` of each."""
    rows = yield from maps.take(len(maps), allow_speculation=True)  # (M, W)
    yield from maps.finish()
    return unmerged_inputs(rows, spec)


def cost(shape: Shape, limits: Limits) -> ShuffleCost:  # noqa: ARG001
    """Estimate the cost of one shuffle."""
    readers = -(-shape.reducers // shape.nodes)  # of each packed object
    return estimate(
        shape,
        passes=2,
        objects=shape.parts * (shape.nodes + 1),  # with the receipts
        inputs=shape.parts * shape.reducers,
        spilled=shape.spilled(),
        restored=shape.spilled() * readers,
        sent=shape.sent,
    )
