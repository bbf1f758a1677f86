"""SipHash-2-4 of many strings at once, which is what pandas hashes strings by.

Each step is done for all strings of a block that still have eight bytes, so that no Python object
is made of any of them.

References: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF"; pandas,
``pandas/_libs/hashing.pyx``.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from pandas.util import hash_array

from dask_exo.partitions.kernels.argsort import counting
from dask_exo.partitions.kernels.string_sort import large, words

_KEY = np.frombuffer(b"0123456789123456", "<u8")  # that of pandas
_START = np.frombuffer(b"uespemosmodnarodarenegylsetybdet", "<u8")  # SipHash's, as it is stored
_NULL = np.uint64(2**64 - 1)
_WORD = 8  # bytes
_MOST = 32  # words: steps for few strings cost as much as for many
_BLOCK = 2**15  # strings at a time, so that their states stay in the cache

State = list[np.ndarray]


def hashes(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """(n,) uint64, as `pandas.util.hash_array` of the strings; nulls have one hash of their own.

    Examples
    --------
    >>> import pandas as pd
    >>> texts = pd.array(["a", "shuffle", None], dtype="str")
    >>> (hashes(pa.array(texts)) == hash_array(texts)).all().item()
    True
    """
    texts = large(values)
    read, starts, lengths = words(texts, "<u8")
    found = np.empty(len(texts), np.uint64)
    for start in range(0, len(texts), _BLOCK):
        rows = slice(start, start + _BLOCK)
        found[rows] = _hashes(read, starts[rows], lengths[rows])
    for row in np.flatnonzero(lengths >= _MOST * _WORD):
        found[row] = hash_array(np.array([texts[row].as_py()], object), categorize=False)[0]
    if texts.null_count:
        found[~np.asarray(texts.is_valid())] = _NULL
    return found


def _hashes(read: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hashes of a block; those of the longest strings mean nothing."""
    order, ends = counting(np.minimum(lengths // _WORD, _MOST), _MOST + 1)
    starts, lengths = starts[order], lengths[order]
    state = [np.full(len(order), start ^ _KEY[i % 2]) for i, start in enumerate(_START)]
    found = np.empty(len(order), np.uint64)
    for step, (low, high) in enumerate(pairwise(ends[: _MOST + 1].tolist())):
        if low == len(order):
            break
        here = read[np.minimum(starts[low:] + step * _WORD, len(read) - 1)]
        done = high - low
        mine = [one[low:high] for one in state]
        found[order[low:high]] = _ended(mine, here[:done], lengths[low:high])
        _add([one[high:] for one in state], here[done:])
    return found


def _ended(state: State, word: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Add the bytes that are left and the length; then pandas spreads the hash once more."""
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
