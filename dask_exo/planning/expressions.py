"""Expressions that take the place of Dask's in a rewritten expression."""

from __future__ import annotations

import functools
from typing import Any

from dask_exo.dask_adapter import (
    Alias,
    ArrowDatasetEngine,
    AssignPartitioningIndex,
    BlockwiseMerge,
    BroadcastJoin,
    CoreExpr,
    Expr,
    GroupByChunk,
    PartitionsFiltered,
    RepartitionQuantiles,
    ResetIndex,
    SetPartitions,
    SingleAggregation,
    SortIndexBlockwise,
    Task,
    TaskRef,
    ToParquetData,
    apply_funcs,
    mean_chunk,
    merge_chunk,
    merge_chunk_wrapper,
    percentiles_summary,
)
from dask_exo.partitions.kernels import array_join
from dask_exo.partitions.kernels.groupby import partial_groups
from dask_exo.partitions.kernels.hash_partition import assign_partitions
from dask_exo.partitions.kernels.parquet import ParquetEngine
from dask_exo.partitions.kernels.range_partition import partition_numbers, sort_index, summary
from dask_exo.planning.partitioners import RowPartitioner, ShuffleNode, take


class ExoShuffle(PartitionsFiltered, Expr):
    """A shuffle by a column of partition numbers.

    Operands are those of Dask's ``SimpleShuffle``, and ``drop_column``: whether the output lacks
    the partition numbers, as with P2P; ``runs``: the keys by which the rows of each input are
    sorted; ``join``: see `Partitioner`.
    """

    _parameters = [  # noqa: RUF012  as Dask's expressions have it
        *("frame", "partitioning_index", "npartitions_out", "ignore_index", "keys", "meta"),
        *("drop_column", "runs", "_partitions", "join"),
    ]
    _defaults = {"runs": None, "_partitions": None, "join": None}  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.npartitions_out + 1)

    def _layer(self) -> dict[Any, Any]:
        numbers = self._partitions if self._filtered else range(self.npartitions_out)
        first = {number: j for j, number in reversed(list(enumerate(numbers)))}
        slots = {number: slot for slot, number in enumerate(sorted(first))}
        partitioner = RowPartitioner(
            column=self.partitioning_index,
            count=self.npartitions_out,
            selected=tuple(slots) if self._filtered else None,
            keys=self.keys,
            ignore_index=self.ignore_index,
            drop=self.drop_column,
            runs=self.runs,
            join=self.join,
        )
        frame, name = self.frame, self._name
        refs = [TaskRef((frame._name, i)) for i in range(frame.npartitions)]
        shuffle = ShuffleNode((f"exchange-{name}", 0), partitioner, *refs)
        layer: dict[Any, Any] = {shuffle.key: shuffle}
        for j, number in enumerate(numbers):
            if first[number] == j:
                layer[name, j] = Task((name, j), take, TaskRef(shuffle.key), slots[number])
            else:  # the same partition is requested twice
                layer[name, j] = Alias((name, j), (name, first[number]))
        return layer


class Once(Expr):
    """A single partition that other partitions read, in a task of its own.

    Blockwise fusion would compute it again for each of them.
    """

    _parameters = ["frame"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _divisions(self) -> tuple[Any, ...]:
        return tuple(self.frame.divisions)

    def _layer(self) -> dict[Any, Any]:
        return {(self._name, 0): Alias((self._name, 0), (self.frame._name, 0))}


def substitute(expr: CoreExpr) -> CoreExpr:
    """Replace a lowered expression by one with a faster kernel, if any; keep its dependencies."""
    kind = type(expr)
    if kind in _SUBSTITUTES:
        return _SUBSTITUTES[kind](*expr.operands)
    if kind is ToParquetData and expr.engine is ArrowDatasetEngine:
        return expr.substitute_parameters({"engine": ParquetEngine})
    if kind is ResetIndex and _groups(expr.frame) and not expr.drop:
        chunk, first = expr.frame, len(GroupByChunk._parameters)
        return PartialGroups(*chunk.operands[:first], expr._kwargs, *chunk.operands[first:])
    return expr


class PartitionNumbers(SetPartitions):
    """The partition of each row by sorted divisions, faster than Dask's."""

    operation = staticmethod(partition_numbers)


class PartitionsByHash(AssignPartitioningIndex):
    """The partition of each row by a hash, faster than Dask's."""

    operation = staticmethod(assign_partitions)  # type: ignore[assignment]


class Quantiles(RepartitionQuantiles):
    """Quantiles of the column that divides the rows, faster than Dask's."""

    def _layer(self) -> dict[Any, Any]:
        return {
            key: (summary, *task[1:]) if task[0] is percentiles_summary else task
            for key, task in super()._layer().items()
        }


class SortIndex(SortIndexBlockwise):
    """The rows of each partition in the order of the index, sorted faster than by pandas."""

    operation = staticmethod(sort_index)


class MergePartitions(BlockwiseMerge):
    """Partitions joined one by one, with keys looked up where possible."""

    def _task(self, name: Any, index: int) -> Task:
        task = super()._task(name, index)
        if task.func is not merge_chunk:
            return task
        return Task(task.key, array_join.merge, *task.args, **task.kwargs)


class MergeWithAll(BroadcastJoin):
    """Each partition joined with all of a small side, with keys looked up where possible."""

    def _layer(self) -> dict[Any, Any]:
        return {
            key: (task[0], array_join.merge, *task[2:]) if merge_chunk_wrapper in task else task
            for key, task in super()._layer().items()
        }


class PartialGroups(GroupByChunk):
    """The groups of each partition with their keys as columns, where these are fewer rows.

    Operands as of Dask's ``GroupByChunk``, and those of the ``ResetIndex`` above it.
    """

    _parameters = [*GroupByChunk._parameters, "reset"]  # noqa: RUF012  as Dask's expressions

    @functools.cached_property
    def operation(self) -> Any:  # type: ignore[override]
        """Function of one partition."""
        return functools.partial(
            partial_groups, chunk=self.chunk, options=self.chunk_kwargs, **self.operand("reset")
        )

    @functools.cached_property
    def _kwargs(self) -> dict[str, Any]:
        return {}

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.frame.npartitions + 1)


_SUBSTITUTES: dict[type[CoreExpr], type[CoreExpr]] = {
    AssignPartitioningIndex: PartitionsByHash,
    BlockwiseMerge: MergePartitions,
    BroadcastJoin: MergeWithAll,
    SetPartitions: PartitionNumbers,
    RepartitionQuantiles: Quantiles,
    SortIndexBlockwise: SortIndex,
}


def _groups(expr: CoreExpr) -> bool:
    """Return whether partitions are grouped by Dask's own functions."""
    if type(expr) is not GroupByChunk:
        return False
    single = vars(SingleAggregation)["chunk"].__func__
    method = getattr(expr.chunk, "__func__", None)
    return expr.chunk in (apply_funcs, mean_chunk) or method is single
