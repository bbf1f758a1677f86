"""Groups of a Dask dataframe that are aggregated online.

Partitions are aggregated in a random order, some of them in each round. The first rounds are small,
so the first estimate is ready as soon as one partition is. While the caller reads an estimate, the
next rounds run. Partial aggregates are combined and scaled up by the share of partitions seen; the
variance between partitions gives the standard error.

References: Exoshuffle section 3.3.3.1; Hellerstein, Haas and Wang, "Online aggregation" (SIGMOD
1997); Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances" (1979). Exoshuffle keeps the state of each group in its reducer and prints reports, as
`dask_exo.shuffle.stream` does; here the state is in the driver, which returns it as frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import dask.base
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.delayed import delayed

from dask_exo.errors import AggregationError
from dask_exo.partitions.kernels.cardinality import STANDARD_ERROR, Sketch, merge_sketches, sketch
from dask_exo.validation import aggregates, check_columns

AHEAD = 2  # full rounds, or as many partitions in smaller ones, that run while an estimate is read


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
        """Aggregate, and yield estimates on the way.

        A round recomputes its inputs: persist the output of a shuffle first.

        Parameters
        ----------
        spec : mapping
            Column → one or several of "sum", "count", "mean", "min", "max", "var", "std", "nunique"
            and "approx_nunique". The exact nunique collects all distinct values; approx_nunique
            has a sketch for each group, of 20 kB at most, with a standard error of 1.6 %.
        every : float
            Share of the partitions between two estimates, or from 2 on their number. The first
            estimates come sooner, after 1, 2, 3, 4, 6 … partitions.
        top : int, optional
            Number of groups to return: those with the largest values of the first aggregate of
            ``spec``, the largest first. All groups are counted, so the last estimate is exact.
        seed : int
            Determines the order of the partitions.

        Yields
        ------
        Estimate
            The last one is exact.

        Raises
        ------
        ColumnError
            There is no such column.
        AggregationError
            There is no such aggregate, or ``every`` or ``top`` is invalid.

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

    def _run(self, spec: AggregationSpec, every: float, seed: int) -> Iterator[Estimate]:
        # optimized once: a round is some of these tasks, and no expression of its own
        parts = self._frame[spec.read].to_delayed(optimize_graph=True)
        order = np.random.default_rng(seed).permutation(len(parts))
        aggregate = delayed(aggregate_partition, pure=True, traverse=False)
        rounds = deque(pairwise([0, *estimate_points(len(parts), every)]))
        running: deque[tuple[Any, ...]] = deque()
        totals: list[PartialAggregate] = []
        started = done = 0
        while done < len(parts):
            while rounds and started - done <= AHEAD * step_of(len(parts), every):
                start, started = rounds.popleft()
                tasks = [aggregate(parts[i], spec) for i in order[start:started]]
                running.append(dask.base.persist(*tasks))
            totals = [combine([*totals, *dask.base.compute(*running.popleft())])]
            done = totals[0].partitions
            yield estimate(totals[0], spec, len(parts))


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
    early = {k for i in range(step.bit_length()) for k in (2**i, 3 * 2**i) if k < step}
    return [*sorted(early), *range(step, partitions, step), partitions]


def step_of(partitions: int, every: float) -> int:
    """Return the number of partitions of a full round."""
    return max(1, min(partitions, round(every * partitions if every <= 1 else every)))


TOTALS = ("sum", "count")
PARTIAL: Mapping[str, tuple[str, ...]] = {  # aggregates of a partition that each one needs
    "sum": ("sum",),
    "count": ("count",),
    "min": ("min",),
    "max": ("max",),
    "mean": ("count", "sum", "var"),
    "var": ("count", "sum", "var"),
    "std": ("count", "sum", "var"),
    "nunique": (),
    "approx_nunique": (),
}
AGGREGATES = tuple(PARTIAL)
Column = tuple[Any, str]  # a column, and its aggregate


