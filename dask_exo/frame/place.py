"""The partition of each row by sorted bounds: what Dask computes, for strings without Python's.

pandas searches Arrow's strings by making a Python object of each. Here eight bytes of all of them
at a time are one integer; only rows that agree with a bound so far look at the next eight. The
order of bytes in UTF-8 is that of the characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.dask_adapter import set_partitions_pre

_WORD = 8  # bytes


def partition_numbers(
    s: pd.Series,
    divisions: pd.Series,
    ascending: bool = True,  # noqa: FBT001, FBT002  as Dask calls it
    na_position: str = "last",
) -> Any:
    """Partition of each value, exactly as Dask's ``set_partitions_pre``.

    Parameters
    ----------
    s : Series
        (n,) values.
    divisions : Series
        (R + 1,) the smallest value of each partition, and the largest of the last.
    ascending : bool
    na_position : {'first', 'last'}

    Returns
    -------
    ndarray : (n,)
        Whole numbers in ``range(R)``.

    Examples
    --------
    >>> values = pd.Series(["b", "a", "zz", None], dtype="string[pyarrow]")
    >>> partition_numbers(values, pd.Series(["a", "b", "c"])).tolist()
    [1, 0, 1, 1]
    """
    bounds = list(divisions)
    is_text = isinstance(getattr(s, "dtype", None), pd.StringDtype) and isinstance(s, pd.Series)
    if not is_text or s.dtype.storage != "pyarrow" or not all(type(b) is str for b in bounds):
        return set_partitions_pre(s, divisions, ascending, na_position)
    count = len(bounds)
    found = count_up_to(pa.array(s.array), bounds)
    numbers = found - 1 if ascending else count - found - 1
    numbers[(numbers < 0) | (numbers >= count - 1)] = count - 2 if ascending else 0
    if s.array._pa_array.null_count:
        numbers[s.isna().to_numpy()] = count - 2 if na_position == "last" else 0
    return numbers


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
    if isinstance(values, pa.ChunkedArray):
        parts = [count_up_to(chunk, bounds) for chunk in values.chunks]
        return np.concatenate([np.zeros(0, np.int64), *parts])
    values = values.cast(pa.large_string())
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[values.offset :][: len(values) + 1]
    found = np.zeros(len(values), np.int64)
    if not len(values) or not bounds:
        return found
    data = np.zeros(offsets[-1] - offsets[0] + _WORD, np.uint8)  # may be read beyond its end
    if data_buffer is not None:
        data[:-_WORD] = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    text = _Text(data, offsets[:-1] - offsets[0], np.diff(offsets))
    encoded = [bound.encode() for bound in bounds]
    _search(text, np.arange(len(values)), encoded, 0, found)
    return found


class _Text:
    """Strings as words of eight bytes, with zeros after their end."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        self._words = np.ndarray(len(data) - _WORD + 1, ">u8", data, strides=(1,))
        self._starts, self.lengths = starts, lengths

    def words(self, rows: np.ndarray, at: int) -> np.ndarray:
        """(r,) bytes ``at`` to ``at + 8`` of some rows, as integers."""
        left = self.lengths[rows] - at
        words = self._words[np.minimum(self._starts[rows] + at, len(self._words) - 1)]
        shift = (8 * (_WORD - left.clip(1, _WORD))).astype(np.uint64)
        words = words.astype(np.uint64) >> shift << shift
        words[left <= 0] = 0
        return words


def _search(
    text: _Text, rows: np.ndarray, bounds: Sequence[bytes], at: int, found: np.ndarray
) -> None:
    """Add up ``found`` of rows that agree with all the bounds in the bytes before ``at``."""
    if at >= max(map(len, bounds)):  # all is the same but zeros at the end
        found[rows] += np.searchsorted([len(b) for b in bounds], text.lengths[rows], "right")
        return
    cut = [int.from_bytes(b[at : at + _WORD].ljust(_WORD, b"\0"), "big") for b in bounds]
    mine, words = np.array(cut, np.uint64), text.words(rows, at)
    below, upto = np.searchsorted(mine, words, "left"), np.searchsorted(mine, words, "right")
    found[rows] += below
    undecided = np.flatnonzero(below < upto)
    for first in np.unique(below[undecided]):
        same = undecided[below[undecided] == first]
        last = int(upto[same[0]])
        _search(text, rows[same], bounds[first:last], at + _WORD, found)
