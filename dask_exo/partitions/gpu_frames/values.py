"""Elementwise methods of GPU frames and series, and ``.cat`` of a series."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.gpu_frames import transform
from dask_exo.partitions.gpu_frames.column import (
    CATEGORY,
    Column,
    as_nullable,
    unsupported,
)
from dask_exo.partitions.gpu_frames.elementwise import Operators
from dask_exo.partitions.gpu_frames.interop import recode
from dask_exo.partitions.gpu_frames.rows import LabelledRows


class Values(Operators, LabelledRows):
    """Mixin of `DeviceSeries` and `DeviceFrame`: elementwise methods, column by column."""

    def _flags(self, flags: Callable[[Column], Any]) -> Any:
        return self.each(lambda column: Column(flags(column), np.dtype(bool)))

    def __neg__(self) -> Any:
        return self.each(lambda column: transform.ufunc(column, "negative"))

    def __invert__(self) -> Any:
        return self.each(lambda column: transform.ufunc(column, "invert"))

    def abs(self) -> Any:
        """Return absolute values."""
        return self.each(lambda column: transform.ufunc(column, "absolute"))

    def round(self, decimals: int = 0) -> Any:
        """Round floats to some decimals."""
        return self.each(
            lambda c: replace(c, values=c.values.round(decimals)) if c.kind == "f" else c
        )

    def isin(self, values: Any) -> Any:
        """Return which values are among others."""
        return self.each(
            lambda column: Column(transform.is_in(column, values), as_nullable(bool, column.dtype))
        )

    def isna(self) -> Any:
        """Return which values are null."""
        return self._flags(lambda column: column.nulls())

    isnull = isna

    def notna(self) -> Any:
        """Return which values are not null."""
        return self._flags(lambda column: ~column.nulls())

    notnull = notna


_CATEGORIES = frozenset(
    f"{change}_categories" for change in ("add", "remove", "rename", "reorder", "set")
) | {"as_ordered", "as_unordered"}


class Categories:
    """``.cat``: the categories of a column, which functions of pandas change on the host."""

    def __init__(self, column: Column, like: Callable[[Column], Any]) -> None:
        if column.kind != CATEGORY:
            raise AttributeError(f"Can only use .cat accessor with a category, not {column.dtype}")
        self._column, self._like = column, like

    @property
    def categories(self) -> pd.Index:
        """Categories, on the host."""
        return self._column.dictionary

    @property
    def ordered(self) -> bool:
        """True if the categories are ordered."""
        return bool(self._column.dtype.ordered)

    @property
    def codes(self) -> Any:
        """Code of each row, -1 for nulls."""
        count = len(self.categories)
        dtype = next(d for d in (np.int8, np.int16, np.int32) if count <= np.iinfo(d).max)
        codes = self._like(Column(self._column.values.astype(dtype), np.dtype(dtype)))
        return codes.rename(None)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _CATEGORIES:
            raise unsupported(f".cat.{name}")

        def run(*args: Any, **options: Any) -> Any:
            args = tuple(getattr(argument, "array", argument) for argument in args)
            one_each = pd.Categorical.from_codes(
                range(len(self.categories)), dtype=self._column.dtype
            )
            changed = getattr(one_each, name)(*args, **options)
            return self._like(Column(recode(self._column, changed.codes), changed.dtype))

        return run
