"""Summaries of GPU frames and series: reductions, quantiles and distinct values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu_frames import interop, reductions, sort_keys, transform
from dask_exo.partitions.gpu_frames.column import NUMBERS, ON_HOST, Column, unsupported
from dask_exo.partitions.gpu_frames.index import numbered
from dask_exo.partitions.gpu_frames.rows import RowsOfFrame
from dask_exo.partitions.gpu_frames.sort_keys import group_rows
from dask_exo.partitions.gpu_frames.values import Values


class SummaryOfSeries(Values):
    """Mixin of `DeviceSeries`: summaries of all values."""

    name: Any

    @property
    def column(self) -> Column:
        """The only column."""
        return self.arrays[0]

    def unique(self) -> Any:
        """Return distinct values, in order of appearance."""
        grouped = group_rows([sort_keys.encode(self.column)], sort=False)
        return self._with([self.column.take(grouped.first)], numbered(grouped.count, self.module))

    def quantile(self, q: Any = 0.5, interpolation: Any = "linear") -> Any:
        """Compute quantiles, on the host."""
        column = reductions.quantile(self.column, np.atleast_1d(q), interpolation)
        quantiles = pd.Series(interop.to_array(column), dtype=column.dtype)
        if pd.api.types.is_scalar(q):
            return quantiles.iloc[0]
        return pd.Series(quantiles.array, pd.Index(q), name=self.name)

    @property
    def is_monotonic_increasing(self) -> bool:
        """True if no value is smaller than the one before."""
        return transform.monotonic(self.column)


class SummaryOfFrame(RowsOfFrame):
    """Mixin of `DeviceFrame`: summaries of each column, on the host."""

    items: Callable[[], Iterator[tuple[Any, Any]]]
    select_dtypes: Callable[..., Any]


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
