"""Tasks that write into their inputs.

Arrays from the object store are read-only. Code is run on them as they are; where it fails because
it wrote into one, it is run again on copies, and from then on that kind of task gets copies at
once. What an attempt does to its inputs, no other attempt sees.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dask_exo.partitions.ownership import isolated, writable

T = TypeVar("T")

MOST_GROUPS = 10_000  # of which a process remembers that they write

_EVERY = ""
"""The group of all tasks."""

_writing: set[str] = set()
"""Groups of tasks that have written into their inputs in this process."""

_COMPLAINT = re.compile(r"read[ -]?only|not writ(e?)able|non-writ(e?)able|writeable flag", re.I)
"""How libraries say that memory cannot be written to.

numpy: "assignment destination is read-only", "cannot set WRITEABLE flag to True of this array";
Cython, and with it scipy and scikit-learn: "buffer source array is read-only"; pybind11: "array is
not writeable"; numba: "Cannot modify readonly array"; Python: "underlying buffer is not writable".
"""

_PYTORCH = "The given NumPy array is not writable"
"""How PyTorch warns, once in each process, before it writes all the same."""


def write_or_copy(
    call: Callable[[Callable[[Any], Any]], T], group: str, *, shared: bool = True
) -> T:
    """Run code on what is in the store; where it cannot write to that, once more on copies.

    Parameters
    ----------
    call : callable
        Runs the code on inputs each of which it has sent through the function it is given.
    group : str
        What runs: of one group all write, or none.
    shared : bool
        Whether anybody, be it a second attempt, reads the inputs after this.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.frombuffer(bytes(16))
    >>> write_or_copy(lambda prepare: np.add(x, 1, out=prepare(x)), "add")
    array([1., 1.])
    """
    if not _writing.isdisjoint((group, _EVERY)):
        return call(_copied)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", _PYTORCH)
            return call(isolated if shared else _unchanged)
    except Exception as error:
        # whether each is a warning; the exceptions themselves would hold this frame
        complaints = [isinstance(one, Warning) for one in _chain(error) if _complains(one)]
        if not complaints:
            raise
        if any(complaints):
            group = _EVERY
        traceback.clear_frames(error.__traceback__)
    if len(_writing) < MOST_GROUPS:
        _writing.add(group)
    return call(_copied)


def _unchanged(value: Any) -> Any:
    return value


def _copied(value: Any) -> Any:
    return writable(isolated(value))


def _complains(error: BaseException) -> bool:
    return not isinstance(error, OSError) and _COMPLAINT.search(str(error)) is not None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and those that it was raised from, or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
