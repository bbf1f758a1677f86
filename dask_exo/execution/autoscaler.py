"""Sizes of actor pools, and fractions of a GPU, from measured rates and memory.

An actor with a model holds its resources also while it is idle, and is slow to start. So measured
rates determine the number of actors, and not the length of queues. Sizes follow a change of rates
if that makes the slowest pool faster by more than noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from dask_exo.cluster.resources import Resources, fits

BETTER = 1.15  # times as fast the slowest pool has to become, for sizes to change
GPU_STEPS = 16  # of a GPU: an actor that comes to hold a little more is not restarted


def balanced_sizes(
    total: Resources,
    requests: Sequence[Resources],
    seconds: Sequence[float],
    limits: Sequence[float],
    before: Sequence[int] | None,
) -> list[int] | None:
    """Return the smallest sizes at which the slowest of P pools is as fast as it can be.

    The cluster has ``total`` resources, of which each pool has a request for one task. ``seconds``
    is the work of each pool for a byte of the source, 0 for a pool without work. Sizes stay as
    ``before`` unless others are clearly better. Return None if not even one task of each pool fits.
    """
    best = _balanced(total, requests, seconds, limits)
    if best is None or before is None or not _fit(total, requests, before):
        return best
    return best if _rate(best, seconds) > BETTER * _rate(before, seconds) else list(before)


def _balanced(
    total: Resources,
    requests: Sequence[Resources],
    seconds: Sequence[float],
    limits: Sequence[float],
) -> list[int] | None:
    able = [p for p, some in enumerate(seconds) if some]
    nearly = zip(_lower_bound(total, requests, seconds), limits, strict=True)
    starts = ([int(min(some)) for some in nearly], [int(some > 0) for some in seconds])
    sizes = next((some for some in starts if _fit(total, requests, some)), None)
    if sizes is None:
        return None
    left = _left(total, requests, sizes)
    while able:
        p = min(able, key=lambda p: sizes[p] / seconds[p])
        if sizes[p] >= limits[p] or not fits(left, requests[p]):
            break
        sizes[p] += 1
        for name, amount in requests[p].items():
            left[name] -= amount
    slowest = _rate(sizes, seconds)
    return [max(1, ceil(slowest * some - 1e-9)) if some else 0 for some in seconds]


def _lower_bound(
    total: Resources, requests: Sequence[Resources], seconds: Sequence[float]
) -> list[int]:
    """Return a little less than the share of each pool, and at least one."""
    work = Counter[str]()
    for amounts, some in zip(requests, seconds, strict=True):
        work.update({name: amount * some for name, amount in amounts.items()})
    rate = min((total.get(name, 0) / some for name, some in work.items() if some), default=0)
    return [max(1, int(rate * some) - len(requests)) if some else 0 for some in seconds]


def _fit(total: Resources, requests: Sequence[Resources], sizes: Sequence[int]) -> bool:
    return min(_left(total, requests, sizes).values(), default=0) >= -1e-9


def _left(
    total: Resources, requests: Sequence[Resources], sizes: Sequence[int]
) -> dict[str, float]:
    """Return the resources that remain beside pools of these sizes."""
    left = dict(total)
    for amounts, size in zip(requests, sizes, strict=True):
        for name, amount in amounts.items():
            left[name] = left.get(name, 0) - amount * size
    return left


def _rate(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the bytes of the source that the slowest pool processes in a second."""
    rates = [size / some for size, some in zip(sizes, seconds, strict=True) if some]
    return min(rates, default=0.0)


def gpu_fraction(requested: float, held: int, device: int) -> float:
    """Return the fraction of a GPU to request for an actor that holds so many of its bytes.

    It is never less than ``requested``. ``held`` is 0 where it is not known.
    """
    if not 0 < requested < 1 or not held:
        return requested
    fitting = device // held
    if not fitting:
        return 1.0
    # rounding must not reduce how many equal actors fit
    seen = min(ceil(GPU_STEPS * held / device) / GPU_STEPS, 1 / fitting)
    return max(requested, seen)


def capacity(request: Resources, limit: int | None, total: Mapping[str, float]) -> int:
    """Return how many actors fit on a cluster and may run at once.

    A fraction of a GPU is one of a single GPU.

    Examples
    --------
    >>> capacity({"GPU": 0.5}, None, {"CPU": 1.0, "GPU": 2.0})
    4
    >>> capacity({"GPU": 0.4}, None, {"CPU": 1.0, "GPU": 2.0})
    4
    """
    room = [_fitting(name, some, total.get(name, 0)) for name, some in request.items() if some]
    most = [] if limit is None else [limit]
    return min([*room, *most], default=0)


def _fitting(name: str, amount: float, total: float) -> int:
    if name != "GPU" or amount >= 1:
        return int(total / amount + 1e-9)
    whole, rest = divmod(total, 1.0)
    return int(whole) * int(1 / amount + 1e-9) + int(rest / amount + 1e-9)
