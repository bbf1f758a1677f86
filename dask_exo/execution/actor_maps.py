"""Maps of a shuffle whose partitions lie on devices: calls of workers that are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.execution.actor_pool import Lent, Pools
from dask_exo.execution.requests import Asks


class Mappers:
    """The workers of one shuffle's maps; see `dask_exo.shuffle.spec.Spec`.

    A call of it is there until it is known to have ended, so that other tasks see who is busy.

    Parameters
    ----------
    futures : Futures
    pools : Pools
    pool : Asks
        What a map asks for.
    """

    def __init__(self, futures: Futures, pools: Pools, pool: Asks) -> None:
        self._futures, self._pools, self._pool = futures, pools, pool
        self._calls: dict[Ref, Lent] = {}

    def split(self, count: int, fn: Callable[..., Any], *args: Any) -> list[Ref]:
        """As `Worker.split`, by whoever has least to do; the last value comes last."""
        self.settle()
        lent = self._pools.lease(self._pool)
        refs = lent.worker.split(count, fn, *args)
        self._calls[refs[-1]] = lent
        return refs

    def settle(self) -> None:
        """Give back the workers of calls that have ended."""
        for ref in self._futures.wait(list(self._calls), timeout=0)[0]:
            self._pools.back(self._calls.pop(ref), 0)

    def close(self) -> None:
        """The shuffle has ended: give back all of them."""
        for lent in self._calls.values():
            self._pools.back(lent, 0)
        self._calls.clear()
        self._pools.spend(self._pool, 1)
