"""Values in the object store of which the process that made them keeps a copy on its GPU.

The store has every value: copies on a GPU may be dropped at any time, and die with their process. A
task in the same process that reads such a value copies it on the GPU, instead of from the host.
Each reader has a copy of its own, into which it may write. Least recently used copies are dropped
first, when columns need their memory. Those of a shuffle block are dropped once all its rows were
read.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from typing import Any

LEAST = 1 << 16  # bytes of a value that is worth it


class Residents:
    """Packed values on one GPU, at most ``limit`` bytes of them.

    Attributes
    ----------
    nbytes : int
        Bytes of all values.
    hits : int
        Values, or ranges of rows, that were read.

    Examples
    --------
    >>> import numpy as np
    >>> residents = Residents(100)
    >>> first, second = (residents.keep(np.full(60, n, np.uint8)) for n in (1, 2))
    >>> residents.copy(first) is None, int(residents.copy(second)[0]), residents.nbytes
    (True, 2, 60)
    """

    nbytes: int
    hits: int

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.nbytes = self.hits = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[str, Any] = OrderedDict()  # the least recently used one is first
        self._unread: dict[str, int] = {}  # rows, of blocks that were read in part

    def keep(self, buffer: Any) -> str:
        """Keep a value that nobody changes; return its name."""
        name = uuid.uuid4().hex
        with self._lock:
            self._values[name] = buffer
            self.nbytes += int(buffer.nbytes)
        self.drop(self.nbytes - self._limit)
        return name

    def copy(self, name: str) -> Any:
        """Return a copy of a value; None if it is not here."""
        with self._lock:
            buffer = self._use(name)
        return None if buffer is None else buffer.copy()

    def rows(self, name: str, start: int, stop: int) -> Any:
        """Return columns ``start`` to ``stop`` of a (k, n) block, as a view; None if not here.

        A reader copies them. The block is dropped once n columns were read.
        """
        with self._lock:
            block = self._use(name)
            if block is None:
                return None
            unread = self._unread.get(name, block.shape[1]) - (stop - start)
            self._unread[name] = unread
            if unread <= 0:
                self._forget(name)
        return block[:, start:stop]

    def drop(self, nbytes: int) -> int:
        """Drop values of at least ``nbytes``, or all; return their bytes."""
        dropped = 0
        with self._lock:
            while self._values and dropped < nbytes:
                dropped += self._forget(next(iter(self._values)))
        return dropped

    def _use(self, name: str) -> Any:
        buffer = self._values.get(name)
        if buffer is not None:
            self._values.move_to_end(name)
            self.hits += 1
        return buffer

    def _forget(self, name: str) -> int:
        self._unread.pop(name, None)
        nbytes = int(self._values.pop(name).nbytes)
        self.nbytes -= nbytes
        return nbytes
