"""Rows that come as sorted runs, put in order without a second copy of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dask_exo.partitions.kernels import multikey_order
from dask_exo.partitions.kernels.kway_merge import merge_runs
from dask_exo.partitions.kernels.sort_keys import Key, encode
from dask_exo.partitions.wire_format import Columns

ROWS = 2**16  # whose keys are looked at together, to find where runs end


def in_order(tables: Sequence[Columns], keys: Sequence[Key], limit: int) -> Columns:
    """Merge rows of which each table has some sorted runs, one after the other.

    Besides what it returns it holds chunks of ``limit`` bytes, and twice as much for a moment.

    Parameters
    ----------
    tables : sequence of Columns
        (k,) that are `alike`, with n rows in all.
    keys : sequence of Key
    limit : int
        See `merge_runs`.

    Returns
    -------
    Columns
        (n,) rows; equal ones are in the order of the tables. Strings are in chunks.
    """
    runs = [run for table in tables for run in ascending(table, keys)]

    def positions(rows: Columns) -> np.ndarray:
        return multikey_order.order(multikey_order.columns(rows.frame(), keys), keys)

    return _filled(tables, merge_runs(runs, positions, limit))


def ascending(table: Columns, keys: Sequence[Key]) -> list[Columns]:
    """Cut rows into sorted runs, as few as possible."""
    cuts = [0]
    for start in range(0, table.length, ROWS):
        first = max(start - 1, 0)
        part = table.part(first, min(start + ROWS, table.length)).frame()
        codes = encode(multikey_order.columns(part, keys), keys)
        cuts += (np.flatnonzero(codes[1:] < codes[:-1]) + first + 1).tolist()
    return [table.part(a, b) for a, b in pairwise([*cuts, table.length]) if a < b]


def _filled(tables: Sequence[Columns], chunks: Iterable[Columns]) -> Columns:
    """Put chunks below each other as they come."""
    length = sum(table.length for table in tables)
    arrays: list[Any] = [
        np.empty((len(array), length), array.dtype) if isinstance(array, np.ndarray) else []
        for array in tables[0].arrays
    ]
    at = 0
    for chunk in chunks:
        for whole, some in zip(arrays, chunk.arrays, strict=True):
            if isinstance(whole, np.ndarray):
                whole[:, at : at + chunk.length] = some
            else:
                whole.append(some)
        at += chunk.length
    together = [
        whole if isinstance(whole, np.ndarray) else pa.chunked_array(whole, like.type)
        for whole, like in zip(arrays, tables[0].arrays, strict=True)
    ]
    return Columns(length, together, tables[0].schema)
