"""How much one merge takes: what the blocks of a round weigh, and where to cut the round.

Merges are submitted while their maps still run. What those will weigh is taken from the receipts of
the last ones, per part; where rows are packed for other reducers, in proportion.

References: the byte limit on merges of Exoshuffle-CloudSort, section 4.1.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Owned = tuple[range, ...]

MergeLimits = tuple[int, int]
"""Bytes that a merge takes at most: of the maps that were measured, and of the others."""

RECENT = 16  # receipts: enough to even out, few enough to follow data that change on the way


def group_by_bytes(sizes: Sequence[float], cap: int | None) -> list[range]:
    """Cut neighbouring blocks into groups of at most ``cap`` bytes.

    Parameters
    ----------
    sizes : (T,)
        Bytes of each block.
    cap : int, optional
        Without it, all of them are one group. A block that exceeds it is a group of its own.

    Examples
    --------
    >>> group_by_bytes([3, 3, 3, 9, 1], cap=6)
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    >>> group_by_bytes([3, 3], cap=None)
    [range(0, 2)]
    """
    if cap is None:
        return [range(len(sizes))] if sizes else []
    groups: list[range] = []
    start, held = 0, 0.0
    for i, size in enumerate(sizes):
        if i > start and held + size > cap:
            groups.append(range(start, i))
            start, held = i, 0.0
        held += size
    return [*groups, range(start, len(sizes))] if sizes else []


class BlockSizes:
    """What blocks weigh that nobody has told of yet.

    Examples
    --------
    >>> sizes = BlockSizes()
    >>> halves = (range(4), range(4, 8))
    >>> sizes.record(halves, 2, (20, 180))
    >>> sizes.expected(halves), sizes.expected((range(2), range(2, 8)))
    ([10.0, 90.0], [5.0, 95.0])
    """

    def __init__(self) -> None:
        self._seen: dict[Owned, deque[list[float]]] = {}
        self._last: Owned | None = None

    def record(self, owned: Owned, parts: int, sizes: Sequence[int], nbytes: int = 0) -> None:
        """Learn from a map call.

        Parameters
        ----------
        owned : (W,) ranges
            Reducers whose blocks are packed together.
        parts : int
            Parts of the call.
        sizes : (W,) or empty
            Bytes of each packed block.
        nbytes : int
            Of all of them; used where ``sizes`` is empty, as if all reducers got the same.
        """
        if not sizes:
            reducers = max(sum(map(len, owned)), 1)
            sizes = [nbytes * len(mine) // reducers for mine in owned]
        known = self._seen.setdefault(owned, deque(maxlen=RECENT))
        known.append([size / max(parts, 1) for size in sizes])
        self._last = owned

    def expected(self, owned: Owned) -> list[float]:
        """(W,) bytes of each packed block, for one part; 0 where nothing is known."""
        if owned in self._seen:
            known = self._seen[owned]
            return [sum(column) / len(known) for column in zip(*known, strict=True)]
        if self._last is None:
            return [0.0] * len(owned)
        theirs = list(zip(self._last, self.expected(self._last), strict=True))
        return [sum(size * _share(other, mine) for other, size in theirs) for mine in owned]


def _share(other: range, mine: range) -> float:
    """Of the reducers in ``other``, those that are also in ``mine``."""
    both = min(other.stop, mine.stop) - max(other.start, mine.start)
    return max(both, 0) / len(other) if other else 0.0
