"""Summaries of a GPU series: reductions, quantiles and value counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu_frames import interop, reductions, sort_keys, transform
from dask_exo.partitions.gpu_frames.column import CATEGORY, NUMBERS, Column
from dask_exo.partitions.gpu_frames.index import DeviceIndex, numbered
from dask_exo.partitions.gpu_frames.reductions import counted_categories
from dask_exo.partitions.gpu_frames.series_values import ValuesOfSeries
from dask_exo.partitions.gpu_frames.sort_keys import groups


class SummaryOfSeries(ValuesOfSeries):
    """Mixin of `DeviceSeries`: summaries of all values."""

    count: Callable[..., int]
    nunique: Callable[..., int]
    max: Callable[..., Any]

    def unique(self) -> Any:
        """Return distinct values, in order of appearance."""
        found = groups([sort_keys.of(self.column)], sort=False)
        column = self.column.take(found.first)
        return self.of(column, numbered(len(column), self.module), self.name)

    def value_counts(
        self,
        normalize: bool = False,  # noqa: FBT001, FBT002
        sort: bool = True,  # noqa: FBT001, FBT002
        ascending: bool = False,  # noqa: FBT001, FBT002
        dropna: bool = True,  # noqa: FBT001, FBT002
    ) -> Any:
        """Count the rows of each value, the most frequent first."""
        if self.column.kind == CATEGORY:
            column, counted = counted_categories(self.column, dropna=dropna)
        else:
            column, counted = self._counted(dropna=dropna)
        # the dtype of counts depends on who keeps the values
        dtype = pd.Series([], dtype=self.dtype).value_counts().dtype
        index = DeviceIndex.of([column], [self.name])
        made = self.of(Column(counted, dtype), index, "count")
        made = made.sort_values(ascending=ascending) if sort else made
        return (made / int(counted.sum())).rename("proportion") if normalize else made

    def _counted(self, *, dropna: bool) -> tuple[Column, Any]:
        nulls = self.column.nulls() if dropna else None
        found = groups([sort_keys.of(self.column)], nulls, sort=False)
        return self.column.take(found.first), found.tally()

    def quantile(self, q: Any = 0.5, interpolation: Any = "linear") -> Any:
        """Compute quantiles, on the host."""
        many = not pd.api.types.is_scalar(q)
        made = reductions.quantile(self.column, np.atleast_1d(q), interpolation)
        found = pd.Series(interop.to_array(made), dtype=made.dtype)
        return pd.Series(found.array, pd.Index(q), name=self.name) if many else found.iloc[0]

    def median(self, **_: Any) -> Any:
        """Compute the median."""
        return self.quantile()

    def idxmin(self, **_: Any) -> Any:
        """Find the label of the smallest value."""
        return self._index[reductions.place(self.column)]

    def idxmax(self, **_: Any) -> Any:
        """Find the label of the largest value."""
        return self._index[reductions.place(self.column, most=True)]

    def agg(self, func: Any) -> Any:
        """Reduce values by names of aggregations."""
        if isinstance(func, str):
            return getattr(self, func)()
        return pd.Series({name: getattr(self, name)() for name in func}, name=self.name)

    aggregate = agg

    def describe(self, percentiles: Any = None, **_: Any) -> pd.Series:
        """Summarize the values, on the host."""
        shares = [0.25, 0.5, 0.75] if percentiles is None else sorted({*percentiles, 0.5})
        if self.column.kind not in NUMBERS or self.column.kind == "b":
            counts = self.value_counts().head(1).to_pandas()
            top, freq = (counts.index[0], counts.iloc[0]) if len(counts) else (np.nan, np.nan)
            found = {"count": self.count(), "unique": self.nunique(), "top": top, "freq": freq}
            return pd.Series(found, name=self.name, dtype=object)
        quantiles = self.quantile(shares).to_numpy()
        labels = [f"{100 * share:g}%" for share in shares]
        start = {name: getattr(self, name)() for name in ("count", "mean", "std", "min")}
        found = {**start, **dict(zip(labels, quantiles, strict=True)), "max": self.max()}
        return pd.Series(found, name=self.name, dtype=np.float64)

    @property
    def is_unique(self) -> bool:
        """True if no value occurs twice."""
        return reductions.distinct(self.column, dropna=False) == len(self)

    @property
    def is_monotonic_increasing(self) -> bool:
        """True if no value is smaller than the one before."""
        return transform.monotonic(self.column)

    @property
    def is_monotonic_decreasing(self) -> bool:
        """True if no value is larger than the one before."""
        return transform.monotonic(self.column, descending=True)


def _reduction(name: Any) -> Callable[..., Any]:
    reduce = reductions.REDUCTIONS[name]
    known = {"skipna", "min_count", "ddof", "dropna"}

    def run(self: SummaryOfSeries, axis: Any = None, **options: Any) -> Any:  # noqa: ARG001
        return reduce(self.column, **{k: v for k, v in options.items() if k in known})

    run.__doc__ = reduce.__doc__
    return run


for _name in reductions.REDUCTIONS:
    setattr(SummaryOfSeries, _name, _reduction(_name))
