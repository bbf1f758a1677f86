"""How many workers fit, and which one takes the next call: decisions from numbers alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Amounts = Mapping[str, float]
"""Name of a resource and how much of it."""

AHEAD = 2  # calls of a worker at a time: the second one's inputs come while the first one runs


@dataclass(frozen=True)
class Crew:
    """Workers that have the same.

    Attributes
    ----------
    idle : int
        Those without a call.
    open : int
        Those with one, that could have another one waiting for them.
    count : int
        All.
    width : int
        How many there may be.
    """

    idle: int
    open: int
    count: int
    width: int


def lend(crew: Crew, *, room: bool, ahead: bool) -> Literal["idle", "new", "open"] | None:
    """Which worker takes the next call; None if it has to wait.

    Parameters
    ----------
    crew : Crew
    room : bool
        Whether there is what one more worker needs.
    ahead : bool
        Whether its inputs may be brought before they can be used.

    Examples
    --------
    >>> lend(Crew(idle=0, open=1, count=1, width=2), room=True, ahead=True)
    'new'
    >>> lend(Crew(idle=0, open=1, count=1, width=1), room=True, ahead=True)
    'open'
    """
    if crew.idle:
        return "idle"
    if room and crew.count < crew.width:
        return "new"
    return "open" if crew.open and ahead else None


def amounts_of(needs: Mapping[str, Any]) -> dict[str, float]:
    """What a task takes, by name of the resource; one CPU if nothing is said.

    Examples
    --------
    >>> amounts_of({"num_gpus": 1, "resources": {"disk": 2}})
    {'CPU': 1, 'GPU': 1, 'disk': 2}
    """
    found = {"CPU": needs.get("num_cpus", 1), "GPU": needs.get("num_gpus", 0)}
    found.update(needs.get("resources") or {})
    return {name: amount for name, amount in found.items() if amount}


def most_of(several: Iterable[Amounts]) -> dict[str, float]:
    """The largest amount of each resource."""
    found: dict[str, float] = {}
    for amounts in several:
        for name, amount in amounts.items():
            found[name] = max(amount, found.get(name, 0))
    return found


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


def fits(total: Amounts, held: Amounts, more: Amounts, reserve: Amounts) -> bool:
    """Whether ``more`` can be taken too, so that ``reserve`` is left of what it takes."""
    return all(
        held.get(name, 0) + amount + reserve.get(name, 0) <= total.get(name, 0) + 1e-9
        for name, amount in more.items()
    )
