"""Substitutes for kernels of Dask and pandas around a range shuffle, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.utils import M

from dask_exo.dask_adapter import percentiles_summary, set_partitions_pre
from dask_exo.partitions.kernels import string_sort
from dask_exo.partitions.kernels.integer_sort import count_below
from dask_exo.partitions.wire_dtypes import prefetch
from dask_exo.partitions.wire_format import to_wire


def partition_numbers(
    s: pd.Series,
    divisions: pd.Series,
    ascending: bool = True,  # noqa: FBT001, FBT002  as Dask calls it
    na_position: str = "last",
) -> Any:
    """Compute the partition of each value, exactly as Dask's ``set_partitions_pre``.

    Parameters
    ----------
    s : Series
        (n,) values.
    divisions : Series
        (R + 1,) smallest value of each partition, and the largest of the last.
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
    """Count the divisions that are not greater than each value; None for other dtypes."""
    if string_sort.is_arrow_string(s.dtype):
        bounds = list(divisions)
        texts = all(type(bound) is str for bound in bounds)
        return string_sort.count_up_to(pa.array(s.array), bounds) if texts else None
    kind = s.dtype.kind if isinstance(s.dtype, np.dtype) else ""
    if kind not in ("i", "u", "f", "M") or s.dtype != divisions.dtype:
        return None
    values, bounds = s.to_numpy(), divisions.to_numpy()
    if kind == "M":
        values, bounds = values.view(np.int64), bounds.view(np.int64)
    return count_below(values, bounds, "right")


def sort_index(frame: Any) -> Any:
    """Sort rows by the index, as ``frame.sort_index()`` does, but always stable.

    Examples
    --------
    >>> labels = pd.Index(["b", None, "a"], dtype="string[pyarrow]")
    >>> sort_index(pd.Series([1, 2, 3], labels)).tolist()
    [3, 1, 2]
    """
    if isinstance(frame.index, pd.MultiIndex) or not string_sort.is_arrow_string(frame.index.dtype):
        return frame.sort_index()
    labels = string_sort.to_large_string(pa.array(frame.index.array))
    order = string_sort.argsort_strings(labels)
    if not isinstance(frame, pd.DataFrame):
        return frame.take(order)
    rows = to_wire(frame.reset_index(drop=True), order, ignore_index=True).to_frame()
    prefetch(labels)
    return rows.set_axis(frame.index.take(order))


def sort_values(frame: Any, *, sort_function: Any, sort_kwargs: dict[str, Any]) -> Any:
    """Sort rows by columns, as ``sort_function(frame, **sort_kwargs)`` does.

    pandas finds the order; rows are gathered one column at a time.

    Examples
    --------
    >>> from dask.utils import M
    >>> frame = pd.DataFrame({"k": [2, 1], "s": ["b", "a"]})
    >>> sort_values(frame, sort_function=M.sort_values, sort_kwargs={"by": ["k"]}).s.tolist()
    ['a', 'b']
    """
    by = sort_kwargs.get("by")
    if not (
        isinstance(by, list)
        and len(set(by)) == len(by)
        and type(frame) is pd.DataFrame
        and frame.columns.is_unique
        and all(name in frame for name in by)  # or it is the name of the index
        and sort_function == M.sort_values
        and sort_kwargs.keys() <= _ORDER | {"ignore_index"}
    ):
        return sort_function(frame, **sort_kwargs)
    how = {name: value for name, value in sort_kwargs.items() if name in _ORDER}
    order = frame[by].reset_index(drop=True).sort_values(**how).index.to_numpy()
    ignored = bool(sort_kwargs.get("ignore_index"))
    return to_wire(frame, order, ignore_index=ignored).to_frame()


_ORDER = {"by", "ascending", "na_position"}  # arguments of sort_values that define the order


def summary(values: Any, *how: Any) -> Any:
    """Compute percentiles of a partition and their weights, as Dask does.

    Parameters
    ----------
    values : Series
        (n,)
    *how
        Arguments of Dask that define the percentiles.

    Returns
    -------
    percentiles : list
    weights : list
    """
    if not (
        isinstance(values, pd.Series) and string_sort.is_arrow_string(values.dtype) and len(values)
    ):
        return percentiles_summary(values, *how)
    places, weights = percentiles_summary(pd.Series(np.arange(len(values))), *how)
    return values.array.take(
        string_sort.argsort_strings(pa.array(values.array))[places]
    ).tolist(), weights
