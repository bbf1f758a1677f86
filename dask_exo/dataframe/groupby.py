"""Skew-resistant aggregates of groups.

Dask computes aggregates that combine from partitions. The others avoid collecting a group in one
partition: nunique shuffles by key and value; medians and quantiles sort by key and value. Each
result has a row for each group; the results are joined.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd

from dask_exo import validation
from dask_exo.dask_adapter import new_collection
from dask_exo.dataframe.online import OnlineGroupBy
from dask_exo.errors import AggregationError
from dask_exo.partitions.kernels.skew import VALUE
from dask_exo.planning.skew_resistant import GroupRanks

REDUCED = ("count", "first", "last", "max", "mean", "min", "prod", "size", "std", "sum", "var")
RANKS = {"median": None, "quantile": 0.5}
AGGREGATES = (*REDUCED, "nunique", *RANKS)
UNFIT = (TypeError, ValueError, NotImplementedError)  # of pandas, for unsuitable dtypes


class GroupBy(OnlineGroupBy):
    """Groups of a Dask dataframe; see ``ddf.exo.groupby``."""

    def agg(
        self, spec: Mapping[Any, str | Sequence[str]], *, npartitions: int | None = None
    ) -> dd.DataFrame:
        """Aggregate; a group with most of the rows does not make one partition larger.

        Returns the rows of ``df.groupby(by, observed=True).agg(spec)``, lazily. Custom functions
        need all rows of a group in one partition: use Dask's ``ddf.groupby(by).apply``.

        Parameters
        ----------
        spec : mapping
            Column → one or several of "count", "first", "last", "max", "mean", "min", "prod",
            "size", "std", "sum", "var", "nunique", "median" and "quantile" (of 0.5).
        npartitions : int, optional
            Number of output partitions; by default that of the input.

        Returns
        -------
        dask.dataframe.DataFrame
            A row for each group, in no order, divisions unknown. Columns are those of pandas.

        Raises
        ------
        ColumnError
            There is no such column.
        AggregationError
            The aggregate is unknown, undefined for the column, or requested twice.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> views = pd.DataFrame({"page": list("aaaaab"), "user": [1, 2, 1, 2, 3, 1]})
        >>> ddf = dd.from_pandas(views, npartitions=3)
        >>> ddf.exo.groupby("page").agg({"user": ["nunique", "median"]}).compute().sort_index()
                user
             nunique median
        page
        a          3    2.0
        b          1    1.0
        """
        requests = validation.aggregates(spec, AGGREGATES)
        validation.check_columns([column for column, _ in requests], self._frame, "to aggregate")
        try:
            meta = self._sample().agg(spec)
        except UNFIT as error:
            columns, names = zip(*requests, strict=True)
            raise _unfit(columns, names, error) from error
        shares = [(column, RANKS.get(name, name)) for column, name in requests]
        result = self._aggregate(shares, npartitions)
        return result.map_partitions(_indexed, self._by, meta.columns, meta=meta.iloc[:0])

    def quantile(
        self, columns: Any, q: float | Sequence[float] = 0.5, *, npartitions: int | None = None
    ) -> dd.DataFrame:
        """Compute exact quantiles, linearly interpolated.

        Returns the rows of ``df.groupby(by, observed=True)[[*columns]].quantile(q)``, lazily.

        Parameters
        ----------
        columns : label or list of labels
            Columns of numbers or times.
        q : float or list of float
            From 0 to 1.
        npartitions : int, optional
            Number of output partitions; by default that of the input.

        Returns
        -------
        dask.dataframe.DataFrame
            A row for each group, or one for each of several ``q``, with a further index level.
            Groups are in no order, divisions unknown.

        Raises
        ------
        ColumnError
            There is no such column.
        AggregationError
            The values have no quantiles, or ``q`` is not from 0 to 1.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> times = pd.DataFrame({"page": list("aaaaab"), "seconds": [5, 1, 2, 3, 4, 7]})
        >>> ddf = dd.from_pandas(times, npartitions=3)
        >>> ddf.exo.groupby("page").quantile("seconds", [0.5, 0.9]).compute().sort_index()
                  seconds
        page
        a    0.5      3.0
             0.9      4.6
        b    0.5      7.0
             0.9      7.0
        """
        names = list(columns) if isinstance(columns, list) else [columns]
        several = isinstance(q, Sequence)
        shares = [float(share) for share in q] if isinstance(q, Sequence) else [float(q)]
        if not names or not shares or not all(0 <= share <= 1 for share in shares):
            raise AggregationError(
                f"columns={columns!r}, q={q!r}: need at least one column, and shares from 0 to 1"
            )
        validation.check_columns(names, self._frame, "to aggregate")
        sample = self._sample()
        try:
            meta = sample[names].quantile(shares if several else shares[0])
        except UNFIT as error:
            raise _unfit(names, "quantile", error) from error
        requests = [(column, share) for share in shares for column in names]
        result = self._aggregate(requests, npartitions)
        return result.map_partitions(
            _quantiles, self._by, names, shares if several else None, meta=meta.iloc[:0]
        )

    def _sample(self) -> Any:
        """Return the groups of a few example rows."""
        return self._frame._meta_nonempty.groupby(self._by, observed=True)

    def _aggregate(
        self, requests: Sequence[tuple[Any, Any]], npartitions: int | None
    ) -> dd.DataFrame:
        """Return a row for each group: its keys, and a column for each requested aggregate."""
        if npartitions is not None:
            validation.number_from(1, "npartitions", npartitions, AggregationError)
        npartitions = npartitions or self._frame.npartitions
        columns = list(dict.fromkeys(column for column, _ in requests))
        selected = self._frame[list(dict.fromkeys([*self._by, *columns]))]
        plain = selected.map_partitions(
            _plain, self._by, columns, meta=_plain(selected._meta, self._by, columns)
        )
        keys = _keys(self._by)
        results = []
        reduced = {}
        for i, column in enumerate(columns):
            wanted = {f"a{n}": agg for n, (name, agg) in enumerate(requests) if name == column}
            values = plain[[*keys, f"v{i}"]].rename(columns={f"v{i}": VALUE})
            ranks = {n: agg for n, agg in wanted.items() if not isinstance(agg, str)}
            if ranks:
                results.append(_ranks(values, keys, ranks, npartitions, column))
            results += [
                _distinct(values, keys, name, npartitions)
                for name, agg in wanted.items()
                if agg == "nunique"
            ]
            reduced.update({(f"v{i}", agg): n for n, agg in wanted.items() if agg in REDUCED})
        if reduced:
            results.insert(0, _reduced(plain, keys, reduced, npartitions))
        return functools.reduce(lambda left, right: left.merge(right, on=keys), results)


def _reduced(
    plain: dd.DataFrame, keys: list[str], names: Mapping[tuple[str, str], str], npartitions: int
) -> dd.DataFrame:
    """Compute the aggregates that Dask combines from partitions."""
    spec: dict[str, list[str]] = {}
    for column, agg in names:
        spec.setdefault(column, []).append(agg)
    frame = plain.groupby(keys, observed=True).agg(spec, split_out=npartitions)
    labels = [names[column, agg] for column, aggs in spec.items() for agg in aggs]
    return _flat(frame, keys, labels)


def _distinct(values: dd.DataFrame, keys: list[str], name: str, npartitions: int) -> dd.DataFrame:
    """Count distinct values, after a shuffle by the hash of key and value."""
    pairs = values.drop_duplicates(split_out=npartitions)
    counts = pairs.groupby(keys, observed=True).agg({VALUE: ["count"]}, split_out=npartitions)
    return _flat(counts, keys, [name])


def _ranks(
    values: dd.DataFrame,
    keys: list[str],
    requests: Mapping[str, float | None],
    npartitions: int,
    column: Any,
) -> dd.DataFrame:
    """Compute medians and quantiles, in rows sorted by key and value."""
    ordered = values.exo.sort_values([*keys, VALUE], npartitions=npartitions, ignore_index=True)
    return new_collection(
        GroupRanks(ordered, keys, list(requests.values()), list(requests), str(column))
    )


def _flat(frame: dd.DataFrame, keys: list[str], labels: list[str]) -> dd.DataFrame:
    return frame.map_partitions(_reset, keys, labels, meta=_reset(frame._meta, keys, labels))


def _reset(part: Any, keys: list[str], labels: list[str]) -> Any:
    groups = part.index.to_frame(index=False).set_axis(keys, axis=1)
    values = part.set_axis(labels, axis=1).reset_index(drop=True)
    return pd.concat([groups, values], axis=1)


def _keys(by: Sequence[Any]) -> list[str]:
    return [f"k{i}" for i in range(len(by))]


def _plain(part: Any, by: list[Any], columns: list[Any]) -> Any:
    """Return keys and values under internal labels, without rows that have a null key."""
    labels = [*_keys(by), *(f"v{i}" for i in range(len(columns)))]
    plain = part[[*by, *columns]].set_axis(labels, axis=1)
    return plain[plain[_keys(by)].notna().all(axis=1)]


def _indexed(part: Any, by: list[Any], columns: Any, start: int = 0) -> Any:
    """Return values from number ``start`` on, under the user's labels, indexed by the keys."""
    keys = part[_keys(by)]
    values = part[[f"a{start + i}" for i in range(len(columns))]].set_axis(columns, axis=1)
    if len(by) == 1:
        return values.set_axis(pd.Index(keys["k0"], name=by[0]))
    return values.set_axis(pd.MultiIndex.from_frame(keys, names=by))


def _quantiles(part: Any, by: list[Any], columns: list[Any], shares: list[float] | None) -> Any:
    """Return the quantiles of each group, one below the other."""
    count = 1 if shares is None else len(shares)
    frames = [_indexed(part, by, columns, i * len(columns)) for i in range(count)]
    if shares is None:
        return frames[0]
    order = np.arange(count * len(part)).reshape(count, len(part)).T.ravel()
    stacked = pd.concat(frames, keys=shares, names=[None]).take(order)
    return stacked.reorder_levels([*range(1, len(by) + 1), 0])


def _unfit(columns: Any, names: Any, error: Exception) -> AggregationError:
    aggregates = names if isinstance(names, str) else ", ".join(dict.fromkeys(names))
    return AggregationError(
        f"{aggregates} of {', '.join(map(repr, dict.fromkeys(columns)))}: {error}. See the dtypes "
        f"of the frame: medians and quantiles need numbers or times"
    )
