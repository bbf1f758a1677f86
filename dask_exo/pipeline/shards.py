"""Assignment of a pipeline's rows to several consumers."""

from __future__ import annotations

from collections import deque
from typing import Any

from dask_exo.partitions.batching import RowSpan

AHEAD = 2  # blocks for each consumer that may wait, so that few have to be cut


class Sharder:
    """Assignment of blocks to consumers that request them, each row to one consumer.

    Where all shall get the same number of rows, none ever gets more than an equal share of the rows
    that are known; that share only grows, so that at the end all can have it. A block is dealt
    whole if others that wait allow it, and is cut if not.

    Parameters
    ----------
    consumers : int
    equal : bool
        Whether all get the same number of rows: fewer than there are consumers are left over then,
        and one that is ahead of all others waits.

    Examples
    --------
    >>> sharder = Sharder(2, equal=True)
    >>> sharder.add("a", 3)
    >>> sharder.add("b", 4)
    >>> sharder.end()
    >>> sharder.assign(0), sharder.assign(1), sharder.assign(1)
    (RowSpan(part='a', start=0, stop=3), RowSpan(part='b', start=0, stop=3), None)
    >>> sharder.over(1)
    True
    """

    def __init__(self, consumers: int, *, equal: bool) -> None:
        self._equal = equal
        self._dealt = dict.fromkeys(range(consumers), 0)
        self._most = AHEAD * consumers
        self._waiting: deque[RowSpan[Any]] = deque()
        self._rows = 0  # of those that wait
        self._ended = False
        self._share: int | None = None  # of each, where it may not grow any more

    def add(self, part: Any, rows: int) -> None:
        """Add a block."""
        if rows:
            self._waiting.append(RowSpan(part, 0, rows))
            self._rows += rows

    def end(self) -> None:
        """Record that no block will follow."""
        self._ended = True

    def leave(self, consumer: int) -> None:
        """Remove a consumer: the others share the rest."""
        if self.over(consumer):
            return
        if self._equal and any(map(self.over, self._dealt)):
            self._share = self._level  # the share with which another consumer ended
        del self._dealt[consumer]

    @property
    def abandoned(self) -> bool:
        """Return whether no consumer wants any more rows."""
        return all(map(self.over, list(self._dealt)))

    def over(self, consumer: int) -> bool:
        """Return whether a consumer has all rows that it will get."""
        if consumer not in self._dealt:
            return True
        if not self._ended:
            return False
        return not (self._room(consumer) if self._equal else self._waiting)

    def wants(self, consumer: int) -> bool:
        """Return whether another block has to arrive before this consumer gets rows."""
        if self._ended or consumer not in self._dealt:
            return False
        if not self._waiting:
            return True
        return (
            self._equal
            and len(self._waiting) < self._most
            and self._room(consumer) < _length(self._waiting[0])
        )

    def assign(self, consumer: int) -> RowSpan[Any] | None:
        """Return rows for a consumer; None if there are none for it now."""
        if not self._waiting or self.over(consumer) or self.wants(consumer):
            return None
        part, start, stop = self._waiting.popleft()
        rows = min(stop - start, self._room(consumer)) if self._equal else stop - start
        if start + rows < stop:
            self._waiting.appendleft(RowSpan(part, start + rows, stop))
        if not rows:
            return None
        self._dealt[consumer] += rows
        self._rows -= rows
        return RowSpan(part, start, start + rows)

    @property
    def _level(self) -> int:
        """Rows that each consumer can have, of those that are known."""
        if self._share is not None:
            return self._share
        return (sum(self._dealt.values()) + self._rows) // len(self._dealt)

    def _room(self, consumer: int) -> int:
        return self._level - self._dealt[consumer]


def _length(span: RowSpan[Any]) -> int:
    return span.stop - span.start
