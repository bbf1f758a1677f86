"""Values in the object store of which the process that made them keeps a copy on its GPU.

The store has every value: copies on a GPU may be dropped at any time, and die with their process. A
task in the same process that reads such a value copies it on the GPU, instead of from the host.
Each reader has a copy of its own, into which it may write. Least recently used copies are dropped
first, when columns need their memory.
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
        Values that were read.

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
            buffer = self._values.get(name)
            if buffer is None:
                return None
            self._values.move_to_end(name)
            self.hits += 1
        return buffer.copy()

    def drop(self, nbytes: int) -> int:
        """Drop values of at least ``nbytes``, or all; return their bytes."""
        dropped = 0
        with self._lock:
            while self._values and dropped < nbytes:
                _, buffer = self._values.popitem(last=False)
                dropped += int(buffer.nbytes)
            self.nbytes -= dropped
        return dropped
