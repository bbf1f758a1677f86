"""Batches of rows: cut from partitions, concatenated again, and halved if a GPU is full."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from dask.array.dispatch import concatenate_lookup
from dask.dataframe.dispatch import concat
from dask.utils import is_arraylike, is_dataframe_like, is_index_like, is_series_like

from dask_exo.errors import DeviceMemoryError, OptionsError
from dask_exo.partitions.protocol import on_device

Part = TypeVar("Part")
Item = TypeVar("Item")


class RowSpan(NamedTuple, Generic[Part]):
    """Range of rows of one partition."""

    part: Part  # its number, or a function that fetches it
    start: int
    stop: int


def as_numpy(frame: pd.DataFrame) -> dict[Any, np.ndarray]:
    """Return the columns of a frame by name, as arrays."""
    return {name: frame[name].to_numpy() for name in frame.columns}


def prefetch(items: Iterator[Item], pool: Executor) -> Iterator[Item]:
    """Compute each item while the one before it is in use."""
    future = pool.submit(next, items, None)
    while (item := future.result()) is not None:
        future = pool.submit(next, items, None)
        yield item
        del item


def rebatch(parts: Iterable[pd.DataFrame], size: int) -> Iterator[pd.DataFrame]:
    """Yield the rows of partitions in batches of ``size``; the last one may be smaller.

    Batches are copies, since a view would keep its whole partition in memory.
    """
    rest: list[pd.DataFrame] = []
    count = 0
    for part in parts:
        start = 0
        if count:
            start = min(size - count, len(part))
            rest.append(part.iloc[:start])
            count += start
        if count == size:
            yield pd.concat(rest)
            rest, count = [], 0
        full = start + (len(part) - start) // size * size
        for i in range(start, full, size):
            yield part.iloc[i : i + size].copy()
        if full < len(part):
            rest.append(part.iloc[full:].copy())
            count += len(part) - full
        del part
    if rest:
        yield pd.concat(rest) if len(rest) > 1 else rest[0]


def has_rows(data: Any) -> bool:
    """Return whether data are a frame, a series, an index, or an array with a dimension."""
    if is_dataframe_like(data) or is_series_like(data) or is_index_like(data):
        return True
    return bool(is_arraylike(data) and data.ndim)


def split_rows(data: Any, rows: int | None, nbytes: int | None) -> Iterator[Any]:
    """Yield batches of at most ``rows`` rows and ``nbytes`` bytes; one batch if there are no rows.

    The cuts depend on the rows alone. A row of more than ``nbytes`` is a batch of its own.
    """
    step = max(1, len(data) if rows is None else rows)
    for start in range(0, max(1, len(data)), step):
        yield from _smaller(_rows(data, start, start + step), nbytes)


def concat_results(results: Iterable[Any], name: str) -> Any:
    """Concatenate, in order, results of a function for batches, or iterators of them.

    ``name`` is that of the function, for errors. A single value need not have rows. Raises
    `OptionsError` if there is no value, or several that have no rows.
    """
    values: list[Any] = []
    for result in results:
        values += result if isinstance(result, Iterator) else [result]
    if len(values) == 1:
        return values[0]
    if not values:
        raise OptionsError(f"{name} has yielded nothing: need at least a frame without rows")
    kinds = [type(value).__name__ for value in values if not has_rows(value)]
    if kinds:
        raise OptionsError(
            f"{name} has returned {kinds[0]} for a batch of a partition: need a frame, a series, "
            f"an index or an array, whose rows can be concatenated"
        )
    nonempty = [value for value in values if len(value)] or values[:1]
    if len(nonempty) == 1:
        return nonempty[0]
    if hasattr(nonempty[0], "iloc") or is_index_like(nonempty[0]):
        return concat(nonempty)
    return concatenate_lookup.dispatch(type(nonempty[0]))(nonempty)


def _smaller(batch: Any, nbytes: int | None) -> Iterator[Any]:
    count = 0 if nbytes is None or len(batch) <= 1 else -(-_size(batch) // nbytes)
    if count <= 1:
        yield batch
        return
    count = min(count, len(batch))
    edges = [len(batch) * i // count for i in range(count + 1)]
    for start, stop in pairwise(edges):
        yield from _smaller(_rows(batch, start, stop), nbytes)


def _rows(data: Any, start: int, stop: int) -> Any:
    if start == 0 and stop >= len(data):
        return data
    return data.iloc[start:stop] if hasattr(data, "iloc") else data[start:stop]


def _size(data: Any) -> int:
    """Return the bytes of data, without the index of a series or frame of the host."""
    if on_device(data):
        return int(data.nbytes)
    if is_dataframe_like(data):
        return int(data.memory_usage(index=False, deep=True).sum())
    if is_series_like(data):
        return int(data.memory_usage(index=False, deep=True))
    return int(data.memory_usage(deep=True) if is_index_like(data) else data.nbytes)


Result = TypeVar("Result")


_FULL = ("out_of_memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of cupy, PyTorch or RMM means that GPU memory is full.

    Examples
    --------
    >>> class OutOfMemoryError(MemoryError): ...
    >>> is_out_of_memory(OutOfMemoryError()), is_out_of_memory(MemoryError())
    (True, False)
    >>> is_out_of_memory(MemoryError("std::bad_alloc: cudaErrorMemoryAllocation"))
    True
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    # of RMM and of thrust, which sorts; of pinned memory and of a context
    is_full = isinstance(error, MemoryError) and any(text in str(error) for text in _FULL)
    is_cuda = "CUDARuntimeError" in names and "cudaErrorMemoryAllocation" in str(error)
    return "OutOfMemoryError" in names or is_full or is_cuda


def call_in_halves(call: Callable[[Any], Result], batch: Any, name: str) -> list[Result]:
    """Call a function with a batch, or with parts of it that fit into GPU memory, in order.

    ``name`` is that of the function, for errors. Raises `DeviceMemoryError` if a single row does
    not fit.

    Examples
    --------
    >>> class OutOfMemoryError(MemoryError): ...
    >>> def three_at_most(batch):
    ...     if len(batch) > 3:
    ...         raise OutOfMemoryError
    ...     return sum(batch)
    >>> call_in_halves(three_at_most, range(8), "sum")
    [1, 5, 9, 13]
    """
    try:
        return [call(batch)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if len(batch) <= 1:
            raise DeviceMemoryError(
                f"{name} needs more memory for {len(batch)} row than its GPU has ({error}): "
                f"give it a larger share of a GPU (num_gpus=, exo.gpu.per-task), or less to do"
            ) from error
        traceback.clear_frames(error.__traceback__)  # frames refer to values on the GPU
    rows = batch.iloc if hasattr(batch, "iloc") else batch
    half = len(batch) // 2
    return [*call_in_halves(call, rows[:half], name), *call_in_halves(call, rows[half:], name)]
