"""What a task asks of the place where it runs, as numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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
    """What a task takes, from what `dask_exo.futures.Futures` takes; one CPU if nothing is said.

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


class Asks(NamedTuple):
    """What a task asks of the place where it runs.

    Attributes
    ----------
    amounts : tuple of (str, float)
        See `Amounts`; sorted, without zeros.
    kept : bool
        Whether it runs on workers that are kept while there is work for them.
    least, most : int
        How many of those there are, where there is that much to do; None for as many as fit.
    """

    amounts: tuple[tuple[str, float], ...] = (("CPU", 1.0),)
    kept: bool = False
    least: int = 0
    most: int | None = None

    @property
    def needs(self) -> dict[str, Any]:
        """As `dask_exo.futures.Futures` takes it."""
        return needs_of(dict(self.amounts))

    def __str__(self) -> str:
        """For people."""
        return ", ".join(f"{amount:g} {name}" for name, amount in self.amounts) or "nothing"


ONE_CPU = Asks()


def together(several: Iterable[Asks]) -> Asks:
    """What a task asks for that calls several functions.

    Examples
    --------
    >>> gpu = Asks((("CPU", 1.0), ("GPU", 0.5)), kept=True, most=4)
    >>> print(together([gpu, Asks((("CPU", 2.0),), most=3)]))
    2 CPU, 0.5 GPU
    """
    amounts: dict[str, float] = {}
    asks = list(several)
    for name, amount in (item for one in asks for item in one.amounts):
        amounts[name] = max(amount, amounts.get(name, 0))
    most = min((one.most for one in asks if one.most is not None), default=None)
    least = max(one.least for one in asks)
    return Asks(
        tuple(sorted(amounts.items())),
        any(one.kept for one in asks),
        least if most is None else min(least, most),
        most,
    )
