"""Choose dictionary encoding for Parquet columns by a sample of their rows.

The Parquet writer begins every column with a dictionary, and gives up once that has outgrown a
page. For columns of mostly distinct values this is most of its work.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_exo.dask_adapter import ArrowDatasetEngine
from dask_exo.partitions.kernels import cardinality

FEWEST = 2**16  # fewest rows for which a sample pays
ROW_GROUP = 2**20  # most rows of a dictionary of pyarrow
PAGE = 2**20  # bytes at which the writer gives up a dictionary


class ParquetEngine(ArrowDatasetEngine):
    """Engine of Dask that chooses the columns with dictionaries for each partition."""

    @classmethod
    def write_partition(cls, df: pd.DataFrame, *args: Any, **kwargs: Any) -> Any:
        """Write a partition as Dask does; encodings that the caller sets take precedence."""
        overrides = kwargs.keys() & {"use_dictionary", "column_encoding"}
        if not overrides and isinstance(df, pd.DataFrame):
            group = kwargs.get("row_group_size") or ROW_GROUP
            page = kwargs.get("dictionary_pagesize_limit") or PAGE
            # the writer raises these
            with contextlib.suppress(pa.ArrowException, TypeError, ValueError):
                kwargs["use_dictionary"] = dictionaries(
                    len(df), lambda at: _rows(df, at), group=group, page=page
                )
        return super().write_partition(df, *args, **kwargs)


def _rows(frame: pd.DataFrame, at: np.ndarray) -> pa.Table:
    return pa.Table.from_pandas(frame.take(at), preserve_index=False, nthreads=1)


def dictionaries(
    rows: int, take: Callable[[np.ndarray], pa.Table], *, group: int = ROW_GROUP, page: int = PAGE
) -> list[str] | bool:
    """Choose the columns that a dictionary makes smaller; True for all if that is not known.

    ``take`` returns the rows at some positions, of ``rows`` in all. A row group has at most
    ``group`` rows, and dictionaries of ``page`` bytes.
    """
    rows = min(rows, group)
    if rows < FEWEST:
        return True
    spread, runs = take(cardinality.spread_rows(rows)), take(cardinality.neighbour_rows(rows))
    if any(pa.types.is_nested(kind) for kind in spread.schema.types):
        return True
    names = spread.column_names
    return [name for name in names if _smaller(spread[name], runs[name], rows, page)]


def _smaller(spread: pa.ChunkedArray, runs: pa.ChunkedArray, rows: int, page: int) -> bool:
    """Return whether a dictionary and its indices take fewer bytes than the values."""
    kind = spread.type
    if pa.types.is_dictionary(kind) or pa.types.is_null(kind):
        return True
    repeats = (len(part) - pc.count_distinct(part, mode="all").as_py() for part in (spread, runs))
    values = max(cardinality.distinct_of_repeats(rows, *repeats), 1)
    width = spread.nbytes / len(spread)
    index_bytes = rows * math.ceil(math.log2(values)) / 8
    return values * width < page and values * width + index_bytes < rows * width
