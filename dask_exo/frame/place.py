"""Kernels of Dask and pandas around a range shuffle, with the same results, faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_exo.dask_adapter import percentiles_summary, set_partitions_pre
from dask_exo.frame import text
from dask_exo.frame.search import count_below


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
    found = _up_to(s, divisions) if isinstance(s, pd.Series) else None
    if found is None:
        return set_partitions_pre(s, divisions, ascending, na_position)
    count = len(divisions)
    numbers = found - 1 if ascending else count - found - 1
    numbers[(numbers < 0) | (numbers >= count - 1)] = count - 2 if ascending else 0
    numbers[s.isna().to_numpy()] = count - 2 if na_position == "last" else 0
    return numbers


def _up_to(s: pd.Series[Any], divisions: pd.Series[Any]) -> np.ndarray | None:
    """How many divisions are not greater than each value; None where others have to count."""
    if text.is_text(s.dtype):
        bounds = list(divisions)
        texts = all(type(bound) is str for bound in bounds)
        return text.count_up_to(pa.array(s.array), bounds) if texts else None
    kind = s.dtype.kind if isinstance(s.dtype, np.dtype) else ""
    if kind not in ("i", "u", "f", "M") or s.dtype != divisions.dtype:
        return None
    values, bounds = s.to_numpy(), divisions.to_numpy()
    if kind == "M":
        values, bounds = values.view(np.int64), bounds.view(np.int64)
    return count_below(values, bounds, "right")


def sort_index(frame: Any) -> Any:
    """Rows in the order of the index, as ``frame.sort_index()``; equal ones keep theirs.

    Examples
    --------
    >>> labels = pd.Index(["b", None, "a"], dtype="string[pyarrow]")
    >>> sort_index(pd.Series([1, 2, 3], labels)).tolist()
    [3, 1, 2]
    """
    if isinstance(frame.index, pd.MultiIndex) or not text.is_text(frame.index.dtype):
        return frame.sort_index()
    return frame.take(text.order(pa.array(frame.index.array)))


def summary(values: Any, *how: Any) -> Any:
    """Percentiles of the values of a partition and their weights, as Dask finds them.

    Parameters
    ----------
    values : Series
        (n,)
    *how
        Which percentiles, as Dask gives it.

    Returns
    -------
    percentiles : list
    weights : list
    """
    if not (isinstance(values, pd.Series) and text.is_text(values.dtype) and len(values)):
        return percentiles_summary(values, *how)
    places, weights = percentiles_summary(pd.Series(np.arange(len(values))), *how)
    return values.array.take(text.order(pa.array(values.array))[places]).tolist(), weights
