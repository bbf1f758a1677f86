"""Hash partitioning, equal to that of Dask and pandas, in blocks that fit the cache.

Strings are hashed with SipHash-2-4 as pandas does, but all strings of a block at once: no Python
object is made of any of them.

References: pandas, ``pandas/core/util/hashing.py`` (`hash_pandas_object`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.util import hash_array

from dask_exo.dask_adapter import AssignPartitioningIndex
from dask_exo.partitions.kernels import cardinality
from dask_exo.partitions.kernels.argsort import (
    counting_argsort,
    is_arrow_string,
    string_words,
    to_large_string,
)

FEWEST = 10_000  # fewest strings that are sampled
REPEATED = 4  # mean repeats of a string above which pandas is faster
BLOCK = 2**15  # rows at a time, so that intermediate arrays stay in the cache
_MULTIPLIER = 1000003
_START = 0x345678
_STEP = 82520
_END = 97531
_MASK = 2**64 - 1


def combine(hashes: Sequence[Any]) -> Any:
    """Combine the hashes of several columns to (n,) hashes of rows."""
    multiplier = _MULTIPLIER
    result = hashes[0] * np.uint64(0) + np.uint64(_START)
    for i, column in enumerate(hashes):
        result = (result ^ column) * np.uint64(multiplier)
        multiplier = (multiplier + _STEP + 2 * (len(hashes) - i)) & _MASK
    return result + np.uint64(_END)


def assign_partitions(  # noqa: PLR0917  as Dask calls it
    frame: Any,
    keys: Any,
    name: str,
    npartitions: int,
    meta: Any,
    index_shuffle: bool,  # noqa: FBT001
) -> Any:
    """Add the column ``name`` with the partition of each row, as ``AssignPartitioningIndex``.

    Dask itself handles keys other than a list of columns.
    """
    if index_shuffle or not _is_supported(frame, keys, meta):
        return AssignPartitioningIndex.operation(
            frame, keys, name, npartitions, meta, index_shuffle
        )
    numbers = hash_partitions([frame[key] for key in keys], npartitions)
    return frame.assign(**{name: numbers})


def hash_partitions(
    columns: Sequence[pd.Series[Any]],
    npartitions: int,
    *,
    block: int = BLOCK,
    fewest: int = FEWEST,
) -> np.ndarray:
    """Return the partition of each of n rows, by the hash of its columns.

    Rows are hashed ``block`` at a time; pandas hashes fewer than ``fewest`` strings.
    """
    numbers = np.empty(len(columns[0]), np.min_scalar_type(-npartitions - 1))
    count = np.uint64(npartitions)
    for i, hashes in enumerate(row_hashes(columns, block=block, fewest=fewest)):
        quotient = hashes // count  # several times as fast as %
        numbers[i * block : (i + 1) * block] = hashes - quotient * count
    return numbers


def row_hashes(
    columns: Sequence[pd.Series[Any]], *, block: int = BLOCK, fewest: int = FEWEST
) -> Iterator[np.ndarray]:
    """Yield uint64 hashes of the rows of some columns, ``block`` at a time."""
    blocks = zip(*(_hashes(column, block, fewest) for column in columns), strict=True)
    return map(combine, blocks)


def _hashes(column: pd.Series[Any], block: int, fewest: int) -> Iterator[np.ndarray]:
    """Yield hashes of a column, a block at a time."""
    if is_arrow_string(column.dtype):
        hashes = _of_texts(column, fewest)
        for start in range(0, len(column), block):
            yield hashes[start : start + block]
    else:  # Dask hashes all numbers as floats, since dtypes of partitions may differ
        numbers = column.to_numpy()
        for start in range(0, len(column), block):
            yield hash_array(numbers[start : start + block].astype(np.float64))


def _of_texts(column: pd.Series[Any], fewest: int = FEWEST) -> np.ndarray:
    """Hash strings; with pandas if most are repeated, for which it is fast."""
    rows = len(column)
    if rows < fewest or cardinality.estimate_distinct(column) * REPEATED < rows:
        return hash_array(column.array)
    return hash_strings(pa.array(column.array))


def _is_supported(frame: Any, keys: Any, meta: Any) -> bool:
    """Return whether keys are columns of numbers or strings, as in the metadata."""
    return (
        isinstance(keys, list)
        and len(keys) > 0
        and len(set(keys)) == len(keys)
        and type(frame) is type(meta) is pd.DataFrame
        and frame.columns.is_unique
        and all(
            key in frame.columns
            and (_is_number(frame[key].dtype) or is_arrow_string(frame[key].dtype))
            and frame[key].dtype == meta[key].dtype
            for key in keys
        )
    )


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "iuf"


_KEY = np.frombuffer(b"0123456789123456", "<u8")  # that of pandas
_SIPHASH_START = np.frombuffer(b"uespemosmodnarodarenegylsetybdet", "<u8")
_NULL = np.uint64(2**64 - 1)
_WORD = 8  # bytes
_MOST = 32  # words: steps for few strings cost as much as for many

State = list[np.ndarray]


def hash_strings(values: pa.Array | pa.ChunkedArray, *, block: int = BLOCK) -> np.ndarray:
    """Compute (n,) uint64 hashes of strings, ``block`` at a time, as `pandas.util.hash_array`."""
    texts = to_large_string(values)
    words, starts, lengths = string_words(texts, "<u8")
    hashes = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), block):
        rows = slice(start, start + block)
        hashes[rows] = _hash_block(words, starts[rows], lengths[rows])
    for row in np.flatnonzero(lengths >= _MOST * _WORD):
        hashes[row] = hash_array(np.array([texts[row].as_py()], object), categorize=False)[0]
    if texts.null_count:
        hashes[~np.asarray(texts.is_valid())] = _NULL
    return hashes


def _hash_block(words: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hash a block; hashes of strings of `_MOST` words or more are undefined."""
    order, ends = counting_argsort(np.minimum(lengths // _WORD, _MOST), _MOST + 1)
    starts, lengths = starts[order], lengths[order]
    state = [np.full(len(order), start ^ _KEY[i % 2]) for i, start in enumerate(_SIPHASH_START)]
    hashes = np.empty(len(order), np.uint64)
    for step, (low, high) in enumerate(pairwise(ends[: _MOST + 1].tolist())):
        if low == len(order):
            break
        block_words = words[np.minimum(starts[low:] + step * _WORD, len(words) - 1)]
        count = high - low
        finished = [lane[low:high] for lane in state]
        hashes[order[low:high]] = _finish(finished, block_words[:count], lengths[low:high])
        _add([lane[high:] for lane in state], block_words[count:])
    return hashes


def _finish(state: State, word: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Finish SipHash with the remaining bytes and the length; then mix as pandas does."""
    bits = (lengths % _WORD * 8).astype(np.uint64)
    rest = word & ((np.uint64(1) << bits) - np.uint64(1))
    _add(state, rest | (lengths.astype(np.uint64) << np.uint64(56)))
    state[2] ^= np.uint64(0xFF)
    for _ in range(4):
        _round(state)
    return hash_array(state[0] ^ state[1] ^ state[2] ^ state[3])


def _add(state: State, word: np.ndarray) -> None:
    state[3] ^= word
    _round(state)
    _round(state)
    state[0] ^= word


def _round(state: State) -> None:
    a, b, c, d = state
    a += b
    _rotate(b, 13)
    b ^= a
    _rotate(a, 32)
    c += d
    _rotate(d, 16)
    d ^= c
    a += d
    _rotate(d, 21)
    d ^= a
    c += b
    _rotate(b, 17)
    b ^= c
    _rotate(c, 32)


def _rotate(values: np.ndarray, bits: int) -> None:
    high = values >> np.uint64(64 - bits)
    values <<= np.uint64(bits)
    values |= high
