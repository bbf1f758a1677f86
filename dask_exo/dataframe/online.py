"""Groups of a Dask dataframe that are aggregated online.

Partitions are aggregated in a random order, some of them in each round. The first rounds are small,
so the first estimate is ready as soon as one partition is. While the caller reads an estimate, the
next rounds run. Partial aggregates are combined and scaled up by the share of partitions seen; the
variance between partitions gives the standard error.

The state of few groups is in the driver. That of more stays in the cluster: a task for each share
of them, by a hash of their keys, combines it with those groups of new partitions. Then only
estimates come to the driver; of each share the top groups, if no others are requested. Each
estimate costs a pass over the state, so new partitions wait until they have several times its
entries.

References: Exoshuffle section 3.3.3.1; Hellerstein, Haas and Wang, "Online aggregation" (SIGMOD
1997); Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances" (1979).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import dask.base
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.delayed import delayed

from dask_exo.errors import AggregationError
from dask_exo.partitions.kernels.argsort import counting_argsort
from dask_exo.partitions.kernels.cardinality import STANDARD_ERROR, Sketch, merge_sketches, sketch
from dask_exo.validation import aggregates, check_columns

FEW = 100_000  # entries of a state that the driver combines: sooner than tasks would
SHARES = 64  # of the groups, at most; a power of two
SHARE = 250_000  # entries from which on there are two of them
NEW = 4  # entries of new partitions for each one of the state, before they are combined
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
            estimates come sooner, after 1, 2, 3, 4, 6 … partitions. Those of more than 100,000
            groups come later, if many would take more time than the aggregation.
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
        total: PartialAggregate | None = None
        shares: _Shares | None = None
        started = done = 0
        while done < len(parts):
            while rounds and started - done <= AHEAD * step_of(len(parts), every):
                start, started = rounds.popleft()
                tasks = [aggregate(parts[i], spec) for i in order[start:started]]
                running.append(dask.base.persist(*tasks))
            partials = running.popleft()
            done += len(partials)
            if shares is not None:
                if found := shares.add(partials, last=done == len(parts)):
                    yield found
                continue
            fetched = dask.base.compute(*partials)
            total = combine([total, *fetched] if total else fetched)
            yield estimate(total, spec, len(parts))
            if total.entries > FEW:
                shares, total = _Shares(total, spec, len(parts)), None


class _Shares:
    """State of many groups: shares in the cluster, and partial aggregates that are not in them."""

    def __init__(self, total: PartialAggregate, spec: AggregationSpec, partitions: int) -> None:
        self._shares: Sequence[Any] = total.hashed().split()
        self._entries, self._spec, self._partitions = total.entries, spec, partitions
        self._new: list[Any] = []
        self._new_entries = 0

    def add(self, partials: Sequence[Any], *, last: bool) -> Estimate | None:
        """Add partial aggregates; return an estimate if they are combined now."""
        self._new += partials
        self._new_entries += sum(dask.base.compute(*map(_SIZE, partials)))
        if self._new_entries < NEW * self._entries and not last:
            return None
        count = len(self._shares)
        self._shares = dask.base.persist(
            *(_COMBINE(i, count, share, *self._new) for i, share in enumerate(self._shares))
        )
        self._new, self._new_entries = [], 0
        looks = [_LOOK(share, self._spec, self._partitions) for share in self._shares]
        estimates, sizes = dask.base.compute(looks, list(map(_SIZE, self._shares)))
        self._entries = sum(sizes)
        return joined(estimates, self._spec)


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
        A row for each group; "var" is the sum of squared distances from the mean, and "sum²" and
        "count²" are those of the squares of the partitions' totals.
    distinct : list of DataFrame
        For each column with nunique, its distinct values in each group.
    sketches : list of Sketch
        For each column with approx_nunique.
    partitions : int
        Number of partitions.
    starts : list of array
        Where each share of the groups (SHARES + 1,), and of the rows of each of ``distinct``,
        starts and the last one ends; or none yet.
    """

    aggregates: pd.DataFrame
    distinct: list[pd.DataFrame]
    sketches: list[Sketch]
    partitions: int = 1
    starts: list[np.ndarray] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Groups, their distinct values, and their places in sketches."""
        places = (sketch.places for sketch in self.sketches)
        return sum(map(len, [self.aggregates, *self.distinct, *places]))

    def hashed(self) -> PartialAggregate:
        """Return it with the groups, and their distinct values, sorted by share."""
        index = self.aggregates.index
        shares = pd.util.hash_pandas_object(index, index=False).to_numpy() % SHARES
        padded = np.append(shares, 0)  # rows without a key are in no group, and may be in any share
        keys = (each.set_index(list(index.names)).index for each in self.distinct)
        rows = [counting_argsort(padded[index.get_indexer(key)], SHARES) for key in keys]
        order, groups = counting_argsort(shares, SHARES)
        return PartialAggregate(
            self.aggregates.take(order),
            [frame.take(at) for frame, (at, _) in zip(self.distinct, rows, strict=True)],
            [sketch.take(sketch.groups.get_indexer(index)[order]) for sketch in self.sketches],
            self.partitions,
            [groups, *(starts for _, starts in rows)],
        )

    def split(self) -> list[PartialAggregate]:
        """Return as many shares as this many entries need."""
        count = 1 << min((self.entries // SHARE).bit_length(), SHARES.bit_length() - 1)
        return [self.share(i, count) for i in range(count)]

    def share(self, number: int, count: int) -> PartialAggregate:
        """Return the groups of one of ``count`` shares."""
        if count == 1:
            return self
        each = SHARES // count
        groups, *rows = (slice(*at[[number * each, (number + 1) * each]]) for at in self.starts)
        return PartialAggregate(
            self.aggregates.iloc[groups],
            [frame.iloc[some] for frame, some in zip(self.distinct, rows, strict=True)],
            [sketch.select(groups) for sketch in self.sketches],
            self.partitions,
        )


def entries_of(partial: PartialAggregate) -> int:
    """Return the number of entries."""
    return partial.entries


def aggregate_partition(frame: pd.DataFrame, spec: AggregationSpec) -> PartialAggregate:
    """Aggregate one partition."""
    groups = frame.groupby(spec.by, observed=True, sort=False)
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
    for key in [column for column in aggs.columns if column[-1] in TOTALS]:
        aggs[_squares(key)] = aggs[key].astype("float64") ** 2
    return PartialAggregate(aggs, distinct, sketches).hashed()


def _squares(key: Column) -> Column:
    return key[0], f"{key[1]}²"


def combine_share(
    number: int, count: int, share: PartialAggregate, *partials: PartialAggregate
) -> PartialAggregate:
    """Combine one of ``count`` shares of the groups with those groups of the partials."""
    return combine([share, *(partial.share(number, count) for partial in partials)], sort=False)


def combine(parts: Sequence[PartialAggregate], *, sort: bool = True) -> PartialAggregate:
    """Combine partial aggregates; ``sort`` the groups by their keys."""
    distinct = zip(*(part.distinct for part in parts), strict=True)
    sketches = zip(*(part.sketches for part in parts), strict=True)
    return PartialAggregate(
        _combine_aggregates([part.aggregates for part in parts], sort=sort),
        [pd.concat(group).drop_duplicates() for group in distinct],
        [merge_sketches(group) for group in sketches],
        sum(part.partitions for part in parts),
    )


def _grouped(frame: pd.DataFrame, *, sort: bool) -> Any:
    levels = list(range(frame.index.nlevels))
    return frame.groupby(level=levels, observed=True, dropna=False, sort=sort)


def _combine_aggregates(parts: Sequence[pd.DataFrame], *, sort: bool) -> pd.DataFrame:
    rows = pd.concat(parts)
    how = {column: column[-1] if column[-1] in ("min", "max") else "sum" for column in rows.columns}
    combined = _grouped(rows, sort=sort).agg(how)
    for column, name in rows.columns:
        if name != "var":
            continue
        count = rows[column, "count"]
        mean = rows[column, "sum"] / count.where(count > 0)
        total = (combined[column, "sum"] / combined[column, "count"]).reindex(rows.index)
        between = ((mean - total) ** 2 * count).to_frame("between")
        combined[column, name] += _grouped(between, sort=sort).sum()["between"]
    return combined


def estimate(partial: PartialAggregate, spec: AggregationSpec, partitions: int) -> Estimate:
    """Estimate the aggregates of all ``partitions`` from those of some."""
    aggs = partial.aggregates
    if spec.top is not None:
        first, _ = _column(partial, aggs, spec, spec.columns[0], partitions)
        aggs = aggs.iloc[_top(first, spec.top)]
    columns = {key: _column(partial, aggs, spec, key, partitions) for key in spec.columns}
    frame, error = (
        pd.DataFrame({key: pair[i] for key, pair in columns.items()}, index=aggs.index)
        for i in (0, 1)
    )
    if spec.flat:
        frame.columns = error.columns = pd.Index([column for column, _ in spec.columns])
    share = partial.partitions / partitions
    return Estimate(frame, error, share, partial.partitions == partitions)


def _column(
    partial: PartialAggregate,
    aggs: pd.DataFrame,
    spec: AggregationSpec,
    key: Column,
    partitions: int,
) -> tuple[Any, Any]:
    """Return estimates of one aggregate for the groups in ``aggs``, and their standard errors."""
    (column, name), share = key, partial.partitions / partitions
    exact = partial.partitions == partitions
    error: Any = pd.Series(0.0 if exact else np.nan, aggs.index)
    if name in TOTALS:
        return (
            (aggs[key], error) if exact else (aggs[key] / share, _error(partial, aggs, key, share))
        )
    if name in ("min", "max"):
        return aggs[key], error
    if name == "nunique":
        pairs = partial.distinct[spec.of(name).index(column)]
        counts = pairs.groupby(spec.by, observed=True)[column].nunique()
        return counts.reindex(aggs.index), error
    if name == "approx_nunique":
        counts = partial.sketches[spec.of(name).index(column)].counts().reindex(aggs.index)
        return counts, counts * STANDARD_ERROR
    value, off = _moment(aggs, key)
    return value, off * np.sqrt(1 - share) if name == "mean" and not exact else error


def joined(estimates: Sequence[Estimate], spec: AggregationSpec) -> Estimate:
    """Return the estimate of all groups from those of all shares."""
    frame = pd.concat([estimate.frame for estimate in estimates])
    error = pd.concat([estimate.error for estimate in estimates])
    if spec.top is not None:
        frame = frame.iloc[_top(frame.iloc[:, 0], spec.top)]
    else:
        with contextlib.suppress(TypeError):  # keys that cannot be compared
            frame = frame.sort_index()
    return replace(estimates[0], frame=frame, error=error.reindex(frame.index))


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


def _error(partial: PartialAggregate, aggs: pd.DataFrame, key: Column, share: float) -> Any:
    """Return the standard error of a scaled total, from the variance of partitions' totals."""
    n, totals = partial.partitions, aggs[key]
    if n < 3:
        return pd.Series(np.nan, totals.index)
    variance = (aggs[_squares(key)] - totals.astype("float64") ** 2 / n) / (n - 1)
    return n / share * np.sqrt(variance.clip(lower=0) / n * (1 - share))


def _top(values: pd.Series, count: int) -> np.ndarray:
    """Return the places of the largest values, the largest first, and equal ones by their key."""
    places = np.arange(len(values))
    if values.dtype.kind in "iuf" and values.count() >= count:  # most need not be sorted
        numbered = values.reset_index(drop=True)
        places = numbered.nlargest(count, keep="all").index.to_numpy()
    with contextlib.suppress(TypeError):  # keys that cannot be compared
        places = places[values.index[places].argsort()]
    # ranks of whatever can be compared
    ranks = values.iloc[places].rank(method="min", ascending=False, na_option="bottom")
    return places[np.argsort(ranks.to_numpy(), kind="stable")[:count]]


_SIZE = delayed(entries_of, pure=True, traverse=False)
_COMBINE = delayed(combine_share, pure=True, traverse=False)
_LOOK = delayed(estimate, pure=True, traverse=False)
