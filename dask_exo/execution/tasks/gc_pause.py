"""Python's search for cycles, put off while many objects are made that all stay.

Each of them is looked at again and again otherwise: a fifth of the time that a large graph takes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for cycles meanwhile, in any thread."""
    if not gc.isenabled():  # as somebody else wants it, be it another thread in here
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
