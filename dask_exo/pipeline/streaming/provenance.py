"""Provenance: the rows of the source that a frame was made of, as far as they are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dask_exo.remote_error import Failure

SHOWN = 3  # ranges that a text names


class RowRange(NamedTuple):
    """Neighbouring rows of one partition of the source.

    Attributes
    ----------
    partition : int
    start : int
        The first row.
    stop : int, optional
        The one after the last; None if not counted yet.
    """

    partition: int
    start: int = 0
    stop: int | None = None


class Origin(NamedTuple):
    """Rows that a frame was made of.

    Attributes
    ----------
    rows : tuple of RowRange
    exact : bool
        Whether each row of the frame comes from the one in its place.
    """

    rows: tuple[RowRange, ...]
    exact: bool = True

    def counted(self, rows: int) -> Origin:
        """Return the same for a partition that turns out to have ``rows`` rows."""
        first = self.rows[0]
        return self if first.stop is not None else Origin((first._replace(stop=rows),))

    def part(self, start: int, stop: int) -> Origin:
        """Return the origin of the rows ``start`` to ``stop`` of its frame.

        Examples
        --------
        >>> Origin((RowRange(0, 5, 8), RowRange(1, 0, 4))).part(2, 5).rows
        (RowRange(partition=0, start=7, stop=8), RowRange(partition=1, start=0, stop=2))
        """
        if not self.exact:
            return self
        found, before = [], 0
        for rows in self.rows:
            length = (rows.stop or 0) - rows.start
            low, high = max(start - before, 0), min(stop - before, length)
            if low < high:
                found.append(RowRange(rows.partition, rows.start + low, rows.start + high))
            before += length
        return Origin(tuple(found) or self.rows, bool(found))

    def made(self, taken: int, given: int, *, alone: bool) -> Origin:
        """Return the origin of the output of a function of the frame.

        As many rows as it had, in one frame, are taken for the same ones.
        """
        return self if alone and taken == given else self._replace(exact=False)

    def __str__(self) -> str:
        """Return the rows as text."""
        texts = [_text(rows) for rows in self.rows[:SHOWN]]
        more = len(self.rows) - SHOWN
        what = ", ".join(texts) + (f" and {more} more" if more > 0 else "")
        return what if self.exact else f"what was made of {what}"


class Frame(NamedTuple):
    """A frame on its way through the transforms of a task.

    Attributes
    ----------
    data : object
        None where there is nothing, not even columns.
    last : bool
        Whether no other one follows.
    origin : Origin
    """

    data: Any
    last: bool
    origin: Origin = Origin(())


class RejectReason(NamedTuple):
    """Reason for which an input was set aside.

    Attributes
    ----------
    stage, function : str
        Names.
    origin : Origin
        Of its rows.
    failure : Failure
    """

    stage: str
    function: str
    origin: Origin
    failure: Failure


def joined(origins: Sequence[Origin]) -> Origin:
    """Return the origin of a concatenation of frames.

    Examples
    --------
    >>> str(
    ...     joined(
    ...         [
    ...             Origin((RowRange(0, 0, 5),)),
    ...             Origin((RowRange(0, 5, 9),)),
    ...             Origin((RowRange(2, 0, 1),)),
    ...         ]
    ...     )
    ... )
    'partition 0 rows 0:9, partition 2 rows 0:1'
    """
    found: list[RowRange] = []
    for origin in origins:
        for rows in origin.rows:
            last = found[-1] if found else None
            if last is not None and last.partition == rows.partition and last.stop == rows.start:
                found[-1] = last._replace(stop=rows.stop)
            elif last != rows:
                found.append(rows)
    return Origin(tuple(found), all(origin.exact for origin in origins))


def _text(rows: RowRange) -> str:
    some = "" if rows.stop is None else f" rows {rows.start}:{rows.stop}"
    return f"partition {rows.partition}{some}"
