"""Locks, events, queues and variables that tasks and driver share by name.

As in `distributed`: two objects of one name are one, in whatever process they are made, and
they can be pickled. What they hold lives in one process of the cluster, `SyncService`, until the
program ends.
"""

from __future__ import annotations

from typing import Any

import cloudpickle
from dask.utils import parse_timedelta

from dask_exo.client.future import Future, rebuild
from dask_exo.client.leases import NamedPrimitive
from dask_exo.cluster import on_ray
from dask_exo.execution.persisted import Promise, Remote


class Event(NamedPrimitive):
    """A flag, false at first.

    Parameters
    ----------
    name : str, optional
        By default a unique name.
    client : Client, optional
        Ignored: there is only one cluster.
    """

    def __init__(self, name: str | None = None, client: object = None) -> None:
        super().__init__(name)

    def wait(self, timeout: float | str | None = None) -> bool:
        """Wait until it is set; return whether it was, in time."""
        return bool(self._call("event_wait", parse_timedelta(timeout)))

    def set(self) -> None:
        """Set it, and wake all that wait."""
        self._call("event_set")

    def clear(self) -> None:
        """Reset it."""
        self._call("event_clear")

    def is_set(self) -> bool:
        """Return whether it is set."""
        return bool(self._call("event_is_set"))


class Queue(NamedPrimitive):
    """First in, first out; of futures and small values.

    Parameters
    ----------
    name : str, optional
        By default a unique name.
    client : Client, optional
        Ignored: there is only one cluster.
    maxsize : int
        `put` waits while it has so many; 0 is no limit.
    """

    def __init__(
        self,
        name: str | None = None,
        client: object = None,
        maxsize: int = 0,
    ) -> None:
        super().__init__(name)
        self.maxsize = maxsize

    def put(self, value: Any, timeout: float | str | None = None) -> None:
        """Append a value, a future, or a list of futures.

        Raises
        ------
        TimeoutError
            The queue has been full for ``timeout``.
        """
        seconds = parse_timedelta(timeout)
        if not self._call("queue_put", self.maxsize, _record(value), seconds):
            raise TimeoutError(f"{self!r} has been full ({self.maxsize}) for {seconds} s")

    def get(self, timeout: float | str | None = None, batch: bool | int = False) -> Any:
        """Take the oldest value.

        Parameters
        ----------
        timeout : number or str, optional
            Seconds, or as in ``"200ms"``.
        batch : bool or int
            True takes all that are there, a number as many; then a list is returned.

        Raises
        ------
        TimeoutError
            There has been none for ``timeout``.
        NotImplementedError
            A number of values, and a timeout: `distributed` has that neither.
        """
        seconds = parse_timedelta(timeout)
        if batch is True:
            return [_value(r) for r in self._call("queue_drain", self.maxsize)]
        if batch is not False:
            if seconds is not None:
                raise NotImplementedError("a queue takes a batch of a number without a timeout")
            return [self.get() for _ in range(batch)]
        records = self._call("queue_get", self.maxsize, seconds)
        if not records:
            raise TimeoutError(f"{self!r} has been empty for {seconds} s")
        return _value(records[0])

    def qsize(self) -> int:
        """Return the number of values."""
        return int(self._call("queue_size"))

    def close(self) -> None:
        """Delete the queue and its values."""
        self._call("queue_close")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, None, self.maxsize)


class Variable(NamedPrimitive):
    """One value, or one future.

    Parameters
    ----------
    name : str, optional
        By default a unique name.
    client : Client, optional
        Ignored: there is only one cluster.
    """

    def __init__(self, name: str | None = None, client: object = None) -> None:
        super().__init__(name)

    def set(self, value: Any, timeout: float | str | None = None) -> None:
        """Store a value, a future, or a list of futures."""
        self._call("variable_set", _record(value))

    def get(self, timeout: float | str | None = None) -> Any:
        """Wait until it has a value; return it.

        Raises
        ------
        TimeoutError
            It has had none for ``timeout``.
        """
        seconds = parse_timedelta(timeout)
        records = self._call("variable_get", seconds)
        if not records:
            raise TimeoutError(f"{self!r} has had no value for {seconds} s")
        return _value(records[0])

    def delete(self) -> None:
        """Delete the value."""
        self._call("variable_delete")


def _record(value: Any) -> tuple[Any, ...]:
    """Return the form in which the service stores a value. Refs in it stay alive."""
    if isinstance(value, Future) and isinstance(value.promise.held(), Remote):
        return value.key, value.promise.ref, value.report
    if isinstance(value, list) and value and all(isinstance(one, Future) for one in value):
        return tuple(map(_record, value)), len(value)
    return (cloudpickle.dumps(value),)


def _value(record: tuple[Any, ...]) -> Any:
    if len(record) == 1:
        return cloudpickle.loads(record[0])
    if len(record) == 2:
        return list(map(_value, record[0]))
    key, ref, report = record
    return rebuild(key, Promise(on_ray.RayFutures(), Remote(ref, 0)), report)
