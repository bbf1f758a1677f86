"""Serialization of values that Ray sends, by the same cloudpickle as code.

A class of ``__main__``, of a notebook or of a function is pickled by value, with a number by which
a process that has the class already finds it. Each copy of cloudpickle keeps numbers of its own:
if Ray pickled values with the copy that it brings, an instance would come back as one of another
class, and an `enum` member not equal to itself. Dask's tokens are made with the same copy as code.
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import ray
import ray.cloudpickle

_CONSTANTS = frozenset({type(None), bool, int, float, str, bytes})
_LONG = 65_536  # bytes of a pickle that is not copied into another
_REDUCERS = [*cloudpickle.Pickler.dispatch_table.maps, *ray.cloudpickle.Pickler.dispatch_table.maps]


class _Pickler(cloudpickle.Pickler):
    """Pickles refs, and classes with a reducer registered with Ray, as Ray does."""

    dispatch_table: ClassVar[Any] = ChainMap(*{id(one): one for one in _REDUCERS}.values())


class _Sealed:
    """Wrapper that unpickles as its value, with buffers out of band."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(self._value)
        data = file.getbuffer()
        whole = pickle.PickleBuffer(data) if len(data) > _LONG else bytes(data)
        return _opened, (whole, *buffers)


def _opened(data: Any, *buffers: Any) -> Any:
    return pickle.loads(data, buffers=buffers)  # noqa: S301  our own process' bytes


def sealed(value: Any) -> Any:
    """Wrap a value for Ray; receivers get the value itself.

    Refs stay as they are: Ray must see them among the arguments of a task.
    """
    kind = type(value)
    if kind in _CONSTANTS or kind is ray.ObjectRef:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value
    return _Sealed(value)
