"""Copy on write for tasks that write into their inputs.

Arrays from the object store are read-only. Code runs on them as they are; if it fails because it
writes into one, it runs again on copies, and from then on tasks of that group get copies at once.
No attempt sees what another one wrote.
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
"""Messages of libraries about read-only memory.

numpy: "assignment destination is read-only", "cannot set WRITEABLE flag to True of this array";
Cython, and with it scipy and scikit-learn: "buffer source array is read-only"; pybind11: "array is
not writeable"; numba: "Cannot modify readonly array"; Python: "underlying buffer is not writable".
"""

_PYTORCH = "The given NumPy array is not writable"
"""Warning of PyTorch, once in each process, before it writes all the same."""


def write_or_copy(
    call: Callable[[Callable[[Any], Any]], T], group: str, *, shared: bool = True
) -> T:
    """Run code on read-only inputs; if it fails to write into them, run it again on copies.

    Parameters
    ----------
    call : callable
        Runs the code. It gets a function, and has to apply it to each input.
    group : str
        Group of the task: all of a group write, or none.
    shared : bool
        Whether the inputs are read again, by another task or attempt.

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
    """Yield an exception, its cause or context, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