@dataclass(frozen=True)
class Estimate:
    """Estimated result of a groupby.

    Attributes
    ----------
    frame : DataFrame
        A row for each group seen (or for the top ones of them), columns as of
        `pandas.DataFrame.agg`. Sums and counts are scaled up; min, max, var, std, nunique and
        approx_nunique are of the partitions seen.
    error : DataFrame
        Standard errors, in the shape of ``frame``: of sums and counts from the third partition on,
        of means always, of approx_nunique that of its sketch; NaN for the others.
    share : float
        Share of the partitions that have been seen, up to 1.
    exact : bool
        Whether all have been seen. Then all but approx_nunique is exact.
    """

    frame: pd.DataFrame
    error: pd.DataFrame
    share: float
    exact: bool


@dataclass(frozen=True)
class AggregationSpec:
    """The requested aggregates."""

    by: list[Any]
    columns: Sequence[Column]
    flat: bool  # whether estimates have plain columns
    top: int | None = None  # most groups of an estimate

    def of(self, aggregate: str) -> list[Any]:
        """Return the columns with a request for ``aggregate``."""
        return [column for column, name in self.columns if name == aggregate]

    @property
    def read(self) -> list[Any]:
        """The columns to read."""
        return list(dict.fromkeys([*self.by, *(column for column, _ in self.columns)]))

    @property
    def by_column(self) -> dict[Any, list[str]]:
        """Column → aggregates that each partition computes."""
        aggs: dict[Any, list[str]] = {}
        for column, name in self.columns:
            aggs.setdefault(column, []).extend(PARTIAL[name])
        distinct = {column: list(dict.fromkeys(names)) for column, names in aggs.items() if names}
        # groups are needed even if only distinct values are requested
        return distinct or {self.columns[0][0]: ["count"]}


@dataclass(frozen=True)
class PartialAggregate:
    """Aggregates of some partitions.

    Attributes
    ----------
    aggregates : DataFrame
        A row for each group; "var" is the sum of squared distances from the mean.
    distinct : list of DataFrame
        For each column with nunique, its distinct values in each group.
    sketches : list of Sketch
        For each column with approx_nunique.
    squares : DataFrame
        For each group and total, the sum of the squares of the partitions' totals.
    partitions : int
        Number of partitions.
    """

    aggregates: pd.DataFrame
    distinct: list[pd.DataFrame]
    sketches: list[Sketch]
    squares: pd.DataFrame
    partitions: int = 1


def aggregate_partition(frame: pd.DataFrame, spec: AggregationSpec) -> PartialAggregate:
    """Aggregate one partition."""
    groups = frame.groupby(spec.by, observed=True)
    aggs = groups.agg(spec.by_column)
    for column, name in aggs.columns:
        if name == "var":
            count = aggs[column, "count"]
            aggs[column, name] = (aggs[column, name] * (count - 1)).where(count > 1, 0.0)
    distinct = [
        frame[list(dict.fromkeys([*spec.by, column]))].drop_duplicates()
        for column in spec.of("nunique")
    ]
    sketches: list[Sketch] = []
    if sketch_columns := spec.of("approx_nunique"):
        numbers = groups.ngroup().fillna(-1).to_numpy("int64")  # no number: a key is missing
        sketches = [sketch(aggs.index, numbers, frame[column]) for column in sketch_columns]
    totals = [column for column in aggs.columns if column[-1] in TOTALS]
    return PartialAggregate(aggs, distinct, sketches, aggs[totals].astype("float64") ** 2)


def combine(parts: Sequence[PartialAggregate]) -> PartialAggregate:
    """Combine partial aggregates."""
    distinct = zip(*(part.distinct for part in parts), strict=True)
    sketches = zip(*(part.sketches for part in parts), strict=True)
    return PartialAggregate(
        _combine_aggregates([part.aggregates for part in parts]),
        [pd.concat(group).drop_duplicates() for group in distinct],
        [merge_sketches(group) for group in sketches],
        _grouped(pd.concat([part.squares for part in parts])).sum(),
        sum(part.partitions for part in parts),
    )


