"""Arrow's columns of values that all take the same bytes, as arrays of numpy and back.

Numbers, times, decimals and binary values of a fixed size. What the bytes mean is of no concern to
rows on their way: they are taken, sliced and put together as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

_QUICK = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}  # sizes that numpy is fast with


class Fixed(NamedTuple):
    """A column of pandas on Arrow, as an array.

    Attributes
    ----------
    dtype : ArrowDtype
    nulls : bool
        Whether each value says that it is one.
    """

    dtype: Any
    nulls: bool

    @classmethod
    def of(cls, column: pd.Series[Any] | pd.Index) -> tuple[Fixed, np.ndarray] | None:
        """The column as (n,) values; None for one of another kind.

        Examples
        --------
        >>> kind, raw = Fixed.of(pd.Series([1, None], dtype="int16[pyarrow]"))
        >>> kind.values(raw).tolist()
        [1, <NA>]
        """
        if not is_fixed(column.dtype):
            return None
        values = pa.array(column.array)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        raw = _bytes(values)
        if not values.null_count:
            return cls(column.dtype, nulls=False), raw
        valid = np.asarray(values.is_valid())
        marked = np.zeros(len(raw), [("value", raw.dtype), ("valid", bool)])
        marked["value"][valid], marked["valid"] = raw[valid], valid
        return cls(column.dtype, nulls=True), marked

    def values(self, raw: np.ndarray) -> Any:
        """The column's values, for pandas."""
        kind, bits = self.dtype.pyarrow_dtype, None
        if self.nulls:
            bits = pa.array(raw["valid"]).buffers()[1]
            raw = raw["value"]
        buffers = [bits, pa.py_buffer(np.ascontiguousarray(raw))]
        if pa.types.is_boolean(kind):
            values = pa.Array.from_buffers(pa.uint8(), len(raw), buffers).cast(kind)
        else:
            values = pa.Array.from_buffers(kind, len(raw), buffers)
        return self.dtype.__from_arrow__(values)


def is_fixed(dtype: Any) -> bool:
    """Whether values of a dtype of pandas are Arrow's, and all take the same bytes."""
    if not isinstance(dtype, pd.ArrowDtype):
        return False
    kind = dtype.pyarrow_dtype
    binary = pa.types.is_fixed_size_binary(kind) and kind.byte_width > 0
    return bool(binary or pa.types.is_primitive(kind) or pa.types.is_decimal(kind))


def _bytes(values: pa.Array) -> np.ndarray:
    """(n,) values; those of nulls are whatever happens to be there."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    size = values.type.bit_width // 8
    dtype = _QUICK.get(size, np.dtype((np.void, size)))
    data = values.buffers()[1]
    if data is None or not len(values):
        return np.empty(len(values), dtype)
    return np.frombuffer(data, dtype, len(values), values.offset * size)
