"""Joins that no frequent key slows down: its rows are spread over several outputs.

Both sides get a column of the hashes of their keys. The most frequent of those, counted in every
part, are placed; all other rows go where their hash says. Then both sides are shuffled by ready
numbers and joined output by output, by Dask's own expressions.
"""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd

from dask_exo.dask_adapter import (
    AssignPartitioningIndex,
    BlockwiseMerge,
    CoreExpr,
    Expr,
    Merge,
    Shuffle,
    Task,
    TaskRef,
)
from dask_exo.frame import frequent
from dask_exo.frame.frequent import Counts, Placement
from dask_exo.frame.host import MARK

__all__ = ["FrequentKeys", "JoinOutputs", "SpreadMerge", "SpreadRows"]

HASHES = 2**62  # a hash that is not negative in 64 bits


class SpreadMerge(Merge):
    """A join on columns, after which rows of equal keys may be in several partitions.

    Operands as of Dask's ``Merge``; ``left_on`` and ``right_on`` are lists of columns.
    """

    @property
    def unique_partition_mapping_columns_from_shuffle(self) -> set[Any]:
        """Columns whose equal values are in one partition: none, so that readers shuffle again."""
        return set()

    def _lower(self) -> CoreExpr:
        pieces = self.operand("_npartitions") or max(self.left.npartitions, self.right.npartitions)
        if self._is_single_partition_broadcast or self.is_broadcast_join:
            return Merge(*self.operands)  # no rows are moved by their keys
        sides = [(self.left, self.left_on), (self.right, self.right_on)]
        hashed = [
            AssignPartitioningIndex(side, on, MARK, HASHES, side._meta, False)  # noqa: FBT003
            for side, on in sides
        ]
        placed = FrequentKeys(*hashed, self.how, pieces)
        left, right = (
            Shuffle(
                SpreadRows(rows, placed, pieces, is_left),
                MARK,
                pieces,
                True,  # noqa: FBT003  a join on columns makes a new index
                "tasks",
                original_partitioning_index=on,
            )[list(side.columns)]
            for (side, on), rows, is_left in zip(sides, hashed, (True, False), strict=True)
        )
        return JoinOutputs(left, right, **self.kwargs)


class JoinOutputs(BlockwiseMerge):
    """The join of each two outputs; here too equal keys may be in several."""

    @property
    def unique_partition_mapping_columns_from_shuffle(self) -> set[Any]:
        """None."""
        return set()


class FrequentKeys(Expr):
    """Where the rows of frequent keys go: one value, which a task makes of counts of all parts."""

    _parameters = ["left", "right", "how", "pieces"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _meta(self) -> Any:
        return pd.DataFrame()

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _layer(self) -> dict[Any, Any]:
        name, sides, tasks = self._name, [], []
        for side, frame in (("left", self.left), ("right", self.right)):
            counts = [
                Task((f"count-{side}-{name}", i), _count, TaskRef((frame._name, i)))
                for i in range(frame.npartitions)
            ]
            both = Task((f"counts-{side}-{name}", 0), _together, *(one.ref() for one in counts))
            tasks += [*counts, both]
            sides.append(both.ref())
        tasks.append(Task((name, 0), frequent.place, *sides, self.how, self.pieces))
        return {task.key: task for task in tasks}


class SpreadRows(Expr):
    """Rows of one side, with the number of the output that each goes to in place of the hash."""

    _parameters = ["frame", "placed", "pieces", "is_left"]  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.frame.npartitions + 1)

    def _layer(self) -> dict[Any, Any]:
        name, placed = self._name, TaskRef((self.placed._name, 0))
        tasks = [
            Task(
                (name, i),
                _spread,
                TaskRef((self.frame._name, i)),
                placed,
                self.pieces,
                self.is_left,
                i,
            )
            for i in range(self.frame.npartitions)
        ]
        return {task.key: task for task in tasks}


def _count(part: Any) -> Counts:
    return frequent.count(part[MARK].to_numpy())


def _together(*parts: Counts) -> Counts:
    return frequent.together(parts)


def _spread(part: Any, placed: Placement, pieces: int, is_left: bool, number: int) -> Any:  # noqa: FBT001
    hashes = part[MARK].to_numpy()
    rows, outputs = frequent.spread(hashes, placed, pieces, left=is_left, number=number)
    return (part if rows is None else part.take(rows)).assign(**{MARK: outputs})
