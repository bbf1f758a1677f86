"""Packed blocks: the rows of many reducers in one object, behind an offset table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_exo.frame import host


@dataclass(frozen=True, slots=True)
class Packed:
    """Blocks of neighbouring reducers, one after the other.

    Attributes
    ----------
    frame : DataFrame
        (n,) rows, those of the first reducer first.
    offsets : ndarray
        (k + 1,) where each of the k blocks starts.
    mark : tuple, optional
        Place and dtype of the column of partition numbers, which is the same number for all
        rows of a block and therefore not sent.
    """

    frame: Any
    offsets: np.ndarray
    mark: tuple[int, Any] | None = None

    def block(self, slot: int) -> Any:
        """Rows of block ``slot``, without a copy."""
        return self.frame.iloc[self.offsets[slot] : self.offsets[slot + 1]]


def pack(
    frame: Any,
    ids: np.ndarray,
    owned: Sequence[range],
    mark: tuple[int, Any] | None = None,
    *,
    ignore_index: bool = False,
) -> list[Packed]:
    """Sort rows by reducer and cut them at node boundaries.

    Parameters
    ----------
    frame : DataFrame
        (n,) rows.
    ids : (n,)
        Reducer of each row.
    owned : (W,)
        Contiguous reducers of each node.
    mark : tuple, optional
        See `Packed`.
    ignore_index : bool
        Whether the index need not be sent.

    Returns
    -------
    list of Packed : (W,)
    """
    rows, offsets = host.arrange(frame, ids, owned[-1].stop)
    if ignore_index:
        rows = rows.reset_index(drop=True)
    if len(owned) == 1:
        return [Packed(rows, offsets, mark)]
    return [
        Packed(
            rows.iloc[offsets[mine.start] : offsets[mine.stop]],
            offsets[mine.start : mine.stop + 1] - offsets[mine.start],
            mark,
        )
        for mine in owned
    ]


def merge(count: int, *packed: Packed) -> Iterator[Packed]:
    """Combine block ``i`` of every argument, for each ``i``; input order is kept."""
    for slot in range(count):
        frame = host.concat([p.block(slot) for p in packed])
        yield Packed(frame, np.array([0, len(frame)]), packed[0].mark)
