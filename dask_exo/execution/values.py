"""Values that the driver holds, each with the number of its remaining readers.

A ref that the driver holds is memory that the store cannot free, so a value is dropped when its
last reader takes it: from then on Ray keeps it for as long as that task needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.futures import Ref
from dask_exo.execution.persisted import Local, Remote
from dask_exo.planning.normalize import Key
from dask_exo.planning.partitioners import Partitioner
from dask_exo.planning.plan import OutputKey
from dask_exo.shuffle.spec import ReducerInput


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """An output of a shuffle that is not assembled yet, and its approximate size."""

    key: OutputKey
    column: ReducerInput
    split: Partitioner
    nbytes: int


Held = Local | Remote | PendingOutput


class Values:
    """The values of one computation that exist and are still to be read.

    Parameters
    ----------
    literals : dict
        Values that are in the graph itself; each is stored when a task first reads it.
    put : callable
        Stores one.

    Attributes
    ----------
    nbytes : int
        Estimated size of those in the object store.

    Examples
    --------
    >>> values = Values({}, put=lambda value: "ref")
    >>> values.add_readers(["x", "x"])
    >>> values.add("x", Remote("ref-x", 10))
    >>> values.take("x").ref, values.nbytes, values.take("x").ref, values.nbytes
    ('ref-x', 10, 'ref-x', 0)
    """

    def __init__(self, literals: dict[Key, Any], put: Callable[[Any], Ref]) -> None:
        self._literals, self._put = literals, put
        self._readers: Counter[Key] = Counter()
        self._held: dict[Key, Held] = {}
        self.nbytes = 0

    def add_readers(self, keys: Iterable[Key]) -> None:
        """Count one more reader for each of ``keys``."""
        self._readers.update(keys)

    def has_readers(self, key: Key) -> bool:
        """Return whether a value has remaining readers."""
        return self._readers[key] > 0

    def drop_reader(self, key: Key) -> None:
        """Count one reader less: it will not read the value."""
        self._readers[key] -= 1
        held = None if self._readers[key] else self._held.pop(key, None)
        self.nbytes -= held.nbytes if isinstance(held, Remote) else 0

    def add(self, key: Key, held: Held) -> None:
        """Keep a value for those who will read it, if there are any."""
        if self._readers[key]:
            self._held[key] = held
            self.nbytes += held.nbytes if isinstance(held, Remote) else 0

    def take(self, key: Key) -> Held:
        """Return a value for a task that is being submitted; drop it with its last reader."""
        if key in self._literals and key not in self._held:
            self._held[key] = Remote(self._put(self._literals[key]), 0)
        held = self._held[key]
        self._readers[key] -= 1
        if not self._readers[key]:
            del self._held[key]
            self.nbytes -= held.nbytes if isinstance(held, Remote) else 0
        return held

    def preferred_node(self, keys: Iterable[Key]) -> str | None:
        """Return the node on which all shuffled ones among these values are placed, if any."""
        held = [self._held.get(key) for key in keys]
        nodes = {one.column.node for one in held if isinstance(one, PendingOutput)}
        return nodes.pop() if len(nodes) == 1 else None

    def fetch(self, key: Key, get: Callable[[list[Ref]], list[Any]]) -> Any:
        """Return a value for a task that runs in the driver."""
        if key in self._literals:
            self.drop_reader(key)
            return self._literals[key]
        held = self.take(key)
        assert not isinstance(held, PendingOutput)
        return held.value if isinstance(held, Local) else get([held.ref])[0]

    def result(self, key: Key) -> Local | Remote:
        """Return a value for the caller of the computation."""
        if key in self._literals:
            return Local(self._literals[key])
        held = self._held[key]
        # the outputs of a shuffle are inputs of bundles only
        assert not isinstance(held, PendingOutput)
        return held

    def pending_bytes(self, keys: Iterable[Key]) -> int:
        """Return the bytes of those of these values that are not assembled yet."""
        held = map(self._held.get, keys)
        return sum(one.nbytes for one in held if isinstance(one, PendingOutput))

    def is_local(self, key: Key) -> bool:
        """Return whether a value is in the memory of the driver."""
        return isinstance(self._held.get(key), Local)

    def clear(self) -> None:
        """Drop all values."""
        self._held.clear()
