"""``.str``, ``.dt`` and ``.cat`` of a device series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu.dictionary import recategorize
from dask_exo.partitions.gpu.interop import map_distinct
from dask_exo.partitions.gpu_columns import calendar
from dask_exo.partitions.gpu_columns.column import CATEGORY, TEXT, Column

_STRINGS = frozenset(
    (
        *("capitalize", "casefold", "center", "contains", "count", "endswith", "find"),
        *("fullmatch", "get", "isalnum", "isalpha", "isdecimal", "isdigit", "islower"),
        *("isnumeric", "isspace", "istitle", "isupper", "len", "ljust", "lower"),
        *("lstrip", "match", "pad", "removeprefix", "removesuffix", "repeat", "replace"),
        *("rfind", "rjust", "rstrip", "slice", "slice_replace", "startswith", "strip"),
        *("swapcase", "title", "translate", "upper", "wrap", "zfill"),
    )
)
Like = Callable[[Column], Any]


class Strings:
    """``.str``: functions of pandas that map a string to a value.

    Functions run on the host, once for each distinct string.
    """

    def __init__(self, column: Column, like: Like) -> None:
        if column.kind != TEXT:
            raise AttributeError(
                f"Can only use .str accessor with string values, not {column.dtype}"
            )
        self._column, self._like = column, like

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _STRINGS:
            raise DeviceOperationError(
                f".str.{name} does not exist on a device: do it on the host after "
                f".to_backend('pandas')"
            )

        def run(*args: Any, **options: Any) -> Any:
            def change(values: pd.Series) -> Any:
                return getattr(values.str, name)(*args, **options)

            empty = change(pd.Series([None], dtype=self._column.dtype))
            # a predicate of a null is False for str, and null for string
            missing = bool(empty.iloc[0]) if empty.dtype == bool else None
            return self._like(map_distinct(self._column, change, missing))

        return run

    def __getitem__(self, place: Any) -> Any:
        return self._like(map_distinct(self._column, lambda values: values.str[place]))


class Times:
    """``.dt``: fields of times, computed on the GPU."""

    def __init__(self, column: Column, like: Like) -> None:
        if column.kind not in "mM":
            raise AttributeError(f"Can only use .dt accessor with times, not {column.dtype}")
        self._column, self._like = column, like

    def __getattr__(self, name: str) -> Any:
        column = self._column
        is_zoned = not isinstance(column.dtype, np.dtype)
        fields = calendar.DURATIONS if column.kind == "m" else calendar.FIELDS
        if name not in fields or is_zoned:
            raise DeviceOperationError(
                f".dt.{name} of {column.dtype} does not exist on a device, which has "
                f"{', '.join(sorted(fields))} (without a time zone): do it on the host after "
                f".to_backend('pandas')"
            )
        return self._like(fields[name](column))


class Categories:
    """``.cat``: the categories of a column."""

    def __init__(self, column: Column, like: Like) -> None:
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
        made = self._like(Column(self._column.values.astype(dtype), np.dtype(dtype)))
        return made.rename(None)

    def set_categories(self, new_categories: Any, ordered: bool | None = None) -> Any:  # noqa: FBT001
        """Set other categories; values that are not among them become null."""
        new_categories = getattr(new_categories, "array", new_categories)
        is_ordered = self.ordered if ordered is None else ordered
        dtype = pd.CategoricalDtype(new_categories, is_ordered)
        return self._like(recategorize(self._column, dtype))

    def as_ordered(self) -> Any:
        """Make the categories ordered."""
        return self.set_categories(self.categories, ordered=True)

    def as_unordered(self) -> Any:
        """Make the categories unordered."""
        return self.set_categories(self.categories, ordered=False)

    def add_categories(self, new_categories: Any) -> Any:
        """Add categories."""
        more = [new_categories] if isinstance(new_categories, str) else list(new_categories)
        return self.set_categories(self.categories.append(pd.Index(more)))

    def remove_unused_categories(self) -> Any:
        """Remove categories that no row has."""
        xp = self._column.xp
        used = xp.unique(self._column.values)
        from dask_exo.partitions.gpu.arrays import host

        return self.set_categories(self.categories[host(used[used >= 0])])

    def __getattr__(self, name: str) -> Any:
        raise DeviceOperationError(
            f".cat.{name} does not exist on a device: do it on the host after .to_backend('pandas')"
        )
