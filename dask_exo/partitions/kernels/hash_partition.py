"""The partition of each row by the hash of its keys, as Dask and pandas find it, but in the cache.

References: pandas, ``pandas/core/util/hashing.py`` (`hash_pandas_object`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.util import hash_array

from dask_exo.dask_adapter import AssignPartitioningIndex
from dask_exo.partitions.kernels import cardinality, siphash
from dask_exo.partitions.kernels.string_sort import is_text

FEWEST = 10_000  # strings of which a sample is taken
REPEATED = 4  # times that each string is there, on average: above it pandas is quicker
_BLOCK = 2**15  # rows at a time, so that what each step makes of them stays in the cache
_MULTIPLIER = 1000003
_START = 0x345678
_STEP = 82520
_END = 97531
_MASK = 2**64 - 1


def combine(hashes: Sequence[Any]) -> Any:
    """(n,) one hash of the hashes of several columns."""
    multiplier = _MULTIPLIER
    out = hashes[0] * np.uint64(0) + np.uint64(_START)
    for i, one in enumerate(hashes):
        out = (out ^ one) * np.uint64(multiplier)
        multiplier = (multiplier + _STEP + 2 * (len(hashes) - i)) & _MASK
    return out + np.uint64(_END)


def assign_partitions(  # noqa: PLR0917  as Dask calls it
    frame: Any,
    keys: Any,
    name: str,
    npartitions: int,
    meta: Any,
    index_shuffle: bool,  # noqa: FBT001
) -> Any:
    """A column with the partition of each row, exactly as Dask's ``AssignPartitioningIndex``.

    Parameters
    ----------
    frame : DataFrame
        (n,) rows.
    keys : list of label
        Columns to hash; what else Dask allows is left to Dask.
    name : str
        Of the new column.
    npartitions : int
    meta : DataFrame
        What Dask takes the rows to be.
    index_shuffle : bool
        Whether the keys are the index.

    Returns
    -------
    DataFrame

    Examples
    --------
    >>> rows = pd.DataFrame({"k": [1, 2, 1]})
    >>> assign_partitions(rows, ["k"], "to", 100, rows.head(0), False).to.tolist()
    [73, 62, 73]
    """
    if index_shuffle or not _known(frame, keys, meta):
        return AssignPartitioningIndex.operation(
            frame, keys, name, npartitions, meta, index_shuffle
        )
    found = np.empty(len(frame), np.min_scalar_type(-npartitions - 1))
    count = np.uint64(npartitions)
    blocks = zip(*(_hashes(frame[key]) for key in keys), strict=True)
    for i, hashes in enumerate(blocks):
        hashed = combine(hashes)
        quotient = hashed // count  # several times as fast as %
        found[i * _BLOCK : (i + 1) * _BLOCK] = hashed - quotient * count
    return frame.assign(**{name: found})


def _hashes(column: pd.Series[Any]) -> Iterator[np.ndarray]:
    """Hashes of a column, a block at a time."""
    if is_text(column.dtype):
        whole = _of_texts(column)
        for start in range(0, len(column), _BLOCK):
            yield whole[start : start + _BLOCK]
    else:  # Dask hashes all numbers as floats, since partitions may differ in what they have
        numbers = column.to_numpy()
        for start in range(0, len(column), _BLOCK):
            yield hash_array(numbers[start : start + _BLOCK].astype(np.float64))


def _of_texts(column: pd.Series[Any]) -> np.ndarray:
    """Hashes of strings; pandas is quick where many are the same."""
    rows = len(column)
    if rows < FEWEST or cardinality.guess(column) * REPEATED < rows:
        return hash_array(column.array)
    return siphash.hashes(pa.array(column.array))


def _known(frame: Any, keys: Any, meta: Any) -> bool:
    """Whether keys are columns of numbers or strings, as Dask believes."""
    return (
        isinstance(keys, list)
        and len(keys) > 0
        and len(set(keys)) == len(keys)
        and type(frame) is type(meta) is pd.DataFrame
        and frame.columns.is_unique
        and all(
            key in frame.columns
            and (_is_number(frame[key].dtype) or is_text(frame[key].dtype))
            and frame[key].dtype == meta[key].dtype
            for key in keys
        )
    )


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "iuf"
