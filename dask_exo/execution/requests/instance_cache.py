"""Instances of classes, of which a process keeps a few."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

MOST_INSTANCES = 8  # that a process keeps


class Instance:
    """One for the process, once it has been made.

    Attributes
    ----------
    lock : RLock
        Of whoever makes or calls it.
    value : object
        None before it is made.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.value: Any = None


_instances: OrderedDict[str, Instance] = OrderedDict()
_guard = threading.Lock()


def instance(key: str) -> Instance:
    """Where the instance of a class is; the one that was used longest ago makes room."""
    with _guard:
        found = _instances.setdefault(key, Instance())
        _instances.move_to_end(key)
        while len(_instances) > MOST_INSTANCES:
            _instances.popitem(last=False)
        return found
