"""Sort rows by several keys as pandas does, by integers that encode the order.

Each key column is encoded as 64-bit integers whose ascending order includes direction and position
of nulls, and the arrays of all keys are packed into one. Only the order of the integers has a
meaning, and only among rows that are encoded together. Databases call them normalized keys.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import infer_dtype, union_categoricals

from dask_exo.errors import SortKeyError
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.kernels.argsort import is_arrow_string, stable_argsort

_LAST = np.iinfo(np.int64).max
TOP = np.uint64(2**63)  # of the bits of a key
_WIDTH = 2**64


@dataclass(frozen=True, slots=True)
class SortKey:
    """Column to sort by."""

    name: Any  # for errors
    column: str | None  # None is the index
    ascending: bool = True
    nulls_first: bool = False  # in either direction
    dtype: pd.CategoricalDtype | None = None  # categories of all partitions, in their order


def encode(values: Sequence[pd.Series], keys: Sequence[SortKey]) -> np.ndarray:
    """Encode n rows as int64 in the order of the keys; equal if all keys are equal.

    ``values`` has (n,) values of each key. Raises `SortKeyError` if they cannot be compared.
    """
    return pack(_encode_key(column, key) for column, key in zip(values, keys, strict=True))


def pack(codes: Iterable[Any]) -> Any:
    """Combine codes of several keys to one array; the first key is the most significant.

    Examples
    --------
    >>> pack([np.array([1, 0, 1]), np.array([5, 9, 4])]).argsort().tolist()
    [1, 2, 0]
    """
    return functools.reduce(_pack, codes)


def _pack(major: Any, minor: Any) -> Any:
    if not len(major):
        return major
    low, high, least, most = arrays.bounds(major, minor)
    count, width = high - low + 1, most - least + 1
    if count * width >= _WIDTH // 2:
        (major, count), low = ranks(major), 0
        if count == len(major):  # no ties: the minor key does not matter
            return major
        (minor, width), least = ranks(minor), 0
    return (major - low) * width + (minor - least)


def ranks(codes: Any) -> tuple[Any, int]:
    """Return ranks without gaps, equal for equal codes, and their number."""
    values, places = arrays.of(codes).unique(codes, return_inverse=True)
    return places, len(values)


def _encode_key(values: pd.Series, key: SortKey) -> np.ndarray:
    try:
        codes, nulls = _comparable(values)
    except TypeError as error:
        raise SortKeyError(
            f"the values of sort key {key.name!r} ({values.dtype}) have no common order: {error}; "
            f"convert the column with .astype(...), or .fillna(...) it"
        ) from error
    return directed(codes, nulls, descending=not key.ascending, nulls_first=key.nulls_first)


def directed(codes: Any, nulls: Any, *, descending: bool, nulls_first: bool) -> Any:
    """Turn ascending codes into the requested order; give nulls a code before or after all."""
    if descending:
        codes = ~codes
    if not bool(nulls.any()):
        return codes
    xp = arrays.of(codes)
    valid = codes[~nulls]
    if not len(valid):
        return xp.zeros(len(codes), np.int64)
    place = int(valid.min()) - 1 if nulls_first else int(valid.max()) + 1
    if not -_LAST <= place <= _LAST:
        codes = xp.zeros(len(codes), np.int64)
        codes[~nulls], count = ranks(valid)
        place = -1 if nulls_first else count
    return xp.where(nulls, np.int64(place), codes)


def _comparable(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) int64 in ascending order of the values, and (n,) bool of nulls."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        codes = values.cat.codes.to_numpy().astype(np.int64)
        return codes, codes == -1
    if isinstance(dtype, (pd.DatetimeTZDtype, pd.PeriodDtype)):
        return pd.Index(values).asi8, values.isna().to_numpy()
    nulls = values.isna().to_numpy()
    if isinstance(dtype, pd.ArrowDtype) or is_arrow_string(dtype):
        return _of_arrow(values), nulls
    if isinstance(dtype, np.dtype):
        return _of_numpy(values.to_numpy(), nulls), nulls
    numbers = getattr(dtype, "numpy_dtype", None)  # Int64, boolean, Float64
    if numbers is not None:
        return _of_numpy(values.to_numpy(dtype=numbers, na_value=numbers.type(0)), nulls), nulls
    return _ranks(values), nulls


def _of_numpy(values: np.ndarray, nulls: np.ndarray) -> np.ndarray:
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind in "mM":
        return values.view(np.int64)
    if kind in "biu" or (kind == "f" and size <= 8):
        return of_numbers(values)
    ranks = np.zeros(len(values), np.int64)
    ranks[~nulls] = _object_ranks(values[~nulls])
    return ranks


def of_numbers(values: Any) -> Any:
    """Encode numbers as int64 in their order."""
    if values.dtype.kind == "u" and values.dtype.itemsize == 8:
        return (values ^ TOP).view(np.int64)
    if values.dtype.kind != "f":
        return values.astype(np.int64, copy=False)
    # as integers, the bits of negative floats are in reverse; adding 0 makes -0.0 a 0.0
    bits = (values.astype(np.float64) + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & _LAST)


def _object_ranks(values: np.ndarray) -> np.ndarray:
    """Rank Python objects that are not null; raise TypeError if they cannot be compared."""
    if infer_dtype(values, skipna=False) == "string":  # pandas takes "a\0b" and "a" for the same
        with contextlib.suppress(pa.ArrowException, UnicodeError):  # half of a surrogate pair
            return _arrow_ranks(pa.array(values, pa.large_string()))
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:  # lists and the like cannot be hashed
        order = np.argsort(values, kind="stable")
        steps = [a != b for a, b in zip(values[order[1:]], values[order[:-1]], strict=True)]
        ranks = np.empty(len(values), np.int64)
        ranks[order] = np.cumsum([0, *steps][: len(values)])
        return ranks
    return inverse(np.argsort(distinct, kind="stable"))[codes]


def _of_arrow(values: pd.Series) -> np.ndarray:
    try:
        return _arrow_ranks(pa.array(values.array))
    except pa.ArrowNotImplementedError:
        return _ranks(values)


def _arrow_ranks(values: pa.Array) -> np.ndarray:
    ranks = pc.rank(values, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks).astype(np.int64)


def _ranks(values: pd.Series) -> np.ndarray:
    """Rank values of any extension type; ranks of nulls are undefined."""
    codes, distinct = pd.factorize(values)
    if not len(distinct):
        return np.zeros(len(values), np.int64)
    return inverse(np.asarray(distinct.argsort()))[codes]


def inverse(order: np.ndarray) -> np.ndarray:
    """Return the rank of each row in an order."""
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    return ranks


def columns(frame: Any, keys: Sequence[SortKey]) -> list[Any]:
    """Return the key columns of a frame of any kind, with a default index."""
    series = (frame.index.to_series() if k.column is None else frame[k.column] for k in keys)
    return [values.reset_index(drop=True) for values in series]


def rows_of(values: Any, rows: np.ndarray) -> pd.Series:
    """Take rows of a series of any kind, and copy them to the host."""
    result = values.take(rows)
    return result if isinstance(result, pd.Series) else result.to_pandas()


def order(values: Sequence[pd.Series], keys: Sequence[SortKey]) -> np.ndarray:
    """Argsort rows by the keys in a stable way; see `encode`."""
    return stable_argsort(encode(values, keys))


def sort(frame: Any, keys: Sequence[SortKey]) -> Any:
    """Sort a frame by the keys; return the frame itself if it is sorted."""
    codes = encode(columns(frame, keys), keys)
    if (codes[1:] >= codes[:-1]).all():
        return frame
    return frame.take(stable_argsort(codes))


def locate(
    values: Sequence[Any], bounds: Sequence[pd.Series], keys: Sequence[SortKey], after: np.ndarray
) -> np.ndarray:
    """Count the rows before each of k bounds, in sorted rows of any kind of frame.

    A k-ary search that compares few rows, since comparing can be expensive: each step encodes
    some rows together with the bounds. ``after`` tells for each bound whether it comes after the
    rows that are equal to it.

    Examples
    --------
    >>> rows, bounds = [pd.Series([1, 2, 2, 3])], [pd.Series([2, 2, 9])]
    >>> locate(rows, bounds, [SortKey("a", "a")], np.array([False, True, False])).tolist()
    [1, 3, 4]
    """
    low = np.zeros(len(after), np.int64)
    high = np.full(len(after), len(values[0]), np.int64)
    while (active := np.flatnonzero(low < high)).size:
        fan = max(1, 2048 // len(active))
        steps = np.arange(1, fan + 1)
        # (k, fan) rows that divide the remaining range of each bound
        cuts = low[active, None] + (high - low)[active, None] * steps // (fan + 1)
        rows, places = np.unique(cuts, return_inverse=True)
        joined = [
            pd.concat([rows_of(column, rows), bound.iloc[active]], ignore_index=True)
            for column, bound in zip(values, bounds, strict=True)
        ]
        codes = encode(joined, keys)
        row, bound = codes[: len(rows)][places.reshape(cuts.shape)], codes[len(rows) :, None]
        before = np.where(after[active, None], row <= bound, row < bound).sum(axis=1)
        edges = np.column_stack([low[active] - 1, cuts, high[active]])
        numbers = np.arange(len(active))
        low[active], high[active] = edges[numbers, before] + 1, edges[numbers, before + 1]
    return low


Dtypes = tuple[pd.CategoricalDtype | None, ...]


def key_categories(frame: Any, keys: Sequence[SortKey]) -> Dtypes:
    """Return the dtypes of categorical keys; None for others, and if a partition is empty."""
    dtypes = [(frame.index if key.column is None else frame[key.column]).dtype for key in keys]
    return tuple(d if isinstance(d, pd.CategoricalDtype) and len(frame) else None for d in dtypes)


def unify_categories(keys: Sequence[SortKey], *dtypes: Dtypes) -> tuple[SortKey, ...]:
    """Return the keys with the union of the categories of all partitions, in order of appearance.

    Raises `SortKeyError` if ordered categories differ.
    """
    return tuple(
        _unify(key, group) for key, group in zip(keys, zip(*dtypes, strict=True), strict=True)
    )


def _unify(key: SortKey, dtypes: Sequence[pd.CategoricalDtype | None]) -> SortKey:
    # the categories of a partition of nulls are empty and of any type
    empty = [pd.Categorical([], dtype=d) for d in dtypes if d is not None and len(d.categories)]
    if key.dtype is not None or not empty:
        return key
    try:
        return replace(key, dtype=union_categoricals(empty).dtype)
    except TypeError as error:
        raise SortKeyError(
            f"the ordered categories of sort key {key.name!r} differ between partitions: {error}; "
            f"give all the same with .cat.set_categories(...)"
        ) from error


def recode(frame: Any, keys: Sequence[SortKey]) -> Any:
    """Give the categorical key columns of a frame the categories of the keys.

    Raises `SortKeyError` if a value is not among the categories.
    """
    for key in keys:
        if key.dtype is not None and len(frame):
            values = frame.index if key.column is None else frame[key.column]
            # dtypes that are not ordered compare equal whatever the order of their categories
            same = values.dtype == key.dtype and values.dtype.categories.equals(
                key.dtype.categories
            )
            frame = frame if same else _with(frame, key, values)
    return frame


def _with(frame: Any, key: SortKey, values: pd.Series | pd.Index) -> Any:
    assert key.dtype is not None
    old = pd.Categorical(values)
    places = np.append(key.dtype.categories.get_indexer(old.categories), -1)  # -1: of a null
    result = pd.Categorical.from_codes(places[old.codes], dtype=key.dtype)
    unknown = result.isna() & ~old.isna()
    if unknown.any():
        raise SortKeyError(
            f"sort key {key.name!r} has the value {old[unknown][0]!r}, which is not among the "
            f"categories that the collection knows: {list(key.dtype.categories)}; make them "
            f"unknown with .cat.as_unknown(), or find all with .categorize()"
        )
    if key.column is None:
        return frame.set_axis(pd.CategoricalIndex(result, name=frame.index.name))
    return frame.assign(**{key.column: result})
