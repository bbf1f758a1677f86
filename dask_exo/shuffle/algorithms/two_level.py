"""Two-level shuffle, for jobs in which M·W objects are too many.

The W nodes form G groups. A map packs one object for each group instead of one for each node, and
a merge of each group, on each of its nodes in turn, divides a round among all reducers of the
group. With G = √W that makes M·√W objects. The price: merged blocks are sent once more, from a
node of the group to the node of their reducer. Rounds are bounded as in `push`.

References: the two-stage exchange of Exoshuffle-CloudSort, section 4, has W groups of one node;
the general one is that of multi-level sample sort (Axtmann et al., SPAA 2015).
"""

from __future__ import annotations

import math
from itertools import count

from dask_exo.cluster.futures import Futures
from dask_exo.cluster.resources import split_evenly
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle import choose
from dask_exo.shuffle.choose import Knobs, Limits, MergeLimits, Shape, ShuffleCost
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
    groups: int,
    alive: int = 2,
    width: int = 1,
    caps: MergeLimits | None = None,
) -> Steps[list[ReducerInput]]:
    """Map ``per_round`` parts at a time into G groups; merge each round within the groups."""
    stage = MergeStage(futures, maps, spec, width, caps)
    reducing = [w for w, reducers in enumerate(spec.owned) if reducers]
    teams = [[reducing[i] for i in team] for team in split_evenly(len(reducing), groups) if team]
    owned = [range(spec.owned[team[0]].start, spec.owned[team[-1]].stop) for team in teams]
    turns = count()
    while maps:
        yield from stage.wait_for_rounds(alive - 1)
        turn = next(turns)
        # the measured parts are packed for each node already
        probed = maps.probed
        rows = yield from maps.take(0 if probed else per_round, owned=owned, allow_speculation=True)
        yield from stage.wait_for_rounds(max(0, alive - 2))
        group_nodes = [spec.nodes[team[turn % len(team)]].id for team in teams]
        stage.rounds.append(stage.merge(rows, None if probed else group_nodes))  # of (T, G)
        del rows
    yield from maps.finish()
    yield from stage.wait_for_rounds(0)
    return stage.inputs()


def cost(shape: Shape, limits: Limits) -> ShuffleCost:
    """Estimate the cost of one shuffle."""
    m, r, w = shape.parts, shape.reducers, shape.nodes
    knobs, groups, probes = choose.round_knobs(shape, limits), _groups(shape), min(m, shape.slots)
    rounds = 1 + -(-(m - probes) // knobs.per_round)
    return choose.estimate(
        shape,
        passes=3,
        objects=packed_objects(m, w, groups, probes)
        + rounds * choose.merged_objects(r, w, knobs.width),
        inputs=m * groups + rounds * r,
        spilled=shape.spilled(),
        restored=shape.spilled(),
        sent=shape.sent * min(2, groups),
    )


def tune(shape: Shape, limits: Limits) -> Knobs:  # noqa: ARG001
    """Compute the knob that other algorithms do not have."""
    return {"groups": _groups(shape)}


def _groups(shape: Shape) -> int:
    return math.ceil(math.sqrt(max(shape.nodes, 1)))


def packed_objects(calls: int, nodes: int, groups: int, probes: int) -> int:
    """Count packed blocks and receipts: M·(G + 1), with probes·(W - G) more.

    ``probes`` of the ``calls`` were measured first, when there were no groups.
    """
    return calls * (groups + 1) + probes * (nodes - groups)
