"""How many workers fit, and which one takes the next call: decisions from numbers alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dask_exo.cluster.resources import Amounts, has

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


def most_of(several: Iterable[Amounts]) -> dict[str, float]:
    """The largest amount of each resource."""
    found: dict[str, float] = {}
    for amounts in several:
        for name, amount in amounts.items():
            found[name] = max(amount, found.get(name, 0))
    return found


def fits(total: Amounts, held: Amounts, more: Amounts, reserve: Amounts) -> bool:
    """Whether ``more`` can be taken too, so that ``reserve`` is left of what it takes."""
    left = {name: total.get(name, 0) - held.get(name, 0) - reserve.get(name, 0) for name in more}
    return has(left, more)
