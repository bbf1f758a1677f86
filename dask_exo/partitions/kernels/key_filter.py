"""Key filter: a Bloom filter of the keys of one side of a join, for the rows of the other side.

Rows that find no partner need not be sent. A filter has one bit for each hash value, so that a
few rows without a partner pass; none with a partner is lost.

References: Bloom, "Space/time trade-offs in hash coding with allowable errors" (1970).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dask_exo.partitions.kernels.argsort import is_arrow_string
from dask_exo.partitions.kernels.hash_partition import BLOCK, row_hashes

BITS_PER_ROW = 16  # one row in sixteen without a partner passes
FEWEST_BITS, MOST_BITS = 16, 27  # binary logarithms; the largest filter has 16 MB
MOST_ROWS = 2**MOST_BITS // 4  # one in five passes then


def can_filter(left: Any, right: Any) -> bool:
    """Return whether equal values of two dtypes have equal hashes: integers, and strings.

    Floats do not: 0.0 equals -0.0.
    """
    return all(map(_is_integer, (left, right))) or all(map(is_arrow_string, (left, right)))


def _is_integer(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "iu"


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """A Bloom filter of hashes of rows, of which it reads the first bits.

    Examples
    --------
    >>> keys = pd.DataFrame({"a": [1, 2, 3]})
    >>> KeyFilter.of([keys], ["a"], rows=3).contains(pd.DataFrame({"b": [2, 70]}), ["b"])
    array([ True, False])
    """

    bits: np.ndarray | None  # (2**k / 8,) uint8; None lets all rows pass

    @classmethod
    def of(cls, frames: Iterable[Any], columns: Sequence[Any], rows: int) -> KeyFilter:
        """Return a filter of the keys in some frames, of a size for so many rows in all."""
        exponent = (max(rows, 1) * BITS_PER_ROW - 1).bit_length()
        exponent = min(max(exponent, FEWEST_BITS), MOST_BITS)
        seen = np.zeros(2**exponent, bool)
        shift = np.uint64(64 - exponent)
        for frame in frames:
            if not _has_keys(frame, columns):
                return cls(None)
            for hashes in row_hashes([frame[column] for column in columns]):
                seen[hashes >> shift] = True
        return cls(np.packbits(seen, bitorder="little"))

    def __or__(self, other: KeyFilter) -> KeyFilter:
        """Return a filter of the keys of both, which have the same size."""
        known = self.bits is not None and other.bits is not None
        return KeyFilter(self.bits | other.bits if known else None)  # type: ignore[operator]

    def contains(self, frame: Any, columns: Sequence[Any]) -> np.ndarray:
        """Return (n,) whether rows may have a partner."""
        if self.bits is None or not _has_keys(frame, columns):
            return np.ones(len(frame), bool)
        found = np.empty(len(frame), bool)
        shift = np.uint64(64 - 3 - (len(self.bits).bit_length() - 1))
        three, seven = np.uint64(3), np.uint64(7)
        for i, hashes in enumerate(row_hashes([frame[column] for column in columns])):
            places = hashes >> shift
            parts = self.bits[places >> three] >> (places & seven).astype(np.uint8)
            found[i * BLOCK : (i + 1) * BLOCK] = parts & np.uint8(1)
        return found


def _has_keys(frame: Any, columns: Sequence[Any]) -> bool:
    """Return whether the keys of a partition have dtypes that `can_filter` accepts."""
    return type(frame) is pd.DataFrame and all(
        can_filter(frame[column].dtype, frame[column].dtype) for column in columns
    )


def union(*filters: KeyFilter) -> KeyFilter:
    """Return a filter of the keys of all."""
    return functools.reduce(KeyFilter.__or__, filters)
