"""Joins, and quantiles of groups, in which a heavy hitter does not make one partition large.

A join spreads the rows of heavy hitters over several outputs. Both sides get a column of the hashes
of their keys. Heavy hitters, counted in every partition, are assigned to outputs; all other rows go
to the output of their hash. Then both sides are shuffled by these numbers and joined output by
output, by Dask's own expressions. If unmatched rows of a side are part of the result, a column
marks the copies of its rows, and copies without a match are dropped before the join.

For medians and quantiles of groups, each sorted partition reports its first and last group. A task
finds the groups that span partitions, and the rows to pick of each. Each partition picks these, and
aggregates the groups that begin in it. Only counts and picked values leave a partition.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dask_exo.dask_adapter import (
    AssignPartitioningIndex,
    Blockwise,
    BlockwiseMerge,
    CoreExpr,
    DropDuplicatesBlockwise,
    Merge,
    Shuffle,
    Task,
    TaskRef,
    concat_partitions,
)
from dask_exo.partitions import protocol
from dask_exo.partitions.kernels import skew
from dask_exo.partitions.kernels.skew import KEPT, SPLITTING, KeyCounts, Placement
from dask_exo.partitions.protocol import PARTITION_COLUMN
from dask_exo.planning.reorder import PartitionTasks

HASHES = 2**62  # a hash that is not negative in 64 bits
COPY = "_exo_copy"  # column that marks all copies of a row but the first


class SkewResistant(PartitionTasks):
    """Part of an operation in which a heavy hitter does not make one partition large."""

    @property
    @abstractmethod
    def plan(self) -> str:
        """One line for people that says how heavy hitters are spread."""


class SideKeys(NamedTuple):
    """Join keys of one side."""

    columns: list[Any]  # empty for the index

    @property
    def hashed(self) -> tuple[list[Any], bool]:
        """Columns that Dask hashes, and whether these are the index."""
        return (self.columns, False) if self.columns else (["_index"], True)

    def of(self, part: Any) -> pd.DataFrame:
        """Return the (n, k) keys of a partition, in numbered columns."""
        keys = part[self.columns] if self.columns else part.index.to_frame()
        return protocol.relabel(keys, columns=range(keys.shape[1]))

    def __str__(self) -> str:
        """Return the names of the columns, or "the index"."""
        return ", ".join(map(str, self.columns)) or "the index"


class SpreadMerge(Merge):
    """A join on columns or indexes, after which rows of equal keys may be in several partitions.

    Operands as of Dask's ``Merge``; ``left_on`` and ``right_on`` are lists of columns, or None for
    an index.
    """

    @property
    def unique_partition_mapping_columns_from_shuffle(self) -> set[Any]:
        """Columns whose equal values are in one partition: none, so readers shuffle again."""
        return set()

    def _lower(self) -> CoreExpr:
        if self._is_single_partition_broadcast or self.is_broadcast_join:
            return Merge(*self.operands)  # no rows are moved by their keys
        reducers = self.operand("_npartitions") or max(
            self.left.npartitions, self.right.npartitions
        )
        keys = SideKeys(self.left_on or []), SideKeys(self.right_on or [])
        right = self.right
        if self.how == "leftsemi":
            right = DropDuplicatesBlockwise(right)  # its columns are the keys
        sides = self.left, right
        hashed = [
            AssignPartitioningIndex(side, columns, PARTITION_COLUMN, HASHES, side._meta, index)
            for side, (columns, index) in zip(sides, (key.hashed for key in keys), strict=True)
        ]
        placement = PlaceHeavyHitters(*hashed, self.how, reducers, keys)
        preserved = [name in KEPT[self.how] for name in ("left", "right")]
        shuffled = [
            Shuffle(
                SpreadRows(
                    hashed[i], placement, reducers, i == 0, preserved[i], keys[i], preserved[1 - i]
                ),
                PARTITION_COLUMN,
                reducers,
                not (self.left_index or self.right_index),  # a join on columns makes a new index
                "tasks",
                original_partitioning_index=keys[i].columns or None,
            )[[*sides[i].columns, *([COPY] if preserved[i] else [])]]
            for i in range(2)
        ]
        left, right = (
            DropUnmatched(shuffled[i], shuffled[1 - i], keys[i], keys[1 - i])
            if preserved[i]
            else shuffled[i]
            for i in range(2)
        )
        return JoinOutputs(left, right, **self.kwargs)


class JoinOutputs(BlockwiseMerge):
    """The join of each pair of outputs; equal keys may be in several here, too."""

    unique_partition_mapping_columns_from_shuffle = (
        SpreadMerge.unique_partition_mapping_columns_from_shuffle
    )


class PlaceHeavyHitters(SkewResistant):
    """The outputs that heavy hitters go to: one value, from the counts of all partitions."""

    _parameters = ["left", "right", "how", "reducers", "keys"]  # noqa: RUF012  as Dask has it

    @property
    def plan(self) -> str:
        """One line for people that says how heavy hitters are spread."""
        either_side = len(SPLITTING[self.how]) == 2
        side = "the side that has more of them" if either_side else "the left side"
        note = "; copies without a partner are dropped" if KEPT[self.how] else ""
        left, right = self.keys
        return (
            f"{self.how} join on {left} = {right}: heavy hitters of {side} are spread over up to "
            f"{self.reducers:,} partitions, their rows on the other side are copied there{note}"
        )

    @functools.cached_property
    def _meta(self) -> Any:
        return pd.DataFrame()

    def _divisions(self) -> tuple[None, None]:
        return (None, None)

    def _tasks(self) -> list[Task]:
        name, sides, tasks = self._name, [], []
        for side, frame in (("left", self.left), ("right", self.right)):
            counts = [
                Task((f"count-{side}-{name}", i), _count, TaskRef((frame._name, i)))
                for i in range(frame.npartitions)
            ]
            refs = [task.ref() for task in counts]
            total = Task((f"counts-{side}-{name}", 0), skew.merge_counts, *refs)
            tasks += [*counts, total]
            sides.append(total.ref())
        return [*tasks, Task((name, 0), skew.place_keys, *sides, self.how, self.reducers)]


class DropUnmatched(Blockwise):
    """Outputs of one side, without copies that have no match."""

    _parameters = ["frame", "other", "keys", "other_keys"]  # noqa: RUF012

    @staticmethod
    def operation(part: Any, other: Any, keys: SideKeys, other_keys: SideKeys) -> Any:
        """Drop unmatched copies from one output."""
        copies = part[COPY].to_numpy(bool)
        part = part.drop(columns=COPY)
        if not copies.any():
            return part
        matched = ~copies
        matched[copies] = skew.has_partner(keys.of(part)[copies], other_keys.of(other))
        return part[matched]


class SpreadRows(PartitionTasks):
    """Rows of one side, with the number of the output that each goes to in place of the hash.

    A side is ``preserved`` if the join returns its rows without a partner, too. Then a column
    `COPY` marks all copies of a row but the first. If the other side is (``other_preserved``), each
    of this side's rows has to find its partners at the first output of the key.
    """

    _parameters = [  # noqa: RUF012
        *("frame", "placement", "reducers", "is_left", "preserved", "keys", "other_preserved")
    ]

    @functools.cached_property
    def _meta(self) -> Any:
        meta = self.frame._meta
        return meta.assign(**{COPY: np.zeros(len(meta), bool)}) if self.preserved else meta

    def _tasks(self) -> list[Task]:
        placement = TaskRef((self.placement._name, 0))
        keys = self.keys if self.other_preserved else None
        common = placement, self.reducers, self.is_left, self.preserved, keys
        return [
            Task((self._name, i), _spread, part, i, *common) for i, part in enumerate(self._inputs)
        ]


def _count(part: Any) -> KeyCounts:
    return skew.count_keys(part[PARTITION_COLUMN].to_numpy())


def _spread(  # noqa: PLR0913, PLR0917  one for each operand
    part: Any,
    number: int,
    placement: Placement,
    reducers: int,
    is_left: bool,  # noqa: FBT001
    preserved: bool,  # noqa: FBT001
    keys: SideKeys | None,
) -> Any:
    hashes = part[PARTITION_COLUMN].to_numpy()
    rows, outputs, copies = skew.route_rows(
        hashes,
        placement,
        reducers,
        left=is_left,
        number=number,
        keys=None if keys is None else keys.of(part),
    )
    new = {PARTITION_COLUMN: outputs}
    if preserved:
        new[COPY] = np.zeros(len(outputs), bool) if copies is None else copies
    return (part if rows is None else part.take(rows)).assign(**new)


class GroupRanks(SkewResistant):
    """Medians and quantiles of groups: a row for each group, with its keys.

    Operands: ``frame``, sorted by ``keys`` and then by `skew.VALUE`; ``ranks``, fractions, and
    None for medians; ``names``, a column for each rank; ``column``, the user's label of the value.
    """

    _parameters = ["frame", "keys", "ranks", "names", "column"]  # noqa: RUF012  as Dask has it

    @property
    def plan(self) -> str:
        """One line for people that says how groups are divided."""
        shares = ", ".join("median" if q is None else f"quantile {q:g}" for q in self.ranks)
        return (
            f"{shares} of {self.column} by group: sorted by group and value, large groups span "
            f"partitions, and the requested values are found by their ranks"
        )

    @functools.cached_property
    def _meta(self) -> Any:
        meta = self.frame._meta
        no_rows = skew.pick_ranked_rows(meta, self.keys, [], self.ranks, 0)
        return skew.finish_quantiles(meta, self.keys, [], no_rows, self.ranks, self.names, 0)

    def _tasks(self) -> list[Task]:
        name, keys, ranks, parts = self._name, self.keys, self.ranks, self._inputs
        edges = [
            Task((f"edges-{name}", i), skew.edge_groups, part, keys) for i, part in enumerate(parts)
        ]
        spanning = Task((f"spans-{name}", 0), skew.spanning_groups, *(task.ref() for task in edges))
        span = spanning.ref()
        picks = [
            Task((f"pick-{name}", i), skew.pick_ranked_rows, part, keys, span, ranks, i)
            for i, part in enumerate(parts)
        ]
        picked = Task((f"picked-{name}", 0), _concat, *(task.ref() for task in picks))
        common = keys, span, picked.ref(), ranks, self.names
        results = [
            Task((name, i), skew.finish_quantiles, part, *common, i) for i, part in enumerate(parts)
        ]
        return [*edges, spanning, *picks, picked, *results]


def _concat(*picked: Any) -> Any:
    return concat_partitions(list(picked))
