"""What a task asks of the place where it runs, as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from dask_exo.cluster.resources import needs_of


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
        """As `dask_exo.cluster.futures.Futures` takes it."""
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
