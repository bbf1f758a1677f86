"""Rows of frames, by partition number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_exo.frame import host, protocol
from dask_exo.frame.columns import below
from dask_exo.graph.splits.exchange import Split
from dask_exo.shuffle.blocks import Apart, Packed, pack
from dask_exo.shuffle.integrity import Tally, tally


@dataclass(frozen=True, eq=False, kw_only=True)
class Rows(Split):
    """How rows find their output partition, and what an output partition looks like.

    Attributes
    ----------
    column : label or list of labels
        Column of ready partition numbers, or columns to hash.
    keys : tuple of labels
        Columns that the partition numbers come from, for the integrity check.
    ignore_index : bool
        Whether output partitions get a new index.
    drop : bool
        Whether the column of partition numbers is left out of the output.
    """

    column: Any
    keys: tuple[Any, ...] = ()
    ignore_index: bool = False
    drop: bool = False

    def cut(self, parts: Sequence[Any], owned: Sequence[range]) -> tuple[list[Packed], Tally]:
        """Sort the rows of some partitions by where they go."""
        frame = host.concat(parts)
        kernels = protocol.kernels(frame)
        ids = kernels.destinations(frame, self.column, self.count)
        mark = kernels.mark(frame, self.column, ids)
        if mark is not None:
            frame = frame.drop(columns=host.MARK)
        elif self.drop:
            frame = frame.drop(columns=self.column)
        if self.kept is not None:
            frame, ids = self._some(frame, ids)
        blocks = pack(frame, ids, owned, mark, ignore_index=self.ignore_index)
        counts = np.concatenate([np.diff(block.offsets) for block in blocks])
        return blocks, self._tally(frame, counts)

    def _some(self, frame: Any, ids: Any) -> tuple[Any, Any]:
        """The rows that go to outputs that are wanted, and where."""
        assert self.kept is not None
        places = np.full(self.count, -1)
        places[list(self.kept)] = np.arange(len(self.kept))
        here = protocol.kernels(frame).array(frame, places)[ids]
        mask = here >= 0
        return frame[mask], here[mask].astype(np.min_scalar_type(len(self.kept)))

    def assemble(
        self, packed: Sequence[Packed | Apart], slot: int, column: int
    ) -> tuple[Any, Tally]:
        """Put one output partition together."""
        rows = below([p.part(slot) for p in packed], ignore_index=self.ignore_index)
        frame = rows.frame()
        arrived = self._tally(frame, np.array([len(frame)]), column)
        mark = packed[0].mark
        if mark is not None and not self.drop:
            place, dtype = mark
            frame = frame.copy(deep=False)
            frame.insert(place, host.MARK, np.full(len(frame), self.numbers[column], dtype))
        return frame, arrived

    def _tally(self, frame: Any, counts: np.ndarray, first: int = 0) -> Tally:
        dtypes, keys = protocol.kernels(frame).checksum(frame, self.keys if self.checked else ())
        return tally(counts, first, dtypes=dtypes, keys=keys)
