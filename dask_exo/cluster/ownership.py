"""Copies that a task may write to, of values that others read too.

Values of the object store are shared: buffers of arrays and columns are read-only memory, and
containers are read by other tasks of the same call, and by the same task when it is retried.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from itertools import chain
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
from dask.sizeof import sizeof
from pandas.api.types import infer_dtype

_CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS = frozenset({list, tuple, set, frozenset, dict})
_DEEP = 20  # levels of containers in containers that `is_plain_data` looks at
_FIXED_OBJECTS = frozenset(
    {"empty", "string", "bytes", "integer", "floating", "boolean", "decimal"}
)
_OBJECT = np.dtype(object)
_SIZED = (np.ndarray, np.generic, pd.DataFrame, pd.Series, pd.Index)
PANDAS_3 = int(pd.__version__.split(".")[0]) >= 3  # which copies on write
_COPY_ON_WRITE_KINDS = frozenset({pd.DataFrame, pd.Series} if PANDAS_3 else ())


_copies: dict[type, Callable[[Any], Any]] = dict.fromkeys(_CONSTANTS, lambda value: value)


def register_copy(kind: type, copy: Callable[[Any], Any]) -> None:
    """Register how values outside of host memory are copied; their pickles would be on the host."""
    _copies[kind] = copy


def is_plain_data(value: Any) -> bool:
    """Return whether a value consists of containers and constants, without shared memory.

    Examples
    --------
    >>> is_plain_data([{"a": 1}, ("b", None)]), is_plain_data([np.zeros(1)])
    (True, False)
    """
    level: list[Any] = [value]
    for _ in range(_DEEP):
        kinds = set(map(type, level))
        if kinds <= _CONSTANTS:
            return True
        if not kinds <= _CONSTANTS | _CONTAINERS:
            return False
        nested = [item for item in level if type(item) in _CONTAINERS]
        level = list(chain.from_iterable(v.values() if type(v) is dict else v for v in nested))
    return False


def size_of(value: Any, most: int) -> int:
    """Return the bytes of a value, at least whether these are more than ``most``.

    Dask knows the sizes of arrays, frames and containers. An object of another class may reference
    any of them, and is pickled to find out, without its buffers.

    Examples
    --------
    >>> class Model:
    ...     def __init__(self):
    ...         self.weights = np.zeros(1000)
    >>> size_of(Model(), most=1000) > 8000, size_of([1, 2], most=1000) < 1000
    (True, True)
    """
    nbytes = int(sizeof(value))
    is_sized = isinstance(value, _SIZED) or type(value) in _copies
    if nbytes > most or is_sized or is_plain_data(value):
        return nbytes
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception:  # noqa: BLE001  whoever sends it gets an error that says more
        return nbytes
    return max(nbytes, len(data) + sum(buffer.raw().nbytes for buffer in buffers))


def as_stored(value: Any) -> Any:
    """Return a value as it would come out of an object store; arrays are not copied.

    Examples
    --------
    >>> as_stored(np.zeros(1)).flags.writeable
    False
    """
    if type(value) is np.ndarray:
        value = value.view()
        value.flags.writeable = False
        return value
    return isolated(value) if is_plain_data(value) else value


def isolated_view(value: Any) -> Any:
    """Return a value for one of several readers, isolated from what the others do to theirs.

    Arrays are not copied; writing to one raises an error.
    """
    return as_stored(value) if type(value) is np.ndarray else isolated(value)


def isolated(value: Any) -> Any:
    """Return a copy that others do not see change; read-only memory is not copied."""
    kind = type(value)
    copy = _copies.get(kind)
    if copy is not None:
        return copy(value)
    if kind is np.ndarray and not value.flags.writeable and not value.dtype.hasobject:
        return value.view()
    if PANDAS_3 and _fixed_cells(value):
        return value.copy(deep=False)
    if kind is dict and all(map(_COPY_ON_WRITE_KINDS.__contains__, map(type, value.values()))):
        return {key: isolated(item) for key, item in value.items()}
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception:  # noqa: BLE001  whatever cannot be pickled did not come from the store
        return value
    raw = [b.raw() for b in buffers]
    copies = [b if b.readonly else bytearray(b) for b in raw]
    return pickle.loads(data, buffers=copies)  # noqa: S301  pickled above


def _fixed_cells(value: Any) -> bool:
    """Return whether cells of a frame or series are immutable objects."""
    if type(value) is pd.DataFrame:
        dtypes = enumerate(value.dtypes)
        objects = [value.iloc[:, i] for i, dtype in dtypes if dtype is _OBJECT]
    elif type(value) is pd.Series:
        objects = [value] if value.dtype is _OBJECT else []
    else:
        return False
    return all(infer_dtype(column, skipna=True) in _FIXED_OBJECTS for column in objects)


def owned(value: Any, *, shared: bool) -> Any:
    """Return a value for the user, who may change it.

    ``shared``: it is the object that tasks read, see `Futures.shares_memory`; else it comes from an
    object store.
    """
    return isolated(value) if shared else writable(value)


class _Owner(cloudpickle.Pickler):
    """Pickler that copies read-only arrays, so that they are writable."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and not obj.flags.writeable and not obj.dtype.hasobject:
            return obj.copy(order="K").__reduce_ex__(5)
        return super().reducer_override(obj)


def writable(value: Any) -> Any:
    """Return a copy in writable memory of this process.

    Buffers from the object store are read-only. Values without such buffers are returned as they
    are.
    """
    if type(value) in _copies:  # it left the store for memory of its own
        return value
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    try:
        _Owner(file, protocol=5, buffer_callback=buffers.append).dump(value)
    except Exception:  # noqa: BLE001  whatever cannot be pickled did not come from the store
        return value
    if not buffers:
        return value
    # arrays have been copied above; what is still read-only belongs to Arrow, and stays so
    raw = [b.raw() for b in buffers]
    copies = [bytes(b) if b.readonly else b for b in raw]
    return pickle.loads(file.getbuffer(), buffers=copies)  # noqa: S301  pickled above
