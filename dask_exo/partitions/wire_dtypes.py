"""Encode the columns of each dtype as arrays of the wire format, and decode them.

An encoded array is either a numpy array of shape (k, n), for all k columns of a dtype, or an Arrow
array of n large strings. To support another dtype, extend `is_supported`, `encode` and `decode`
here: everything else only slices, takes and concatenates these two kinds of array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_exo.partitions.kernels.argsort import is_arrow_string, string_buffers, to_large_string

_FAST = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}  # item sizes that numpy is fast with
_OFFSET_LIMIT = 2**31  # bytes that offsets of 32 bits can address


class FixedWidth(NamedTuple):
    """A dtype of Arrow whose values have a fixed size: number, time, decimal or binary.

    Values are encoded as their raw bytes, which are moved without being interpreted.
    """

    dtype: Any
    nulls: bool  # whether the raw values have a field that marks nulls

    @classmethod
    def of(cls, column: pd.Series[Any] | pd.Index) -> tuple[FixedWidth, np.ndarray] | None:
        """Encode a column as (n,) raw values; return None if its dtype is of another kind.

        Examples
        --------
        >>> kind, raw = FixedWidth.of(pd.Series([1, None], dtype="int16[pyarrow]"))
        >>> kind.values(raw).tolist()
        [1, <NA>]
        """
        if not _is_fixed_width(column.dtype):
            return None
        values = pa.array(column.array)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        raw = _raw_values(values)
        if not values.null_count:
            return cls(column.dtype, nulls=False), raw
        valid = np.asarray(values.is_valid())
        masked = np.zeros(len(raw), [("value", raw.dtype), ("valid", bool)])
        masked["value"][valid], masked["valid"] = raw[valid], valid
        return cls(column.dtype, nulls=True), masked

    def values(self, raw: np.ndarray) -> Any:
        """Decode raw values to an extension array of pandas."""
        kind, bits = self.dtype.pyarrow_dtype, None
        if self.nulls:
            bits = pa.array(raw["valid"]).buffers()[1]
            raw = raw["value"]
        parts = [bits, pa.py_buffer(np.ascontiguousarray(raw))]
        if pa.types.is_boolean(kind):
            values = pa.Array.from_buffers(pa.uint8(), len(raw), parts).cast(kind)
        else:
            values = pa.Array.from_buffers(kind, len(raw), parts)
        return self.dtype.__from_arrow__(values)


def is_supported(dtype: Any) -> bool:
    """Return whether `encode` knows the dtype of a column."""
    return isinstance(dtype, np.dtype) or _is_string(dtype) or _is_fixed_width(dtype)


def encode(columns: Sequence[Any], order: np.ndarray) -> tuple[Any, Any]:
    """Encode columns of one dtype, with their rows in a new order.

    Only numpy dtypes may have more than one column. The second value is the argument of `decode`:
    the dtype of the columns, or their `FixedWidth`.
    """
    fixed_width = FixedWidth.of(columns[0])
    if fixed_width is not None:
        return _take([fixed_width[1]], order), fixed_width[0]
    dtype = columns[0].dtype
    if _is_string(dtype):
        texts = to_large_string(pa.array(columns[0].array))
        return pc.take(texts, pa.array(order), boundscheck=False), dtype
    return _take([column.to_numpy() for column in columns], order), dtype


def decode(array: Any, dtype: Any, limit: int = _OFFSET_LIMIT) -> tuple[Any, Any]:
    """Decode an array of `encode` to values, (k, n) of numpy or else (n,), and their dtype.

    Strings with offsets of 32 bits come in chunks of less than ``limit`` bytes.
    """
    if isinstance(dtype, FixedWidth):
        return dtype.values(array[0]), dtype.dtype
    if isinstance(array, np.ndarray):
        return array, dtype
    if isinstance(dtype, pd.ArrowDtype) and pa.types.is_string(dtype.pyarrow_dtype):
        array = pa.chunked_array(list(_small_chunks(array, limit)))
    return dtype.__from_arrow__(array), dtype


def _take(columns: Sequence[np.ndarray], order: np.ndarray) -> np.ndarray:
    result = np.empty((len(columns), len(order)), columns[0].dtype)
    for row, values in zip(result, columns, strict=True):
        np.take(values, order, out=row, mode="clip")
    return result


def _is_string(dtype: Any) -> bool:
    if isinstance(dtype, pd.ArrowDtype):
        kind = dtype.pyarrow_dtype
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    return is_arrow_string(dtype)


def _is_fixed_width(dtype: Any) -> bool:
    if not isinstance(dtype, pd.ArrowDtype):
        return False
    kind = dtype.pyarrow_dtype
    binary = pa.types.is_fixed_size_binary(kind) and kind.byte_width > 0
    return bool(binary or pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _raw_values(values: pa.Array) -> np.ndarray:
    """(n,) raw values; those of nulls are undefined."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    size = values.type.bit_width // 8
    dtype = _FAST.get(size, np.dtype((np.void, size)))
    data = values.buffers()[1]
    if data is None or not len(values):
        return np.empty(len(values), dtype)
    return np.frombuffer(data, dtype, len(values), values.offset * size)


def _small_chunks(texts: pa.Array | pa.ChunkedArray, limit: int) -> Iterator[pa.Array]:
    """Split strings into chunks of less than ``limit`` bytes; one string may be longer."""
    if isinstance(texts, pa.ChunkedArray):
        for chunk in texts.chunks or [pa.array([], texts.type)]:
            yield from _small_chunks(chunk, limit)
    elif len(texts) > 1 and len(string_buffers(texts)[1]) >= limit:
        middle = len(texts) // 2
        yield from _small_chunks(texts[:middle], limit)
        yield from _small_chunks(texts[middle:], limit)
    else:
        yield texts
