"""Resources that nodes have and tasks request, and shares of work in proportion to weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

Resources = Mapping[str, float]
"""Amount of each resource, by name ("CPU", "GPU", others)."""

Amounts = tuple[tuple[str, float], ...]
"""Resources that a task requests, sorted and without zeros."""

Wants = Mapping[Amounts, int]
"""Number of tasks to run at the same time, by the resources that each requests."""


def fits(available: Resources, requested: Resources) -> bool:
    """Return whether the available amount of each requested resource suffices.

    Examples
    --------
    >>> fits({"CPU": 4, "GPU": 1}, {"CPU": 4}), fits({"CPU": 4}, {"CPU": 1, "GPU": 0.5})
    (True, False)
    """
    return all(available.get(name, 0) + 1e-9 >= amount for name, amount in requested.items())


def count_fitting(nodes: Sequence[Resources], requested: Resources) -> int:
    """Count the tasks with one resource request that the nodes run at the same time.

    Examples
    --------
    >>> count_fitting([{"CPU": 4, "GPU": 1}, {"CPU": 8}], {"CPU": 3})
    3
    >>> count_fitting([{"CPU": 4, "GPU": 1}, {"CPU": 8}], {"CPU": 1, "GPU": 0.5})
    2
    """
    if not requested:
        return sum(int(node.get("CPU", 0)) for node in nodes)
    fitting = [min(node.get(name, 0) / a for name, a in requested.items()) for node in nodes]
    return sum(int(count + 1e-9) for count in fitting)


def resources_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that a task with these options requests; one CPU by default.

    Examples
    --------
    >>> resources_of({"num_gpus": 1, "resources": {"disk": 2}})
    {'CPU': 1, 'GPU': 1, 'disk': 2}
    """
    resources = {"CPU": options.get("num_cpus", 1), "GPU": options.get("num_gpus", 0)}
    resources.update(options.get("resources") or {})
    return {name: amount for name, amount in resources.items() if amount}


def amounts_of(options: Mapping[str, Any]) -> Amounts:
    """Return the same as `resources_of`, sorted, to count tasks by it.

    Examples
    --------
    >>> amounts_of({"num_gpus": 1})
    (('CPU', 1), ('GPU', 1))
    """
    return tuple(sorted(resources_of(options).items()))


def submit_options(resources: Resources) -> dict[str, Any]:
    """Return the options of a task that requests these resources; see `resources_of`.

    Examples
    --------
    >>> submit_options({"GPU": 1.0, "disk": 2.0})
    {'num_cpus': 0.0, 'num_gpus': 1.0, 'resources': {'disk': 2.0}}
    """
    others = dict(resources)
    options = {"num_cpus": others.pop("CPU", 0.0), "num_gpus": others.pop("GPU", 0.0)}
    return {**options, "resources": others} if others else options


class ResourceRequest(NamedTuple):
    """Resources that a task requests of one node, and the actors that run it."""

    amounts: Amounts = (("CPU", 1.0),)
    on_actors: bool = False  # instead of stateless workers
    min_actors: int = 0
    max_actors: int | None = None  # None: as many as the cluster can run

    @property
    def needs(self) -> dict[str, Any]:
        """The same as options of `dask_exo.cluster.futures.Futures.submit`."""
        return submit_options(dict(self.amounts))

    def __str__(self) -> str:
        return ", ".join(f"{amount:g} {name}" for name, amount in self.amounts) or "nothing"


ONE_CPU = ResourceRequest()


def combine_requests(requests: Iterable[ResourceRequest]) -> ResourceRequest:
    """Return the request of one task that calls several functions.

    Examples
    --------
    >>> gpu = ResourceRequest((("CPU", 1.0), ("GPU", 0.5)), on_actors=True, max_actors=4)
    >>> print(combine_requests([gpu, ResourceRequest((("CPU", 2.0),), max_actors=3)]))
    2 CPU, 0.5 GPU
    """
    amounts: dict[str, float] = {}
    requests = list(requests)
    for name, amount in (item for request in requests for item in request.amounts):
        amounts[name] = max(amount, amounts.get(name, 0))
    limits = [request.max_actors for request in requests if request.max_actors is not None]
    most = min(limits, default=None)
    least = max(request.min_actors for request in requests)
    return ResourceRequest(
        tuple(sorted(amounts.items())),
        any(request.on_actors for request in requests),
        least if most is None else min(least, most),
        most,
    )


def next_cpu_request(current: float, limit: int) -> int | None:
    """Return the slots for a task whose node ran out of memory: half a node, then a whole one."""
    if current >= limit:
        return None
    half = max(2, limit // 2)
    return half if current < half else limit


def split_evenly(count: int, groups: int) -> list[range]:
    """Split ``range(count)`` into contiguous ranges of (nearly) equal length.

    Examples
    --------
    >>> split_evenly(5, 2)
    [range(0, 2), range(2, 5)]
    """
    return split_by_weight(count, [1] * groups)


def split_by_weight(count: int, weights: Sequence[int]) -> list[range]:
    """Split ``range(count)`` into contiguous ranges in proportion to weights.

    Examples
    --------
    >>> split_by_weight(10, [1, 3, 1])
    [range(0, 2), range(2, 8), range(8, 10)]
    """
    total = sum(weights)
    cuts = [count * upto // total for upto in accumulate(weights, initial=0)]
    return [range(a, b) for a, b in pairwise(cuts)]
