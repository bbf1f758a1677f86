"""Sizes of actor pools, and fractions of a GPU, by measured rates and memory.

An actor with a model holds its resources also while it is idle, and is slow to start. So measured
rates determine the number of actors, and not the length of queues. Sizes follow a change of rates
if that makes the slowest stage faster by more than noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from dask_exo.cluster.resources import Resources, fits
from dask_exo.pipeline.streaming.snapshot import PipelineView, StageView, work_per_byte

BETTER = 1.15  # times as fast the slowest stage has to become, for sizes to change

StageGroup = tuple[int, ...]
"""Stages with equal requests, whose tasks share actors or slots."""


def pool_sizes(
    view: PipelineView, pools: Sequence[StageGroup], sizes: Sequence[int] | None
) -> list[int] | None:
    """Return how many tasks of each group of stages shall run at once.

    Parameters
    ----------
    view : PipelineView
    pools : sequence of StageGroup
        (P,) All stages, also those without actors: they share the resources.
    sizes : sequence of int, optional
        (P,) as it was decided before.

    Returns
    -------
    list of int, optional
        (P,) None as long as that is not known, or where not even one of each fits.
    """
    each = work_per_byte(view)
    if each is None:
        return None
    seconds = [
        sum(each[k] for k in pool if not view.stages[k].finished) for pool in pools
    ]  # of each pool for a byte of the source
    needs = [view.stages[pool[0]].needs for pool in pools]
    best = _balanced(view.total, needs, seconds, [_most(view, pool) for pool in pools])
    if best is None or sizes is None or not _fit(view.total, needs, sizes):
        return best
    return best if _rate(best, seconds) > BETTER * _rate(sizes, seconds) else list(sizes)


def _balanced(
    total: Resources, needs: Sequence[Resources], seconds: Sequence[float], most: Sequence[float]
) -> list[int] | None:
    """Return the smallest sizes at which the slowest group is as fast as it can be."""
    able = [p for p, some in enumerate(seconds) if some]
    nearly = zip(_lower_bound(total, needs, seconds), most, strict=True)
    starts = ([int(min(some)) for some in nearly], [int(some > 0) for some in seconds])
    sizes = next((some for some in starts if _fit(total, needs, some)), None)
    if sizes is None:
        return None
    left = _left(total, needs, sizes)
    while able:
        p = min(able, key=lambda p: sizes[p] / seconds[p])
        if sizes[p] >= most[p] or not fits(left, needs[p]):
            break
        sizes[p] += 1
        for name, need in needs[p].items():
            left[name] -= need
    slowest = _rate(sizes, seconds)
    return [max(1, ceil(slowest * some - 1e-9)) if some else 0 for some in seconds]


def _lower_bound(
    total: Resources, needs: Sequence[Resources], seconds: Sequence[float]
) -> list[int]:
    """Return a little less than the share of each group, and at least one."""
    asked = Counter[str]()
    for amounts, some in zip(needs, seconds, strict=True):
        asked.update({name: need * some for name, need in amounts.items()})
    rate = min((total.get(name, 0) / some for name, some in asked.items() if some), default=0)
    return [max(1, int(rate * some) - len(needs)) if some else 0 for some in seconds]


def _fit(total: Resources, needs: Sequence[Resources], sizes: Sequence[int]) -> bool:
    return min(_left(total, needs, sizes).values(), default=0) >= -1e-9


def _left(total: Resources, needs: Sequence[Resources], sizes: Sequence[int]) -> dict[str, float]:
    """Return the resources that remain beside groups of given sizes."""
    left = dict(total)
    for amounts, size in zip(needs, sizes, strict=True):
        for name, need in amounts.items():
            left[name] = left.get(name, 0) - need * size
    return left


def _rate(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the bytes of the source that the slowest group processes in a second."""
    rates = [size / some for size, some in zip(sizes, seconds, strict=True) if some]
    return min(rates, default=0.0)


def _most(view: PipelineView, pool: StageGroup) -> float:
    """Return the limit of tasks at once: the user's, or the capacity of the cluster."""
    limits = [view.stages[k].limit for k in pool]
    most = sum(limit if limit is not None else float("inf") for limit in limits)
    return min(most, max(1, capacity(view.stages[pool[0]].needs, None, view.total)))


GPU = "GPU"
PARTS = 16  # of a GPU: an actor that comes to hold a little more is not restarted


def gpu_fractions(view: PipelineView, pools: Sequence[StageGroup]) -> list[float]:
    """Return the fraction of a GPU, or number of GPUs, that an actor of each group requests.

    Parameters
    ----------
    view : PipelineView
    pools : sequence of StageGroup
        (P,)

    Returns
    -------
    list of float
        (P,) Never less than before; 0 for stages that request none.
    """
    return [max(_gpu_fraction(view.stages[k]) for k in pool) for pool in pools]


def _gpu_fraction(stage: StageView) -> float:
    asked = stage.needs.get(GPU, 0.0)
    if not 0 < asked < 1 or not stage.held:
        return asked
    together = stage.device // stage.held
    if not together:
        return 1.0
    # rounding must not reduce how many equal actors fit
    seen = min(ceil(PARTS * stage.held / stage.device) / PARTS, 1 / together)
    return max(asked, seen)


def capacity(needs: Resources, limit: int | None, total: Mapping[str, float]) -> int:
    """Return how many actors fit on a cluster and may run at once.

    A share of a GPU is one of a single GPU.

    Parameters
    ----------
    needs : mapping
        Of each.
    limit : int, optional
        How many there may be.
    total : mapping
        Of the cluster.

    Examples
    --------
    >>> capacity({"GPU": 0.5}, None, {"CPU": 1.0, "GPU": 2.0})
    4
    >>> capacity({"GPU": 0.4}, None, {"CPU": 1.0, "GPU": 2.0})
    4
    """
    room = [_capacity(name, need, total.get(name, 0)) for name, need in needs.items() if need]
    most = [] if limit is None else [limit]
    return min([*room, *most], default=0)


def _capacity(name: str, need: float, total: float) -> int:
    if name != "GPU" or need >= 1:
        return int(total / need + 1e-9)
    whole, rest = divmod(total, 1.0)
    return int(whole) * int(1 / need + 1e-9) + int(rest / need + 1e-9)
