"""Records of the sort benchmark, computed when needed: 100 bytes, of which 10 are the key.

A record is three columns: ``key_hi`` (uint64, the first 8 bytes of the key read as a big-endian
number), ``key_lo`` (uint16, the other 2) and ``payload`` (90 bytes). So sorting by
``[key_hi, key_lo]`` is sorting the 10 key bytes with ``memcmp``. Row ``n`` of a seed is always the
same record, however the rows are cut into partitions.

References: the sort benchmark (sortbenchmark.org); its ``gensort`` numbers records in the same
way, our keys come from splitmix64 instead of a 128-bit linear generator.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

RECORD_BYTES = 100
PAYLOAD_BYTES = 90
COLUMNS = ("key_hi", "key_lo", "payload")
KEYS = ("key_hi", "key_lo")

_GOLDEN = 0x9E3779B97F4A7C15
_CHUNK = 16384  # rows at a time: temporaries stay in the core's cache
_TILE = 4096  # rows of filler that repeat; 4096 * 90 is a multiple of 8

Words = np.ndarray[Any, np.dtype[np.uint64]]


def records(
    start: int, count: int, *, seed: int, skew: float = 0.0, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return rows ``start`` to ``start + count`` of the records of a seed, indexed by row number.

    No two records are equal: the payload starts with the row number (8 bytes, little-endian), the
    other 82 bytes are a repeating random filler.

    Without ``skew`` keys are uniform, and ``key_hi`` is unique. Else ``key_hi`` is ``2**64 * u**(1
    + skew)`` of a uniform ``u``, a power law with many low and equal keys (at skew 9 every
    hundredth ``key_hi`` is 0). The skew is rounded to sixteenths, for which multiplications and
    square roots are equal on every machine.
    """
    if not skew >= 0:
        raise ValueError(f"skew must be 0 or more, not {skew!r}")
    names = COLUMNS if columns is None else columns
    makers: dict[str, Callable[[], Any]] = {
        "key_hi": lambda: _key_hi(start, count, seed, skew),
        "key_lo": lambda: _key_lo(start, count, seed),
        "payload": lambda: _payload(start, count, seed),
    }
    data = {name: makers[name]() for name in names}
    return pd.DataFrame(data, index=pd.RangeIndex(start, start + count), copy=False)


def frame(nbytes: int, *, seed: int = 0, skew: float = 0.0, partition_bytes: int) -> Any:
    """Return a Dask dataframe of ``nbytes`` of `records`, by ``partition_bytes`` at most.

    Only the columns that a computation needs are computed.
    """
    import dask.dataframe as dd

    rows = nbytes // RECORD_BYTES
    partitions = max(-(-rows // max(partition_bytes // RECORD_BYTES, 1)), 1)
    edges = [rows * i // partitions for i in range(partitions + 1)]
    counts = [end - begin for begin, end in itertools.pairwise(edges)]
    return dd.from_map(
        records,
        edges[:-1],
        counts,
        seed=seed,
        skew=skew,
        meta=records(0, 0, seed=seed),
        label="records",
    )


def _mix(words: Words) -> None:
    """Finish splitmix64 in place: a bijection of 64-bit words."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)


def _fill_random(out: Words, start: int, seed: int) -> None:
    """Fill ``out`` with words ``start``, ``start + 1``, … of the seed's splitmix64 sequence."""
    origin = np.array([seed % 2**64], np.uint64)
    _mix(origin)
    first = np.uint64((start + int(origin[0])) % 2**64)
    out[:] = np.arange(len(out), dtype=np.uint64)
    out += first
    out *= np.uint64(_GOLDEN)
    _mix(out)


def _key_hi(start: int, count: int, seed: int, skew: float) -> Words:
    out = np.empty(count, np.uint64)
    for begin in range(0, count, _CHUNK):
        chunk = out[begin : begin + _CHUNK]
        _fill_random(chunk, start + begin, 2 * seed)
        if skew:
            uniform = (chunk >> np.uint64(11)) * 2.0**-53
            chunk[:] = (_power(uniform, round((1 + skew) * 16)) * 2.0**64).astype(np.uint64)
    return out


def _key_lo(start: int, count: int, seed: int) -> np.ndarray[Any, Any]:
    out = np.empty(count, np.uint16)
    words = np.empty(min(count, _CHUNK), np.uint64)
    for begin in range(0, count, _CHUNK):
        chunk = words[: min(_CHUNK, count - begin)]
        _fill_random(chunk, start + begin, 2 * seed + 1)
        out[begin : begin + _CHUNK] = chunk  # the low 16 bits
    return out


def _power(base: np.ndarray[Any, Any], sixteenths: int) -> np.ndarray[Any, Any]:
    """Raise to ``sixteenths / 16`` with operations that IEEE 754 rounds in one way only."""
    whole, rest = divmod(sixteenths, 16)
    result, root, square = np.ones_like(base), base, base
    for bit in (8, 4, 2, 1):
        root = np.sqrt(root)
        if rest & bit:
            result = result * root
    while whole:
        if whole & 1:
            result = result * square
        square, whole = square * square, whole >> 1
    return result


@functools.lru_cache(maxsize=4)
def _tile(seed: int) -> np.ndarray[Any, Any]:
    words = np.empty(_TILE * PAYLOAD_BYTES // 8, np.uint64)
    _fill_random(words, 0, ~seed)
    return words.astype("<u8").view(np.uint8).reshape(_TILE, PAYLOAD_BYTES)


def _payload(start: int, count: int, seed: int) -> pd.api.extensions.ExtensionArray:
    out = np.empty((count, PAYLOAD_BYTES), np.uint8)
    tile, begin = _tile(seed), 0
    while begin < count:
        first = (start + begin) % _TILE
        end = min(begin + _TILE - first, count)
        out[begin:end] = tile[first : first + end - begin]
        at = begin * PAYLOAD_BYTES
        numbers = np.ndarray((end - begin,), "<u8", out.data, at, (PAYLOAD_BYTES,))
        numbers[:] = np.arange(start + begin, start + end, dtype=np.uint64)
        begin = end
    values = pa.Array.from_buffers(pa.binary(PAYLOAD_BYTES), count, [None, pa.py_buffer(out)])
    return pd.arrays.ArrowExtensionArray(values)
