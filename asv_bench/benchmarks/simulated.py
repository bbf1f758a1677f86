"""Shuffles without data, on simulated clusters: what maps, merges and reducers are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from dask_exo.cluster.futures import Futures, Node, Ref
from dask_exo.cluster.waiting import Steps, drive
from dask_exo.shuffle.choose import Limits
from dask_exo.shuffle.map_stage import Refs
from dask_exo.shuffle.run_shuffle import Shuffled, run_shuffle
from dask_exo.shuffle.spec import Receipt, ReducerInput, Spec, Tally
from dask_exo.testing import Channels, SimFutures
from dask_exo.testing.simulated.tasks import CostModel


def run_map(*_: Any) -> None:
    """Make a part and cut it."""


def run_merge(*_: Any) -> None:
    """Merge packed blocks."""


def run_reduce(*_: Any) -> None:
    """Assemble an output."""


class Simulated(SimFutures):
    """A cluster where nothing is computed and every receipt says what a map would say.

    Parameters
    ----------
    nodes, cost, channels, trace
        As `SimFutures` takes them.
    part : int
        Bytes that a map makes.
    seconds : float
        That it takes.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        cost: CostModel,
        *,
        part: int,
        seconds: float,
        channels: Channels | None = None,
        trace: bool = False,
    ) -> None:
        super().__init__(nodes, cost, execute=False, channels=channels, trace=trace)
        self._receipt = Receipt(Tally(rows=part // 100), part, seconds)

    def get(self, refs: Sequence[Ref], timeout: float | None = None) -> list[Any]:
        """Receipts, as if the maps had run."""
        super().get(refs, timeout)
        return [self._receipt for _ in refs]


def shuffle(futures: Futures, parts: int, reducers: int, limits: Limits) -> Shuffled:
    """Shuffle parts that are not there."""
    spec = Spec(reducers, tuple(futures.nodes()), run_map, run_merge)  # type: ignore[arg-type]
    return drive(futures, run_shuffle(futures, Refs([None] * parts), spec, limits))


def reduce(futures: Futures, columns: list[ReducerInput], window: int = 2) -> None:
    """Reduce the nodes' columns side by side, ``window`` for each slot at a time.

    Columns are dropped, and so are their blocks, as soon as their reducers are submitted.
    """
    drive(futures, _reduced(futures, columns, window))


def _reduced(futures: Futures, columns: list[ReducerInput], window: int) -> Steps[None]:
    spec = Spec(len(columns), tuple(futures.nodes()), run_map, run_merge)  # type: ignore[arg-type]
    turns = max(len(mine) for mine in spec.owned)
    flying: deque[Ref] = deque()
    for r in [mine[i] for i in range(turns) for mine in spec.owned if i < len(mine)]:
        if len(flying) >= window * spec.slots:
            yield [flying.popleft()]
        column, columns[r] = columns[r], ReducerInput((), 0)
        flying.append(futures.submit(run_reduce, *column.refs, node=column.node))
        del column
    yield flying
