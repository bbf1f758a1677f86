"""Limit on the bytes of one merge: estimated sizes of blocks, and groups of blocks that fit.

Merges are submitted while their maps still run. Their sizes are estimated from the last receipts,
per part. If rows are packed for other ranges of reducers, sizes are divided in proportion.

References: the byte limit on merges of Exoshuffle-CloudSort, section 4.1.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Owned = tuple[range, ...]

MergeLimits = tuple[int, int]
"""Maximum bytes of one merge: of the maps that were measured, and of the others."""

RECENT = 16  # receipts that are averaged; few, to follow parts that grow


def group_by_bytes(sizes: Sequence[float], cap: int | None) -> list[range]:
    """Divide neighbouring blocks into groups of at most ``cap`` bytes.

    Parameters
    ----------
    sizes : (T,)
        Bytes of each block.
    cap : int, optional
        Without it, all blocks are one group. A larger block is a group of its own.

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
    """Estimated sizes of blocks whose maps still run.

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
        """Record the sizes of a finished map call.

        Parameters
        ----------
        owned : (W,) ranges
            Reducers whose blocks are packed together.
        parts : int
            Parts of the call.
        sizes : (W,) or empty
            Bytes of each packed block.
        nbytes : int
            Bytes of all blocks; if ``sizes`` is empty, all reducers are taken to get the same.
        """
        if not sizes:
            reducers = max(sum(map(len, owned)), 1)
            sizes = [nbytes * len(part) // reducers for part in owned]
        known = self._seen.setdefault(owned, deque(maxlen=RECENT))
        known.append([size / max(parts, 1) for size in sizes])
        self._last = owned

    def expected(self, owned: Owned) -> list[float]:
        """Return (W,) bytes of each packed block, for one part; 0 if nothing is known."""
        if owned in self._seen:
            known = self._seen[owned]
            return [sum(column) / len(known) for column in zip(*known, strict=True)]
        if self._last is None:
            return [0.0] * len(owned)
        theirs = list(zip(self._last, self.expected(self._last), strict=True))
        return [sum(size * _share(other, mine) for other, size in theirs) for mine in owned]


def _share(other: range, mine: range) -> float:
    """Return the share of the reducers in ``other`` that are also in ``mine``."""
    both = min(other.stop, mine.stop) - max(other.start, mine.start)
    return max(both, 0) / len(other) if other else 0.0
