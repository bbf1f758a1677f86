"""Online aggregation: estimates of a groupby while it runs, and the exact result at its end.

Partitions are aggregated in a random order, some of them in each round. What the rounds so far
have found, scaled up by the share of partitions that they have seen, is the estimate; how much the
rounds differ from each other gives its error.

References: Exoshuffle section 3.3.3.1; Hellerstein, Haas and Wang, "Online aggregation" (SIGMOD
1997). The thesis keeps the state of each group in its reducer, since its reports are printed; here
a report is a frame of the caller's, and so is the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.base
import dask.dataframe as dd
import numpy as np
import pandas as pd

from dask_exo.errors import AggregationError, ColumnError

AGGREGATES = ("sum", "count", "mean", "min", "max", "var", "std", "nunique")
PARTS = {  # what has to be known of each round
    "mean": ("count", "sum", "var"),
    "var": ("count", "sum", "var"),
    "std": ("count", "sum", "var"),
    "nunique": (),
}
Column = tuple[Any, str]
"""A column, and what is known of it."""


@dataclass(frozen=True)
class Estimate:
    """What is known of a groupby after some rounds.

    Attributes
    ----------
    frame : DataFrame
        A row for each group seen, columns as `pandas.DataFrame.agg` has them. Sums and counts are
        scaled up; min, max and nunique are of what has been seen.
    error : DataFrame
        Standard errors, in the shape of ``frame``: of sums and counts from the third round on, of
        means always; NaN for the others.
    share : float
        Of the partitions that have been seen, up to 1.
    exact : bool
        Whether all have.
    """

    frame: pd.DataFrame
    error: pd.DataFrame
    share: float
    exact: bool


class OnlineGroupBy:
    """Groups of a Dask dataframe, to be aggregated online; see ``ddf.exo.groupby``."""

    def __init__(self, frame: dd.DataFrame, by: Any) -> None:
        self._frame, self._by = frame, list(by) if isinstance(by, list) else [by]
        _known(self._by, frame)

    def agg_online(
        self, spec: Mapping[Any, str | Sequence[str]], *, every: float = 0.05, seed: int = 0
    ) -> Iterator[Estimate]:
        """Aggregate, and tell what is known in between.

        While the caller looks at an estimate, the next round runs. A round makes its partitions
        anew: persist a frame that comes out of a shuffle first.

        Parameters
        ----------
        spec : mapping
            Column → one or several of "sum", "count", "mean", "min", "max", "var", "std" and
            "nunique".
        every : float
            Share of the partitions between two estimates.
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
            There is no such aggregate, or ``every`` is no share.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> pages = pd.DataFrame({"lang": ["de", "fr"] * 50, "views": range(100)})
        >>> ddf = dd.from_pandas(pages, npartitions=10)
        >>> *_, last = ddf.exo.groupby("lang").agg_online({"views": "sum"}, every=0.25)
        >>> last.exact, last.frame.views.to_dict()
        (True, {'de': 2450, 'fr': 2500})
        """
        asked = _asked(spec)
        _known([column for column, _ in asked], self._frame)
        if not 0 < every <= 1:
            raise AggregationError(f"every={every!r}: need a share of the partitions, up to 1")
        flat = all(isinstance(names, str) for names in spec.values())
        return self._run(asked, every, seed, flat=flat)

    def _run(
        self, asked: Sequence[Column], every: float, seed: int, *, flat: bool
    ) -> Iterator[Estimate]:
        total = self._frame.npartitions
        order = np.random.default_rng(seed).permutation(total)
        rounds = np.array_split(order, min(total, round(1 / every)))
        state = State(self._by, len(rounds))
        running = self._start(asked, rounds[0])
        seen = 0
        for k, mine in enumerate(rounds):
            found = dask.base.compute(*running)
            running = self._start(asked, rounds[k + 1]) if k + 1 < len(rounds) else ()
            seen += len(mine)
            state.add(*found)
            yield state.estimate(asked, seen / total, flat=flat)

    def _start(self, asked: Sequence[Column], mine: np.ndarray) -> tuple[Any, ...]:
        """Begin a round: frames of partial aggregates, and of distinct values."""
        wanted: dict[Any, list[str]] = {}
        for column, name in asked:
            known = wanted.setdefault(column, [])
            known += [part for part in PARTS.get(name, (name,)) if part not in known]
        distinct = [column for column, name in asked if name == "nunique"]
        columns = list(dict.fromkeys([*self._by, *wanted]))
        frame = self._frame[columns].partitions[sorted(mine.tolist())]
        parts = {column: names for column, names in wanted.items() if names}
        # groups are found also where only distinct values are asked for
        parts = parts or {distinct[0]: ["count"]}
        aggregated = frame.groupby(self._by, observed=True).agg(parts)
        pairs = [
            frame[list(dict.fromkeys([*self._by, column]))].drop_duplicates() for column in distinct
        ]
        return dask.base.persist(aggregated, *pairs)


class State:
    """What the rounds so far have found.

    Parameters
    ----------
    by : list
        Columns of the groups.
    rounds : int
        All that there will be.
    """

    def __init__(self, by: list[Any], rounds: int) -> None:
        self._by, self._rounds = by, rounds
        self._seen = 0
        self._known: Any = None
        self._squares: Any = None
        self._pairs: list[pd.DataFrame] = []

    def add(self, found: pd.DataFrame, *pairs: pd.DataFrame) -> None:
        """Add a round."""
        self._seen += 1
        spread = _spread(found)
        if self._known is None:
            self._known, self._squares, self._pairs = spread, _totals(found) ** 2, list(pairs)
            return
        self._known = _merged(self._known, spread)
        self._squares = self._squares.add(_totals(found) ** 2, fill_value=0)
        self._pairs = [
            pd.concat(both).drop_duplicates() for both in zip(self._pairs, pairs, strict=True)
        ]

    def estimate(self, asked: Sequence[Column], share: float, *, flat: bool) -> Estimate:
        """What follows for all partitions."""
        known = self._known
        exact = self._seen == self._rounds
        values: dict[Column, Any] = {}
        errors: dict[Column, Any] = {}
        pairs = iter(self._pairs)
        nothing = pd.Series(0.0 if exact else np.nan, known.index)
        for column, name in asked:
            errors[column, name] = nothing
            if name == "nunique":
                counts = next(pairs).groupby(self._by, observed=True)[column].nunique()
                values[column, name] = counts.reindex(known.index)
            elif name in ("sum", "count"):
                total = known[column, name]
                values[column, name] = total if exact else total / share
                errors[column, name] = nothing if exact else self._error(column, name, share)
            elif name in ("min", "max"):
                values[column, name] = known[column, name]
            else:
                count, mass = known[column, "count"], known[column, "var"]
                variance = (mass / (count - 1)).where(count > 1)
                if name == "mean":
                    values[column, name] = (known[column, "sum"] / count).where(count > 0)
                    off = np.sqrt(variance / count * (1 - share))
                    errors[column, name] = nothing if exact else off
                else:
                    values[column, name] = variance if name == "var" else np.sqrt(variance)
        frame, error = (pd.DataFrame(one, index=known.index) for one in (values, errors))
        if flat:
            frame.columns = error.columns = pd.Index([column for column, _ in asked])
        return Estimate(frame, error, share, exact)

    def _error(self, column: Any, name: str, share: float) -> Any:
        """Of a total that is scaled up, from how much the totals of the rounds differ."""
        n, known, squares = self._seen, self._known, self._squares
        if n < 3:
            return pd.Series(np.nan, known.index)
        variance = (squares[column, name] - known[column, name] ** 2 / n) / (n - 1)
        return self._rounds * np.sqrt(variance.clip(lower=0) / n * (1 - share))


def _totals(found: pd.DataFrame) -> pd.DataFrame:
    kept = [column for column in found.columns if column[-1] in ("sum", "count")]
    return found[kept].astype("float64")


def _spread(found: pd.DataFrame) -> pd.DataFrame:
    """With the sum of squared distances from the mean in the place of the variance."""
    found = found.copy()
    for column, name in found.columns:
        if name == "var":
            count = found[column, "count"]
            found[column, name] = (found[column, name] * (count - 1)).where(count > 1, 0.0)
    return found


def _merged(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Aggregates of the rows of both; squared distances as Chan, Golub and LeVeque add them up."""
    both = pd.concat([a, b])
    groups = both.groupby(level=list(range(both.index.nlevels)), observed=True, dropna=False)
    how = {column: _combined(column[-1]) for column in both.columns}
    together = groups.agg(how)
    for column, name in together.columns:
        if name != "var":
            continue
        (n, s), (m, t) = (
            [x[column, part].reindex(together.index).fillna(0) for part in ("count", "sum")]
            for x in (a, b)
        )
        apart = (s / n - t / m) ** 2 * n * m / (n + m)
        together[column, name] += apart.where((n > 0) & (m > 0), 0.0)
    return together


def _combined(name: str) -> str:
    return name if name in ("min", "max") else "sum"


def _asked(spec: Mapping[Any, str | Sequence[str]]) -> list[Column]:
    asked = [
        (column, name)
        for column, names in spec.items()
        for name in ([names] if isinstance(names, str) else names)
    ]
    wrong = [name for _, name in asked if name not in AGGREGATES]
    if wrong or not asked:
        what = f"{wrong[0]!r} is no aggregate" if wrong else "spec={} asks for nothing"
        raise AggregationError(f"{what}: there are {', '.join(AGGREGATES)}")
    return asked


def _known(columns: Sequence[Any], frame: dd.DataFrame) -> None:
    there = list(frame.columns)
    missing = [column for column in columns if column not in there]
    if missing:
        raise ColumnError(f"no column {missing[0]!r}: there are {there}")


__all__ = ["Estimate", "OnlineGroupBy"]
