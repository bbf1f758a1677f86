"""Resources as numbers: what tasks take, and what nodes have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Amounts = Mapping[str, float]
"""Name of a resource ("CPU", "GPU", others) and how much of it."""


def has(there: Amounts, amounts: Amounts) -> bool:
    """Whether there is so much of each.

    Examples
    --------
    >>> has({"CPU": 4, "GPU": 1}, {"CPU": 4}), has({"CPU": 4}, {"CPU": 1, "GPU": 0.5})
    (True, False)
    """
    return all(there.get(name, 0) + 1e-9 >= amount for name, amount in amounts.items())


def side_by_side(nodes: Sequence[Amounts], amounts: Amounts) -> int:
    """How many tasks run at the same time that each take so much of one node.

    Examples
    --------
    >>> side_by_side([{"CPU": 4, "GPU": 1}, {"CPU": 8}], {"CPU": 3})
    3
    >>> side_by_side([{"CPU": 4, "GPU": 1}, {"CPU": 8}], {"CPU": 1, "GPU": 0.5})
    2
    """
    if not amounts:
        return sum(int(node.get("CPU", 0)) for node in nodes)
    fitting = [min(node.get(name, 0) / a for name, a in amounts.items()) for node in nodes]
    return sum(int(count + 1e-9) for count in fitting)


def amounts_of(needs: Mapping[str, Any]) -> dict[str, float]:
    """What a task takes, from what `Futures` takes; one CPU if nothing is said.

    Examples
    --------
    >>> amounts_of({"num_gpus": 1, "resources": {"disk": 2}})
    {'CPU': 1, 'GPU': 1, 'disk': 2}
    """
    found = {"CPU": needs.get("num_cpus", 1), "GPU": needs.get("num_gpus", 0)}
    found.update(needs.get("resources") or {})
    return {name: amount for name, amount in found.items() if amount}


def needs_of(amounts: Amounts) -> dict[str, Any]:
    """The same the other way round.

    Examples
    --------
    >>> needs_of({"GPU": 1.0, "disk": 2.0})
    {'num_cpus': 0.0, 'num_gpus': 1.0, 'resources': {'disk': 2.0}}
    """
    others = dict(amounts)
    needs = {"num_cpus": others.pop("CPU", 0.0), "num_gpus": others.pop("GPU", 0.0)}
    return {**needs, "resources": others} if others else needs
