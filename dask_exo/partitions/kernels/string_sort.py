"""The order of Arrow's strings, found without making Python objects of them.

Eight bytes of all of them at a time are one integer; only rows that agree so far look at the next
eight. The order of bytes in UTF-8 is that of the characters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.partitions.kernels.integer_sort import count_below, stable_argsort

_WORD = 8  # bytes


def is_arrow_string(dtype: Any) -> bool:
    """Whether a column of pandas holds strings of Arrow."""
    return isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow"


def to_large_string(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The same strings as one array with offsets of 64 bits."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.cast(pa.large_string())


def string_buffers(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where each of n large strings starts, and the bytes of all, without a copy.

    Returns
    -------
    offsets : (n + 1,)
        Counted from wherever the first one starts.
    data : ndarray
        What lies between the first offset and the last.
    """
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.zeros(1, np.int64)
    if len(values):
        offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset :][: len(values) + 1]
    return offsets, np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]


def string_words(values: pa.Array, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight bytes from each byte on of n large strings, which begin anywhere.

    Parameters
    ----------
    values : LargeStringArray
    dtype : {'>u8', '<u8'}
        Which of the bytes counts most.

    Returns
    -------
    words : ndarray
        One for each byte of all strings, and one more, of zeros. After the end of a string they
        have what follows it.
    starts, lengths : (n,)
        The first word and the bytes of each string.
    """
    offsets, used = string_buffers(values)
    data = np.zeros(len(used) + _WORD, np.uint8)  # is read beyond the end
    data[:-_WORD] = used
    read = np.ndarray(len(data) - _WORD + 1, dtype, data, strides=(1,))
    return read, offsets[:-1] - offsets[0], np.diff(offsets)


class StringWords:
    """Strings as words of eight bytes, with zeros after their end.

    Parameters
    ----------
    values : Array or ChunkedArray
        (n,) strings.

    Attributes
    ----------
    lengths : (n,)
        Bytes of each.
    """

    def __init__(self, values: pa.Array | pa.ChunkedArray) -> None:
        self._words, self._starts, self.lengths = string_words(to_large_string(values), ">u8")

    def __len__(self) -> int:
        return len(self.lengths)

    def words(self, rows: np.ndarray, at: int) -> np.ndarray:
        """(r,) bytes ``at`` to ``at + 8`` of some rows, as integers."""
        left = self.lengths[rows] - at
        words = self._words[np.minimum(self._starts[rows] + at, len(self._words) - 1)]
        shift = (8 * (_WORD - left.clip(1, _WORD))).astype(np.uint64)
        words = words.astype(np.uint64) >> shift << shift
        words[left <= 0] = 0
        return words


def count_up_to(values: pa.Array | pa.ChunkedArray, bounds: Sequence[str]) -> np.ndarray:
    """How many of the bounds are not greater than each value, as ``searchsorted(side="right")``.

    Parameters
    ----------
    values : Array
        (n,) strings. What is found for nulls has no meaning.
    bounds : sequence of str
        (k,) ascending.

    Returns
    -------
    ndarray : (n,) int64
    """
    found = np.zeros(len(values), np.int64)
    if bounds:
        text = StringWords(values)
        _search(text, np.arange(len(text)), [bound.encode() for bound in bounds], 0, found)
    return found


def _search(
    text: StringWords, rows: np.ndarray, bounds: Sequence[bytes], at: int, found: np.ndarray
) -> None:
    """Add up ``found`` of rows that agree with all the bounds in the bytes before ``at``."""
    if at >= max(map(len, bounds)):  # all is the same but zeros at the end
        found[rows] += np.searchsorted([len(b) for b in bounds], text.lengths[rows], "right")
        return
    cut = [int.from_bytes(b[at : at + _WORD].ljust(_WORD, b"\0"), "big") for b in bounds]
    mine, words = np.array(cut, np.uint64), text.words(rows, at)
    below = count_below(words, mine)
    found[rows] += below
    undecided = np.flatnonzero(mine[np.minimum(below, len(mine) - 1)] == words)
    for first in np.unique(below[undecided]):
        same = undecided[below[undecided] == first]
        last = int(np.searchsorted(mine, mine[first], "right"))
        _search(text, rows[same], bounds[first:last], at + _WORD, found)


def argsort_strings(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Row numbers in the order of the strings; equal ones keep theirs, nulls come last.

    Parameters
    ----------
    values : Array
        (n,) strings.

    Returns
    -------
    ndarray : (n,)

    Examples
    --------
    >>> argsort_strings(pa.array(["b", None, "a", "ab", "a"])).tolist()
    [2, 4, 3, 0, 1]
    """
    nulls = np.asarray(values.is_null())
    text, there = StringWords(values), np.flatnonzero(~nulls)
    found, tied = there, np.ones(max(len(there) - 1, 0), bool)
    longest = int(text.lengths.max(initial=0))
    for at in range(0, longest, _WORD):
        if not tied.any():
            break
        found, tied = _refine(found, tied, partial(text.words, at=at))
    if tied.any():  # by zero bytes at the end
        found, tied = _refine(found, tied, lambda rows: text.lengths[rows])
    return np.concatenate([found, np.flatnonzero(nulls)])


def _refine(
    found: np.ndarray, tied: np.ndarray, key: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows that tie so far by what comes next.

    Parameters
    ----------
    found : (n,)
        Rows in the order so far.
    tied : (n - 1,) bool
        Whether a row ties with the one before it.
    key : callable
        Of some rows: integers to sort them by.
    """
    places = np.flatnonzero(np.concatenate([tied, [False]]) | np.concatenate([[False], tied]))
    rows, group = found[places], np.cumsum(np.concatenate([[True], ~tied]))[places]
    codes = key(rows)
    if (codes == codes[0]).all():  # the beginning that all have in common
        return found, tied
    inner = stable_argsort(codes) if group[0] == group[-1] else np.lexsort((codes, group))
    codes, found, tied = codes[inner], found.copy(), tied.copy()
    found[places] = rows[inner]
    together = np.flatnonzero(group[1:] == group[:-1])
    tied[places[together]] = codes[together + 1] == codes[together]
    return found, tied
