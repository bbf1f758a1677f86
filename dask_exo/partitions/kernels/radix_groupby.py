"""Radix groupby: aggregate rows in clusters whose groups fit the cache.

A hash table of a million groups does not fit the cache, so each row waits for memory. Rows are
first clustered by some bits of the hash of their keys. All rows of a key are in one cluster, in
their order.

References: S. Manegold, P. Boncz, M. Kersten, "Optimizing Main-Memory Join on Modern Hardware"
(radix-cluster); J. Cieslewicz, K. Ross, "Adaptive Aggregation on Chip Multiprocessors".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from dask.utils import itemgetter, methodcaller

from dask_exo.dask_adapter import (
    apply_func_to_column,
    concat_partitions,
    finalize_mean,
    finalize_std,
    finalize_var,
)
from dask_exo.partitions.kernels import cardinality
from dask_exo.partitions.kernels.integer_sort import counting_argsort

CACHED = 2**15  # groups whose table and sums fit the cache of a core
FEWEST = 2**18  # fewest rows for which clusters pay
_MOST = 2**8  # most clusters that are written at a time
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: Fibonacci hashing
_METHODS = frozenset({"sum", "min", "max", "prod", "count", "first", "last", "size"})
_FINALIZERS = frozenset({finalize_mean, finalize_std, finalize_var})


def aggregate(*inputs: Any, whole: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Aggregate a partition by its index, as Dask does after a shuffle; in clusters if that pays.

    Parameters
    ----------
    *inputs : DataFrame or Series
        One frame: (n,) rows with their keys as index.
    whole : callable
        Function of Dask: ``whole([frame], **options)`` aggregates.
    options : dict

    Returns
    -------
    DataFrame or Series
        One row for each group, by cluster, and in the order of their first rows.
    """
    frame = inputs[0]
    if len(inputs) == 1 and _plain(frame) and _by_group(options):
        groups = cardinality.estimate_distinct(frame.index)
        if groups > 2 * CACHED:
            count = min(2 ** math.ceil(math.log2(groups / CACHED)), _MOST)
            groups_of_clusters = [whole([rows], **options) for rows in radix_clusters(frame, count)]
            return concat_partitions(groups_of_clusters, ignore_index=False)
    return whole(list(inputs), **options)


def radix_clusters(frame: Any, count: int) -> Iterator[Any]:
    """Split rows by a hash of their index.

    Parameters
    ----------
    frame : DataFrame or Series
        (n,) rows of numbers and times, with whole numbers as index.
    count : int
        A power of two, at most 256.

    Yields
    ------
    DataFrame or Series
        All rows of some keys, in their order; empty clusters are skipped.

    Examples
    --------
    >>> rows = pd.Series(range(6), index=[7, 8, 7, 9, 8, 7])
    >>> sorted(sorted(set(one.index)) for one in radix_clusters(rows, 256))
    [[7], [8], [9]]
    """
    keys = frame.index.to_numpy().astype(np.int64, copy=False).view(np.uint64)
    hashed = keys * _GOLDEN >> np.uint64(65 - count.bit_length())
    order, offsets = counting_argsort(hashed, count)
    rows = frame.take(order)
    for low, high in pairwise(offsets):
        if low < high:
            yield rows.iloc[low:high]


def _plain(frame: Any) -> bool:
    """Return whether there are many rows, of numbers and times only."""
    if type(frame) not in (pd.Series, pd.DataFrame) or len(frame) < FEWEST:
        return False
    dtypes = [frame.dtype] if frame.ndim == 1 else list(frame.dtypes)
    key = frame.index.dtype
    return (
        type(frame.index) is pd.Index
        and isinstance(key, np.dtype)
        and key.kind in "iu"
        and all(isinstance(dtype, np.dtype) and dtype.kind in "iufbmM" for dtype in dtypes)
        and not frame.attrs
    )


def _by_group(options: dict[str, Any]) -> bool:
    """Return whether the result of each group depends on its own rows only."""
    if options.get("sort") or options.get("level", options.get("levels")) not in (0, [0]):
        return False
    if "aggregate_funcs" not in options:
        return _known(options.get("aggfunc"))
    return all(
        function is apply_func_to_column and _known(arguments["func"])
        for _, function, arguments in options["aggregate_funcs"]
    ) and all(
        isinstance(function, itemgetter) or function in _FINALIZERS
        for _, function, _ in options["finalize_funcs"]
    )


def _known(function: Any) -> bool:
    return isinstance(function, methodcaller) and function.method in _METHODS
