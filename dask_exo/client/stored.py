"""Large values of a client's workers, which stay in Ray's object store.

A worker holds a `Stored` in place of a large result. It travels between workers as a few bytes;
tasks and clients read the value from the store.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from dask.sizeof import sizeof

from dask_exo.cluster import on_ray
from dask_exo.cluster.futures import LARGE, Ref
from dask_exo.errors import Failure

reading: ContextVar[bool] = ContextVar("reading", default=False)
"""True while a receiver is sent the values themselves."""


class Stored:
    """A value in the object store, which lives as long as a process holds its ref.

    ``kind`` is the type of the value, if known. The size of this object is that of the value, so
    that a scheduler weighs it as such.
    """

    __slots__ = ("kind", "nbytes", "ref")

    kind: type | None
    nbytes: int

    def __init__(self, ref: Ref, nbytes: int, kind: type | None = None) -> None:
        self.ref, self.nbytes, self.kind = ref, nbytes, kind

    def __sizeof__(self) -> int:
        return self.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        if reading.get():
            return _value, tuple(on_ray.RayFutures().get([self.ref]))
        return _received, (on_ray.export_ref(self.ref), self.nbytes, self.kind)


def _received(exported: tuple[Any, ...], nbytes: int, kind: type | None) -> Stored:
    return Stored(on_ray.import_ref(exported), nbytes, kind)


def _value(value: Any) -> Any:
    return value


def stored(value: Any) -> Any:
    """Put a large value into the object store; return small ones, and those that cannot be sent."""
    if isinstance(value, Stored) or (nbytes := sizeof(value)) < LARGE:
        return value
    try:
        return Stored(on_ray.RayFutures().put(value), nbytes, type(value))
    except Exception:  # noqa: BLE001  other processes get an error when they request it
        return value


def result_of(sealed: bytes) -> Any:
    """Return or raise the result of a collection: a value, a `Failure` or a `Stored`."""
    content = pickle.loads(sealed)  # noqa: S301  our own client's bytes
    if isinstance(content, Stored) and content.nbytes < LARGE:
        content = opened({0: content})[0]
    if isinstance(content, Failure):
        content.reraise()
    return content


def keys_of_stored(values: Mapping[Any, Any]) -> list[Any]:
    """Return the keys whose values are `Stored`."""
    return [key for key, value in values.items() if isinstance(value, Stored)]


def opened(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the values with all that are `Stored` read from the object store.

    Raises
    ------
    ClusterError
        The process or node that owned a value is gone.
    """
    keys = keys_of_stored(values)
    found = on_ray.RayFutures().get([values[key].ref for key in keys]) if keys else []
    return {**values, **dict(zip(keys, found, strict=True))}