def _grouped(frame: pd.DataFrame) -> Any:
    levels = list(range(frame.index.nlevels))
    return frame.groupby(level=levels, observed=True, dropna=False)


def _combine_aggregates(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    rows = pd.concat(parts)
    how = {column: column[-1] if column[-1] in ("min", "max") else "sum" for column in rows.columns}
    combined = _grouped(rows).agg(how)
    for column, name in rows.columns:
        if name != "var":
            continue
        count = rows[column, "count"]
        mean = rows[column, "sum"] / count.where(count > 0)
        total = (combined[column, "sum"] / combined[column, "count"]).reindex(rows.index)
        spread = _grouped(((mean - total) ** 2 * count).to_frame("between")).sum()["between"]
        combined[column, name] += spread
    return combined


def estimate(partial: PartialAggregate, spec: AggregationSpec, partitions: int) -> Estimate:
    """Estimate the aggregates of all ``partitions`` from those of some."""
    aggs, share = partial.aggregates, partial.partitions / partitions
    exact = partial.partitions == partitions
    values: dict[Column, Any] = {}
    errors: dict[Column, Any] = {}
    for column, name in spec.columns:
        key = column, name
        errors[key] = pd.Series(0.0 if exact else np.nan, aggs.index)
        if name in TOTALS:
            values[key] = aggs[key] if exact else aggs[key] / share
            errors[key] = errors[key] if exact else _error(partial, key, partitions)
        elif name in ("min", "max"):
            values[key] = aggs[key]
        elif name == "nunique":
            pairs = partial.distinct[spec.of(name).index(column)]
            counts = pairs.groupby(spec.by, observed=True)[column].nunique()
            values[key] = counts.reindex(aggs.index)
        elif name == "approx_nunique":
            counts = partial.sketches[spec.of(name).index(column)].counts()
            values[key] = counts.reindex(aggs.index)
            errors[key] = values[key] * STANDARD_ERROR
        else:
            values[key], off = _moment(aggs, key)
            if name == "mean" and not exact:
                errors[key] = off * np.sqrt(1 - share)
    frame, error = (pd.DataFrame(key, index=aggs.index) for key in (values, errors))
    if spec.flat:
        frame.columns = error.columns = pd.Index([column for column, _ in spec.columns])
    if spec.top is not None:
        frame = _top(frame, spec.top)
        error = error.reindex(frame.index)
    return Estimate(frame, error, share, exact)


def _moment(aggs: pd.DataFrame, key: Column) -> tuple[Any, Any]:
    """Return a mean, variance or deviation, and the standard error of the mean."""
    column, name = key
    count, squares = aggs[column, "count"], aggs[column, "var"]
    variance = (squares / (count - 1)).where(count > 1)
    if name == "mean":
        value = (aggs[column, "sum"] / count).where(count > 0)
    else:
        value = variance if name == "var" else np.sqrt(variance)
    return value, np.sqrt(variance / count)


def _error(partial: PartialAggregate, key: Column, partitions: int) -> Any:
    """Return the standard error of a scaled total, from the variance of partitions' totals."""
    n, totals, squares = partial.partitions, partial.aggregates[key], partial.squares[key]
    if n < 3:
        return pd.Series(np.nan, totals.index)
    variance = (squares - totals.astype("float64") ** 2 / n) / (n - 1)
    return partitions * np.sqrt(variance.clip(lower=0) / n * (1 - n / partitions))


def _top(frame: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the rows with the largest values of the first column, largest first, stably."""
    # negated ranks, not a descending sort, keep ties in order, and rank whatever can be compared
    ranks = frame.iloc[:, 0].rank(method="min", ascending=False, na_option="bottom")
    return frame.iloc[np.argsort(ranks.to_numpy(), kind="stable")[:count]]
