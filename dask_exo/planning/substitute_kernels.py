"""Substitute kernels: faster functions, with equal results, for those of Dask's expressions."""

from __future__ import annotations

import functools
from typing import Any

from dask_exo.dask_adapter import (
    Aggregate,
    ArrowDatasetEngine,
    AssignPartitioningIndex,
    BlockwiseMerge,
    BroadcastJoin,
    CoreExpr,
    DecomposableGroupbyAggregation,
    GroupByChunk,
    RepartitionQuantiles,
    ResetIndex,
    SetPartitions,
    SingleAggregation,
    SortIndexBlockwise,
    SortValuesBlockwise,
    Task,
    ToParquetData,
    apply_funcs,
    mean_chunk,
    merge_chunk,
    merge_chunk_wrapper,
    percentiles_summary,
)
from dask_exo.partitions.kernels import array_join, radix_groupby
from dask_exo.partitions.kernels.hash_partition import assign_partitions
from dask_exo.partitions.kernels.parquet import ParquetEngine
from dask_exo.partitions.kernels.partial_aggregation import partial_groups
from dask_exo.partitions.kernels.range_partition import (
    partition_numbers,
    sort_index,
    sort_values,
    summary,
)


def substitute(expr: CoreExpr) -> CoreExpr:
    """Replace an expression if there is one with a faster kernel.

    Parameters
    ----------
    expr : Expr
        Lowered. Its dependencies stay.
    """
    kind = type(expr)
    if kind in _SUBSTITUTES:
        return _SUBSTITUTES[kind](*expr.operands)
    if kind is ToParquetData and expr.engine is ArrowDatasetEngine:
        return expr.substitute_parameters({"engine": ParquetEngine})
    if kind is Aggregate and _method(expr.aggregate) in _GROUPS:
        return AggregateGroups(*expr.operands)
    if kind is ResetIndex and _groups(expr.frame) and not expr.drop:
        chunk, first = expr.frame, len(GroupByChunk._parameters)
        return PartialGroups(*chunk.operands[:first], expr._kwargs, *chunk.operands[first:])
    return expr


class PartitionNumbers(SetPartitions):
    """The partition of each row by sorted divisions, found faster than by Dask."""

    operation = staticmethod(partition_numbers)


class PartitionsByHash(AssignPartitioningIndex):
    """The partition of each row by a hash, found faster than by Dask."""

    operation = staticmethod(assign_partitions)  # type: ignore[assignment]


class Quantiles(RepartitionQuantiles):
    """Quantiles of the values that divide them, found faster than by Dask."""

    def _layer(self) -> dict[Any, Any]:
        return {
            key: (summary, *task[1:]) if task[0] is percentiles_summary else task
            for key, task in super()._layer().items()
        }


class SortIndex(SortIndexBlockwise):
    """The rows of each partition in the order of the index, sorted faster than by pandas."""

    operation = staticmethod(sort_index)


class SortValues(SortValuesBlockwise):
    """The rows of each partition in the order of some columns, taken faster than by pandas."""

    operation = staticmethod(sort_values)


class MergePartitions(BlockwiseMerge):
    """Partitions joined one by one, with keys looked up where that can be."""

    def _task(self, name: Any, index: int) -> Task:
        task = super()._task(name, index)
        if task.func is not merge_chunk:
            return task
        return Task(task.key, array_join.merge, *task.args, **task.kwargs)


class MergeWithAll(BroadcastJoin):
    """Each partition joined with all of a small side, with keys looked up where that can be."""

    def _layer(self) -> dict[Any, Any]:
        return {
            key: (task[0], array_join.merge, *task[2:]) if merge_chunk_wrapper in task else task
            for key, task in super()._layer().items()
        }


class PartialGroups(GroupByChunk):
    """The groups of each partition with their keys as columns, where that makes them fewer rows.

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


class AggregateGroups(Aggregate):
    """The groups of each partition after a shuffle, found a cacheful at a time."""

    @property
    def operation(self) -> Any:  # type: ignore[override]
        """Function of one partition."""
        return functools.partial(radix_groupby.aggregate, whole=self.aggregate)

    @functools.cached_property
    def _kwargs(self) -> dict[str, Any]:
        return {"options": self.aggregate_kwargs or {}}


_GROUPS = [
    vars(kind)["aggregate"].__func__ for kind in (DecomposableGroupbyAggregation, SingleAggregation)
]


_SUBSTITUTES: dict[type[CoreExpr], type[CoreExpr]] = {
    AssignPartitioningIndex: PartitionsByHash,
    BlockwiseMerge: MergePartitions,
    BroadcastJoin: MergeWithAll,
    SetPartitions: PartitionNumbers,
    RepartitionQuantiles: Quantiles,
    SortIndexBlockwise: SortIndex,
    SortValuesBlockwise: SortValues,
}


def _groups(expr: CoreExpr) -> bool:
    """Return whether partitions are grouped by Dask's own functions."""
    if type(expr) is not GroupByChunk:
        return False
    single = vars(SingleAggregation)["chunk"].__func__
    return expr.chunk in (apply_funcs, mean_chunk) or _method(expr.chunk) is single


def _method(function: Any) -> Any:
    """Return the function of a class method."""
    return getattr(function, "__func__", None)
