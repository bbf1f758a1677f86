"""Push-based shuffle, in two stages and in rounds: what it spills, it spills once.

While the maps of one round run, the merges of the round before combine their blocks on the
node of the reducers, one merge a node and round, and yield one object a reducer, or one for a
few neighbouring reducers that get little. The maps'
own outputs are dropped as soon as their merges are submitted and never reach the disk.
The map output of ``alive`` rounds exists at a time: with two, the merges of round k-1 end before
the maps of round k+1 start. More and smaller rounds hold no more bytes, but let a node do several
merges side by side, where one alone would leave its slots waiting.

References: Exoshuffle sections 3.4.1 and 3.4.2, listing 7 (ES-push*). The listing submits
each round's maps twice and waits for one merge only; both are corrected here.
"""

from __future__ import annotations

from collections import deque

from dask_exo.cluster.futures import Futures, Steps
from dask_exo.shuffle.choose import Knobs, Limits, Shape, round_knobs
from dask_exo.shuffle.cost_model import Cost, estimate_merging
from dask_exo.shuffle.map_stage import Maps
from dask_exo.shuffle.merge_limits import Caps
from dask_exo.shuffle.merge_stage import Merge, Merged
from dask_exo.shuffle.spec import Column, Spec

REVISING = True


def run(  # noqa: PLR0913  its knobs are its keywords
    futures: Futures,
    maps: Maps,
    spec: Spec,
    *,
    per_round: int,
    alive: int = 2,
    width: int = 1,
    caps: Caps | None = None,
) -> Steps[list[Column]]:
    """Map ``per_round`` parts at a time; merge each round on the reducers' nodes.

    ``width`` neighbouring reducers read the same merged blocks. Where what a node gets in a round
    exceeds ``caps``, it does several merges.

    Returns
    -------
    list of Column : (R,)
        One object of each merge.
    """
    merged = Merged(futures, maps, spec, width, caps)
    merging: deque[list[Merge]] = deque()  # the merges of the rounds before
    while maps:
        rows = yield from maps.take(per_round, revisable=True)  # (T, W)
        while len(merging) >= alive - 1:
            yield from merged.settle(merging.popleft())
        merging.append(merged.merge(rows))
        del rows
    yield from maps.finish()
    while merging:
        yield from merged.settle(merging.popleft())
    return merged.columns()


def cost(shape: Shape, limits: Limits) -> Cost:
    """Estimate the cost of one shuffle."""
    knobs = round_knobs(shape, limits)
    return estimate_merging(shape, -(-shape.parts // knobs.per_round), knobs.width)


def tune(shape: Shape, limits: Limits) -> Knobs:
    """Compute the knobs of `run`."""
    return round_knobs(shape, limits)._asdict()
