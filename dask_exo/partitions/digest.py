"""Digests: numbers of 32 bits that are equal for equal values.

A digest must be cheap, since every value in the object store gets one. It is computed from the
memory of columns and arrays, and not from a pickle: pickles of equal values may differ, for
instance by whether two equal strings are one object. Memory is summed in 512 lanes, at the speed of
one read; only the sums are hashed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from itertools import chain, groupby
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.cluster.ownership import is_plain_data
from dask_exo.partitions.kernels.argsort import string_buffers, to_large_string

_LANES = 512
_WORD = 8  # bytes
_ITEMS = 1000  # longest list that is searched for arrays
_ROWS = 64  # most rows of an array that is digested row by row
_MANY = 16  # fewest neighbouring columns that are digested at once; each alone takes 0.1 ms
_TEXTS = frozenset({str, bytes, type(None)})
# times are missing, since a time zone may have any text
_PLAIN = _TEXTS | {bool, int, float, complex, Decimal, date, timedelta, UUID, type(pd.NA)}


@runtime_checkable
class Digestible(Protocol):
    """Value that lists its components."""

    def digested(self) -> Iterator[Any]:
        """Yield arrays, frames, or other digestible values."""


def digest(*values: Any) -> int:
    """Compute a number of 32 bits that is equal for equal values.

    Numbers, texts and dates among Python objects count by their value. Other objects, the items of
    long lists and dtypes of other libraries count by their type and number only. The digest of a
    value that cannot be read is 0.
    """
    crc = 0
    try:
        for buffer in chain.from_iterable(map(_buffers, values)):
            crc = zlib.crc32(buffer, crc)
    except Exception:  # noqa: BLE001  a user's subclass: not comparable, but no reason to fail
        return 0
    return crc


def _buffers(value: Any) -> Iterator[Any]:
    """Yield bytes that represent a value."""
    yield type(value).__name__.encode()
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, np.ndarray):
        yield from _of_array(value)
    elif isinstance(value, pa.Array | pa.ChunkedArray):
        yield from _of_arrow(value)
    elif isinstance(value, pd.DataFrame):
        names = list(value.columns)
        yield str(names if is_plain_data(names) else len(names)).encode()
        yield from _of_column(value.index)
        yield from _of_columns(value)
    elif isinstance(value, pd.Series):
        yield from chain(_of_column(value.index), _of_column(value))
    elif isinstance(value, pd.Index):
        yield from _of_column(value)
    elif isinstance(value, Digestible):
        yield from chain.from_iterable(map(_buffers, value.digested()))
    elif isinstance(value, list | tuple | dict):
        yield str(len(value)).encode()
        items = value.items() if isinstance(value, dict) else value
        yield from chain.from_iterable(map(_buffers, items if len(items) <= _ITEMS else ()))
    elif type(value) in _PLAIN:
        yield _text(value)


def _of_array(array: np.ndarray) -> Iterator[Any]:
    yield f"{array.dtype} {array.shape}".encode()
    if array.dtype == object:
        yield from _of_objects(array)
        return
    if array.dtype.hasobject or not array.dtype.itemsize:
        return
    if array.ndim > 1 and len(array) <= _ROWS:  # a packed block: each row is contiguous
        yield from chain.from_iterable(map(_lanes, array))
    else:
        yield from _lanes(array)


def _lanes(array: np.ndarray) -> Iterator[Any]:
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    lane_bytes = len(data) - len(data) % (_LANES * _WORD)
    if lane_bytes:
        yield data[:lane_bytes].view(np.uint64).reshape(-1, _LANES).sum(axis=0)
    yield data[lane_bytes:]


def _of_columns(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield buffers of all columns; neighbours of one dtype are one array of pandas."""
    start = 0
    for dtype, group in groupby(frame.dtypes):
        stop = start + len(list(group))
        if stop - start >= _MANY and isinstance(dtype, np.dtype) and not dtype.hasobject:
            yield from _of_array(frame.iloc[:, start:stop].to_numpy().T)
        else:
            for i in range(start, stop):
                yield from _of_column(frame.iloc[:, i])
        start = stop


def _of_column(column: Any) -> Iterator[Any]:
    """Yield buffers of a series or an index."""
    yield str(column.dtype).encode()
    if isinstance(column, pd.RangeIndex):
        yield str(column).encode()
    elif isinstance(column.dtype, pd.CategoricalDtype):
        codes = column.codes if isinstance(column, pd.Index) else column.cat.codes
        yield from _of_array(np.asarray(codes))
        yield from _of_column(column.dtype.categories)
    elif isinstance(column.dtype, pd.DatetimeTZDtype):
        yield from _of_array(column.to_numpy("M8[ns]"))
    elif isinstance(column.dtype, np.dtype):
        yield from _of_array(column.to_numpy())
    elif isinstance(column.dtype, pd.StringDtype) or hasattr(column.dtype, "numpy_dtype"):
        yield from _of_arrow(pa.array(column.array))  # nullable, or of Arrow
    else:
        yield str(len(column)).encode()


def _of_objects(array: np.ndarray) -> Iterator[Any]:
    kinds = set(map(type, array.flat))
    if kinds <= _TEXTS:
        yield pd.util.hash_array(array.ravel(), categorize=False)
    elif kinds <= _PLAIN:
        yield b"\0".join(map(_text, array.flat))


def _text(value: Any) -> bytes:
    """Return the text of a plain value, which says its type, too."""
    return repr(value).encode(errors="surrogatepass")


def _of_arrow(column: Any) -> Iterator[Any]:
    kind = column.type
    yield f"{kind} {len(column)} {column.null_count}".encode()
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        yield from _of_array(np.asarray(column.is_valid()))
    if pa.types.is_primitive(kind):
        if column.null_count:  # the memory of a null may have any content
            column = column.fill_null(pa.scalar(False if pa.types.is_boolean(kind) else 0, kind))
        yield from _of_array(column.to_numpy(zero_copy_only=False))
    elif pa.types.is_large_string(kind) or pa.types.is_string(kind) or pa.types.is_decimal(kind):
        offsets, data = string_buffers(to_large_string(column))
        yield from _of_array(offsets - offsets[0])
        yield from _of_array(data)
