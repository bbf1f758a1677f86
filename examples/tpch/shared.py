"""What several queries need."""

from __future__ import annotations

import dask.dataframe as dd
import pandas as pd

from examples.tpch.tables import Tables


def small(frame: dd.DataFrame) -> dd.DataFrame:
    """One partition: whatever joins with it stays where it is."""
    return frame.repartition(npartitions=1)


def ordered(
    frame: dd.DataFrame,
    by: str | list[str],
    ascending: bool | list[bool] = True,
    n: int | None = None,
) -> dd.DataFrame:
    """Sort a small result, or keep the first ``n`` rows of a large one: in a tree of partitions."""
    return frame.reduction(
        first_rows, aggregate=first_rows, split_every=8, by=by, ascending=ascending, n=n
    )


def first_rows(
    part: pd.DataFrame, by: str | list[str], ascending: bool | list[bool], n: int | None
) -> pd.DataFrame:
    return part.sort_values(by, ascending=ascending, ignore_index=True)[:n]


def one_row(value: dd.Scalar, name: str) -> dd.DataFrame:
    """Make a frame of a number that is still to be computed."""
    return value.to_series().to_frame(name)


def between(dates: dd.Series, start: str, end: str) -> dd.Series:
    """Which dates are on or after the first day and before the last."""
    return (dates >= pd.Timestamp(start)) & (dates < pd.Timestamp(end))


def price(lines: dd.DataFrame) -> dd.Series:
    return lines.l_extendedprice * (1 - lines.l_discount)


def nations_of(t: Tables, region: str) -> dd.DataFrame:
    """Keys and names of the nations in a region."""
    regions = t.region[t.region.r_name == region][["r_regionkey"]]
    nations = t.nation.merge(regions, left_on="n_regionkey", right_on="r_regionkey")
    return nations[["n_nationkey", "n_name"]]


def suppliers_in(t: Tables, nation: str) -> dd.DataFrame:
    """All columns of the suppliers in a nation, who are few."""
    nations = t.nation[t.nation.n_name == nation][["n_nationkey"]]
    return small(t.supplier.merge(nations, left_on="s_nationkey", right_on="n_nationkey"))
