"""Groups of a Dask dataframe that are aggregated online.

Partitions are aggregated in a random order, some of them in each round. The first rounds are small,
so that a first estimate is there as soon as one partition is. While the caller looks at an
estimate, the next rounds run.

References: Exoshuffle section 3.3.3.1; Hellerstein, Haas and Wang, "Online aggregation" (SIGMOD
1997). The thesis keeps the state of each group in its reducer, since its reports are printed; here
a report is a frame of the caller's, and so is the state. `dask_exo.shuffle.stream` is the former.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import dask.base
import dask.dataframe as dd
import numpy as np
from dask.delayed import delayed

from dask_exo.dataframe.online_aggregation import (
    AGGREGATES,
    AggregationSpec,
    Estimate,
    PartialAggregate,
    aggregate_partition,
    combine,
    estimate,
)
from dask_exo.errors import AggregationError
from dask_exo.validation import aggregates, check_columns

AHEAD = 2
"""Full rounds that run while the caller looks at one; or as many partitions in smaller ones."""


class OnlineGroupBy:
    """Groups of a Dask dataframe, to be aggregated online; see ``ddf.exo.groupby``."""

    def __init__(self, frame: dd.DataFrame, by: Any) -> None:
        self._frame, self._by = frame, list(by) if isinstance(by, list) else [by]
        if not self._by:
            raise AggregationError("by=[] names no column to group by: give at least one")
        check_columns(self._by, frame, "to group by")

    def agg_online(
        self,
        spec: Mapping[Any, str | Sequence[str]],
        *,
        every: float = 0.05,
        top: int | None = None,
        seed: int = 0,
    ) -> Iterator[Estimate]:
        """Aggregate, and yield estimates meanwhile.

        While the caller reads an estimate, the next rounds run. A round recomputes its inputs:
        persist the output of a shuffle first.

        Parameters
        ----------
        spec : mapping
            Column → one or several of "sum", "count", "mean", "min", "max", "var", "std", "nunique"
            and "approx_nunique". For the exact nunique all distinct values are collected;
            approx_nunique keeps a sketch for each group, of 20 kB at most, with a standard error of
            1.6 %.
        every : float
            Share of the partitions between two estimates, or from 2 on their number. The first
            estimates come sooner, after 1, 2, 3, 4, 6 … partitions.
        top : int, optional
            Show only so many groups: those whose values of the first aggregate of ``spec`` are the
            largest, the largest first. All groups are kept, so that the last estimate is exact.
        seed : int
            Decides the order of the partitions.

        Yields
        ------
        Estimate
            The last one is exact.

        Raises
        ------
        ColumnError
            There is no such column.
        AggregationError
            There is no such aggregate, or ``every`` or ``top`` is not one that it can be.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> pages = pd.DataFrame({"lang": ["de", "fr"] * 50, "views": range(100)})
        >>> ddf = dd.from_pandas(pages, npartitions=10)
        >>> *_, last = ddf.exo.groupby("lang").agg_online({"views": "sum"}, every=0.25)
        >>> last.exact, last.frame.views.to_dict()
        (True, {'de': 2450, 'fr': 2500})
        >>> *_, last = ddf.exo.groupby("lang").agg_online({"views": "sum"}, top=1)
        >>> last.frame.views.to_dict()
        {'fr': 2500}
        """
        columns = aggregates(spec, AGGREGATES)
        check_columns([column for column, _ in columns], self._frame, "to aggregate")
        if not 0 < every <= 1 and not (every >= 2 and every == int(every)):
            raise AggregationError(
                f"every={every!r}: need a share of the partitions, up to 1, or from 2 on a number"
            )
        if top is not None and (top != int(top) or top < 1):
            raise AggregationError(f"top={top!r}: need a number of groups, from 1 on")
        flat = all(isinstance(names, str) for names in spec.values())
        return self._run(AggregationSpec(self._by, columns, flat, top), every, seed)

    def _run(self, asked: AggregationSpec, every: float, seed: int) -> Iterator[Estimate]:
        # optimized once: a round is some of these tasks, and no expression of its own
        parts = self._frame[asked.read].to_delayed(optimize_graph=True)
        order = np.random.default_rng(seed).permutation(len(parts))
        aggregate = delayed(aggregate_partition, pure=True, traverse=False)
        rounds = deque(pairwise([0, *estimate_points(len(parts), every)]))
        running: deque[tuple[Any, ...]] = deque()
        found: list[PartialAggregate] = []
        begun = done = 0
        while done < len(parts):
            while rounds and begun - done <= AHEAD * step_of(len(parts), every):
                start, begun = rounds.popleft()
                mine = [aggregate(parts[i], asked) for i in order[start:begun]]
                running.append(dask.base.persist(*mine))
            found = [combine([*found, *dask.base.compute(*running.popleft())])]
            done = found[0].partitions
            yield estimate(found[0], asked, len(parts))


def estimate_points(partitions: int, every: float) -> list[int]:
    """Return after how many partitions there are estimates: soon at first, then evenly spaced.

    Examples
    --------
    >>> estimate_points(100, 0.2)
    [1, 2, 3, 4, 6, 8, 12, 16, 20, 40, 60, 80, 100]
    >>> estimate_points(10, 4)
    [1, 2, 3, 4, 8, 10]
    """
    step = step_of(partitions, every)
    sooner = {k for i in range(step.bit_length()) for k in (2**i, 3 * 2**i) if k < step}
    return [*sorted(sooner), *range(step, partitions, step), partitions]


def step_of(partitions: int, every: float) -> int:
    """Return the number of partitions of a full round."""
    return max(1, min(partitions, round(every * partitions if every <= 1 else every)))


__all__ = ["OnlineGroupBy", "estimate_points", "step_of"]
