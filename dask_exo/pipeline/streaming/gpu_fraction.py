"""How much of a GPU a worker takes: what its stage asks for, or as much as it was seen to hold.

A cluster shares a GPU by numbers: four workers that ask for a quarter of one are put on it,
whatever they hold there. So a share is at least what its tasks have held of the memory; then no
workers are put on one GPU that do not fit it together, as far as they have been measured. One
alone always fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from dask_exo.pipeline.streaming.autoscaler import Pool
from dask_exo.pipeline.streaming.snapshot import StageView, View

GPU = "GPU"
PARTS = 16  # of a GPU: a worker that comes to hold a little more is not started anew


def shares(view: View, pools: Sequence[Pool]) -> list[float]:
    """Share of a GPU that a worker of each pool takes, or number of GPUs.

    Parameters
    ----------
    view : View
    pools : sequence of Pool
        (P,)

    Returns
    -------
    list of float
        (P,) Never less than before; 0 of a pool that asks for none.
    """
    return [max(_share(view.stages[k]) for k in pool) for pool in pools]


def _share(stage: StageView) -> float:
    asked = stage.needs.get(GPU, 0.0)
    if not 0 < asked < 1 or not stage.held:
        return asked
    together = stage.device // stage.held
    if not together:
        return 1.0
    # of workers that are all alike as many fit as before it was rounded
    seen = min(ceil(PARTS * stage.held / stage.device) / PARTS, 1 / together)
    return max(asked, seen)
