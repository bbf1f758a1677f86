"""What a source takes next."""

from __future__ import annotations

from collections.abc import Iterator

from dask_exo.pipeline.streaming.types import Piece


class Intake:
    """Inputs of a source, of which one is looked at ahead.

    Parameters
    ----------
    inputs : iterator of (Piece or None)
        None where the next one is not there yet.

    Attributes
    ----------
    next : Piece or None
        What a task could take now.
    """

    def __init__(self, inputs: Iterator[Piece | None]) -> None:
        self._inputs = inputs
        self.next: Piece | None = None
        self._ended = False

    @property
    def over(self) -> bool:
        """Whether all have been taken."""
        return self._ended and self.next is None

    @property
    def late(self) -> bool:
        """Whether there will be a next one which is not there yet."""
        return not self._ended and self.next is None

    def look(self) -> Piece | None:
        """Look for the next one; return it if it has not been there before."""
        if not self.late:
            return None
        try:
            self.next = next(self._inputs)
        except StopIteration:
            self._ended = True
        return self.next

    def take(self) -> Piece:
        """The next one."""
        piece, self.next = self.next, None
        assert piece is not None
        return piece

    def close(self) -> None:
        """Let go of all."""
        self._inputs, self.next, self._ended = iter(()), None, True
