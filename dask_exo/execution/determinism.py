"""What calls have made, and whether they made the same when they ran again.

Where a node is lost with a value that some tasks have read, the cluster makes the value again for
the others. If that is another value, the result is one that no run without a fault could have: it
must not be returned without a word.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from dask_exo.cluster.output_digest import Made
from dask_exo.errors import NonDeterminismError


class Versions:
    """The first version of what calls have made.

    Parameters
    ----------
    repeats : callable
        What calls have made that ran again; see `dask_exo.cluster.futures.Futures.repeats`.
    mode : str
        What happens where it is something else: ``"error"``, ``"warn"`` or ``"ignore"``.

    Examples
    --------
    >>> versions = Versions(lambda: [Made("call-1", "read", 3, digest=230)], "error")
    >>> versions.note(Made("call-2", "read", 3, digest=11))
    >>> versions.compare()
    >>> versions.note(Made("call-1", "read", 3, digest=11))
    >>> versions.compare()
    Traceback (most recent call last):
    ...
    dask_exo.errors.NonDeterminismError: a task 'read' ran again, ...
    """

    def __init__(self, repeats: Callable[[], Iterable[Made]], mode: str) -> None:
        self._repeats, self._mode = repeats, mode
        self._first: dict[str, int] = {}

    def note(self, made: Made | None) -> None:
        """A call has made something that tasks may read from now on."""
        if made is not None and made.digest is not None:
            self._first.setdefault(made.call, made.digest)

    def compare(self) -> None:
        """Ask what ran again, and compare.

        Raises
        ------
        NonDeterminismError
            It has made something else, and this is to be an error.
        """
        if self._mode == "ignore" or not self._first:
            return
        for again in self._repeats():
            if again.digest not in (None, self._first.get(again.call, again.digest)):
                text = _said(again)
                if self._mode == "error":
                    raise NonDeterminismError(text)
                warnings.warn(text, stacklevel=2)


def _said(again: Made) -> str:
    return (
        f"a task {again.name!r} ran again, since a worker or a node was lost, and has made "
        f"something else than before: tasks may have read both versions of its {again.parts} "
        f"partition(s). "
        f"Let it depend on its arguments only: no clock, no random numbers without a seed, no "
        f"outside state. If the difference does no harm, set exo.fault.nondeterminism to 'warn' or "
        f"'ignore'"
    )
