"""Sizes of actor pools, fractions of a GPU, demand for nodes, from measured rates and memory.

An actor with a model holds its resources even while it is idle, and is slow to start. So measured
rates determine the number of actors, not the length of queues. Sizes follow a change of rates only
if that makes the slowest pool faster by more than noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from dask_exo.cluster.resources import Amounts, Resources, Wants, fits

BETTER = 1.15  # speed-up of the slowest pool at which sizes change
NODE_START = 60.0  # seconds that a new node takes to run its first task
GPU_STEPS = 16  # per GPU: an actor that needs a little more memory is not restarted


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
    busy = [p for p, work in enumerate(seconds) if work]
    bounds = zip(_lower_bound(total, requests, seconds), limits, strict=True)
    starts = ([int(min(pair)) for pair in bounds], [int(work > 0) for work in seconds])
    sizes = next((start for start in starts if _fit(total, requests, start)), None)
    if sizes is None:
        return None
    free = _remaining(total, requests, sizes)
    while busy:
        p = min(busy, key=lambda p: sizes[p] / seconds[p])
        if sizes[p] >= limits[p] or not fits(free, requests[p]):
            break
        sizes[p] += 1
        for name, amount in requests[p].items():
            free[name] -= amount
    slowest = _rate(sizes, seconds)
    return [max(1, ceil(slowest * work - 1e-9)) if work else 0 for work in seconds]


def _lower_bound(
    total: Resources, requests: Sequence[Resources], seconds: Sequence[float]
) -> list[int]:
    """Return a little less than the share of each pool, and at least one."""
    demand = Counter[str]()
    for amounts, work in zip(requests, seconds, strict=True):
        demand.update({name: amount * work for name, amount in amounts.items()})
    rate = min((total.get(name, 0) / need for name, need in demand.items() if need), default=0)
    return [max(1, int(rate * work) - len(requests)) if work else 0 for work in seconds]


def _fit(total: Resources, requests: Sequence[Resources], sizes: Sequence[int]) -> bool:
    return min(_remaining(total, requests, sizes).values(), default=0) >= -1e-9


def _remaining(
    total: Resources, requests: Sequence[Resources], sizes: Sequence[int]
) -> dict[str, float]:
    """Return the resources that pools of these sizes leave."""
    remaining = dict(total)
    for amounts, size in zip(requests, sizes, strict=True):
        for name, amount in amounts.items():
            remaining[name] = remaining.get(name, 0) - amount * size
    return remaining


def _rate(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the bytes of the source that the slowest pool processes in a second."""
    rates = [size / work for size, work in zip(sizes, seconds, strict=True) if work]
    return min(rates, default=0.0)


def gpu_fraction(requested: float, used: int, device: int) -> float:
    """Return the fraction of a GPU to request for an actor that uses ``used`` bytes of it.

    It is never less than ``requested``. ``used`` is 0 if unknown.
    """
    if not 0 < requested < 1 or not used:
        return requested
    fitting = device // used
    if not fitting:
        return 1.0
    # rounding must not reduce how many equal actors fit
    share = min(ceil(GPU_STEPS * used / device) / GPU_STEPS, 1 / fitting)
    return max(requested, share)


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
    room = [
        _fitting(name, amount, total.get(name, 0)) for name, amount in request.items() if amount
    ]
    limits = [] if limit is None else [limit]
    return min([*room, *limits], default=0)


def _fitting(name: str, amount: float, total: float) -> int:
    if name != "GPU" or amount >= 1:
        return int(total / amount + 1e-9)
    whole, rest = divmod(total, 1.0)
    return int(whole) * int(1 / amount + 1e-9) + int(rest / amount + 1e-9)


@dataclass(frozen=True)
class WorkLeft:
    """Tasks of one kind that a computation has left, and the seconds of the finished ones."""

    amounts: Amounts  # requested by each
    left: int
    done: int = 0
    seconds: float = 0.0
    most: int | None = None  # at a time


def wants_of(work: Iterable[WorkLeft]) -> Wants:
    """Return how many tasks are worth running at the same time, by what they request.

    A slot is worth it if it has work for as long as a node takes to start. So one task is wanted
    before any has been measured, and never more than are left of a kind.

    Examples
    --------
    >>> cpu, gpu = (("CPU", 1.0),), (("CPU", 1.0), ("GPU", 1.0))
    >>> wants_of([WorkLeft(cpu, 1000), WorkLeft(gpu, 10, 2, 600.0)]) == {cpu: 1, gpu: 10}
    True
    >>> wants_of([WorkLeft(cpu, 1000, 10, 300.0), WorkLeft(cpu, 1000)]) == {cpu: 500}
    True
    """
    seconds, most = Counter[Amounts](), dict[Amounts, int]()
    for one in work:
        if one.left:
            seconds[one.amounts] += one.left * one.seconds / max(one.done, 1)  # type: ignore[assignment]
            parallel = one.left if one.most is None else min(one.left, one.most)
            most[one.amounts] = max(parallel, most.get(one.amounts, 0))
    return {
        amounts: min(limit, max(1, ceil(seconds[amounts] / NODE_START)))
        for amounts, limit in most.items()
    }
