"""Summaries of GPU frames and series: reductions, quantiles, counts and descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu_frames import interop, reductions, sort_keys, transform
from dask_exo.partitions.gpu_frames.column import CATEGORY, NUMBERS, ON_HOST, Column, unsupported
from dask_exo.partitions.gpu_frames.index import DeviceIndex, numbered
from dask_exo.partitions.gpu_frames.rows import RowsOfFrame
from dask_exo.partitions.gpu_frames.sort_keys import group_rows
from dask_exo.partitions.gpu_frames.values import Values


class SummaryOfSeries(Values):
    """Mixin of `DeviceSeries`: summaries of all values."""

    name: Any
    of: Callable[..., Any]
    count: Callable[..., int]
    nunique: Callable[..., int]
    max: Callable[..., Any]

    @property
    def column(self) -> Column:
        """The only column."""
        return self.arrays[0]

    def unique(self) -> Any:
        """Return distinct values, in order of appearance."""
        grouped = group_rows([sort_keys.encode(self.column)], sort=False)
        return self._with([self.column.take(grouped.first)], numbered(grouped.count, self.module))

    def value_counts(
        self,
        normalize: bool = False,  # noqa: FBT001, FBT002
        sort: bool = True,  # noqa: FBT001, FBT002
        ascending: bool = False,  # noqa: FBT001, FBT002
        dropna: bool = True,  # noqa: FBT001, FBT002
    ) -> Any:
        """Count the rows of each value, the most frequent first."""
        if self.column.kind == CATEGORY:
            column, sizes = reductions.counted_categories(self.column, dropna=dropna)
        else:
            nulls = self.column.nulls() if dropna else None
            grouped = group_rows([sort_keys.encode(self.column)], nulls, sort=False)
            column, sizes = self.column.take(grouped.first), grouped.tally()
        dtype = pd.Series([], dtype=self.column.dtype).value_counts().dtype
        index = DeviceIndex.of([column], [self.name])
        counts = self.of(Column(sizes, dtype), index, "count")
        counts = counts.sort_values(ascending=ascending) if sort else counts
        return (counts / int(sizes.sum())).rename("proportion") if normalize else counts

    def quantile(self, q: Any = 0.5, interpolation: Any = "linear") -> Any:
        """Compute quantiles, on the host."""
        column = reductions.quantile(self.column, np.atleast_1d(q), interpolation)
        quantiles = pd.Series(interop.to_array(column), dtype=column.dtype)
        if pd.api.types.is_scalar(q):
            return quantiles.iloc[0]
        return pd.Series(quantiles.array, pd.Index(q), name=self.name)

    def median(self, **_: Any) -> Any:
        """Compute the median."""
        return self.quantile()

    def describe(self, percentiles: Any = None, **_: Any) -> pd.Series:
        """Summarize the values, on the host."""
        shares = [0.25, 0.5, 0.75] if percentiles is None else sorted({*percentiles, 0.5})
        if self.column.kind not in NUMBERS or self.column.kind == "b":
            counts = self.value_counts().head(1).to_pandas()
            top, freq = (counts.index[0], counts.iloc[0]) if len(counts) else (np.nan, np.nan)
            summary = {"count": self.count(), "unique": self.nunique(), "top": top, "freq": freq}
            return pd.Series(summary, name=self.name, dtype=object)
        quantiles = self.quantile(shares).to_numpy()
        labels = [f"{100 * share:g}%" for share in shares]
        start = {name: getattr(self, name)() for name in ("count", "mean", "std", "min")}
        summary = {**start, **dict(zip(labels, quantiles, strict=True)), "max": self.max()}
        return pd.Series(summary, name=self.name, dtype=np.float64)

    @property
    def is_monotonic_increasing(self) -> bool:
        """True if no value is smaller than the one before."""
        return transform.monotonic(self.column)

    @property
    def is_monotonic_decreasing(self) -> bool:
        """True if no value is larger than the one before."""
        return transform.monotonic(self.column, descending=True)


class SummaryOfFrame(RowsOfFrame):
    """Mixin of `DeviceFrame`: summaries of each column, on the host."""

    items: Callable[[], Iterator[tuple[Any, Any]]]
    select_dtypes: Callable[..., Any]

    def quantile(
        self, q: Any = 0.5, *, interpolation: Any = "linear", numeric_only: Any = False, **_: Any
    ) -> Any:
        """Compute quantiles of each column."""
        frame = self.select_dtypes("number") if numeric_only else self
        quantiles = {i: s.quantile(q, interpolation) for i, (_, s) in enumerate(frame.items())}
        if pd.api.types.is_scalar(q):
            return pd.Series(quantiles, name=q).set_axis(frame.labels)
        return pd.DataFrame(quantiles).set_axis(frame.labels, axis=1)


def _of_series(name: str) -> Callable[..., Any]:
    reduce = reductions.REDUCTIONS[name]
    supported = {"skipna", "min_count", "ddof", "dropna"}

    def run(self: SummaryOfSeries, axis: Any = None, **options: Any) -> Any:  # noqa: ARG001
        return reduce(self.column, **{k: v for k, v in options.items() if k in supported})

    run.__doc__ = f"Reduce the values by {name}."
    return run


def _of_frame(name: str) -> Callable[..., Any]:
    def run(self: SummaryOfFrame, axis: Any = 0, numeric_only: Any = None, **options: Any) -> Any:
        if axis not in (0, "index", None):
            raise unsupported(f"{name}(axis=1)", f"compute it of columns by name, or {ON_HOST}")
        frame: Any = self.select_dtypes(["number", "bool"]) if numeric_only is True else self
        if name in ("any", "all") and options.get("bool_only"):
            frame = self.select_dtypes("bool")
        results = [getattr(series, name)(**options) for _, series in frame.items()]
        return pd.Series(results, index=frame.labels, dtype=_result_dtype(name, frame.arrays))

    run.__doc__ = f"Reduce each column by {name}, on the host."
    return run


def _result_dtype(name: str, columns: Sequence[Column]) -> Any:
    """Return the dtype that pandas gives a Series of results."""
    ones = {
        i: pd.Series([1] if column.kind in NUMBERS else [None], dtype=column.dtype)
        for i, column in enumerate(columns)
    }
    try:
        return getattr(pd.DataFrame(ones), name)().dtype if ones else None
    except TypeError:
        return object


for _name in reductions.REDUCTIONS:
    setattr(SummaryOfSeries, _name, _of_series(_name))
    setattr(SummaryOfFrame, _name, _of_frame(_name))
