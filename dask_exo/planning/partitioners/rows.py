"""Rows of frames, by partition number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dask_exo.partitions import pandas_partition, protocol
from dask_exo.partitions.kernels.kway_merge import merge_sorted_tables
from dask_exo.partitions.kernels.sort_keys import SortKey
from dask_exo.partitions.wire_format import WireRows, concat, is_pandas, same_schema
from dask_exo.planning.partitioners.exchange import Partitioner
from dask_exo.shuffle.blocks import HeterogeneousBlocks, Packed, pack
from dask_exo.shuffle.choose import LARGEST_BATCH
from dask_exo.shuffle.integrity import Tally, tally

CHUNKS = 8  # at least, of an output that is merged by chunks, of which two are held beside it


@dataclass(frozen=True, eq=False, kw_only=True)
class RowPartitioner(Partitioner):
    """Partitioner of rows by a column of partition numbers, or by a hash.

    Attributes
    ----------
    column : label or list of labels
        Column of partition numbers, or columns to hash.
    keys : tuple of labels
        Columns that the partition numbers come from, for the integrity check.
    ignore_index : bool
        Whether output partitions get a new index.
    drop : bool
        Whether the column of partition numbers is left out of the output.
    runs : tuple of SortKey, optional
        Keys by which the rows of each input are sorted.
    limit : int, optional
        Bytes of an output above which sorted runs are merged a chunk at a time, if their columns
        are plain arrays; smaller ones are concatenated, which is faster.
    """

    column: Any
    keys: tuple[Any, ...] = ()
    ignore_index: bool = False
    drop: bool = False
    runs: tuple[SortKey, ...] | None = None
    limit: int | None = None

    def with_merge_limit(self, limit: int) -> Self:
        """Return a partitioner that merges sorted runs above ``limit`` bytes a chunk at a time."""
        return replace(self, limit=limit) if self.runs else self

    def cut(self, parts: Sequence[Any], owned: Sequence[range]) -> tuple[list[Packed], Tally]:
        """Divide the rows of some inputs by output."""
        frame = pandas_partition.concat(parts)
        kernels = protocol.kernels(frame)
        ids = kernels.partition_ids(frame, self.column, self.count)
        mark = kernels.partition_column(frame, self.column, ids)
        if mark is not None:
            frame = frame.drop(columns=pandas_partition.PARTITION_COLUMN)
        elif self.drop:
            frame = frame.drop(columns=self.column)
        if self.kept is not None:
            frame, ids = self._some(frame, ids)
        blocks = pack(frame, ids, owned, mark, ignore_index=self.ignore_index)
        counts = np.concatenate([np.diff(block.offsets) for block in blocks])
        return blocks, self._tally(frame, counts)

    def _some(self, frame: Any, ids: Any) -> tuple[Any, Any]:
        """Return the rows of requested outputs, and the slot of each."""
        assert self.kept is not None
        places = np.full(self.count, -1)
        places[list(self.kept)] = np.arange(len(self.kept))
        here = protocol.kernels(frame).array(frame, places)[ids]
        mask = here >= 0
        return frame[mask], here[mask].astype(np.min_scalar_type(len(self.kept)))

    def assemble(
        self, packed: Sequence[Packed | HeterogeneousBlocks], slot: int, column: int
    ) -> tuple[Any, Tally]:
        """Assemble one output partition."""
        rows = self._together([p.part(slot) for p in packed])
        frame = rows.to_frame()
        arrived = self._tally(frame, np.array([len(frame)]), column)
        mark = packed[0].partition_column
        if mark is not None and not self.drop:
            place, dtype = mark
            frame = frame.copy(deep=False)
            frame.insert(
                place,
                pandas_partition.PARTITION_COLUMN,
                np.full(len(frame), self.numbers[column], dtype),
            )
        return frame, arrived

    def _together(self, tables: Sequence[WireRows]) -> WireRows:
        limit = self.limit
        large = limit is not None and sum(table.nbytes for table in tables) > limit
        if (
            self.runs
            and limit is not None
            and large
            and same_schema(tables)
            and is_pandas(tables[0])
        ):
            return merge_sorted_tables(tables, self.runs, min(limit // CHUNKS, LARGEST_BATCH))
        return concat(tables, ignore_index=self.ignore_index)

    def _tally(self, frame: Any, counts: np.ndarray, first: int = 0) -> Tally:
        dtypes, keys = protocol.kernels(frame).checksum(frame, self.keys if self.checked else ())
        return tally(counts, first, dtypes=dtypes, keys=keys)
