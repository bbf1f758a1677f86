"""Replace every shuffle that Dask lowered by one Exoshuffle node.

The scheduler gets the optimized expression. All of Dask's concrete shuffles subclass
``SimpleShuffle`` and take a column of ready partition numbers, so one node stands for each;
a ``HashJoinP2P`` is first turned back into two shuffles and a blockwise merge. Expressions are
immutable and interned by name, so a changed node needs a new name, and so do all above it:
the caller maps old keys to new ones by position.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from dask_exo.dask_adapter import (
    Alias,
    ArrowDatasetEngine,
    AssignPartitioningIndex,
    BlockwiseMerge,
    BroadcastJoin,
    CoreExpr,
    Expr,
    Fused,
    GroupByChunk,
    HashJoinP2P,
    P2PShuffle,
    PartitionsFiltered,
    Projection,
    RearrangeByColumn,
    RepartitionQuantiles,
    RepartitionToFewer,
    ResetIndex,
    SelectPartitions,
    SetPartitions,
    SimpleShuffle,
    SingleAggregation,
    SortIndexBlockwise,
    Task,
    TaskRef,
    TaskShuffle,
    ToParquetData,
    apply_funcs,
    elementwise,
    is_valid_blockwise_op,
    mean_chunk,
    merge_chunk,
    merge_chunk_wrapper,
    optimize_blockwise_fusion,
    percentiles_summary,
)
from dask_exo.partitions.kernels import array_join, key_filter
from dask_exo.partitions.kernels.groupby import partial_groups
from dask_exo.partitions.kernels.hash_partition import assign_partitions
from dask_exo.partitions.kernels.parquet import ParquetEngine
from dask_exo.partitions.kernels.range_partition import partition_numbers, sort_index, summary
from dask_exo.partitions.protocol import PARTITION_COLUMN
from dask_exo.planning.partitioners import RowPartitioner, ShuffleNode, take
from dask_exo.planning.reorder import NumberRows
from dask_exo.shuffle.key_filters import FilterSource, JoinSide


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


def rewrite(expr: CoreExpr, compiled: Mapping[str, CoreExpr] | None = None) -> CoreExpr:
    """Replace all shuffles in a lowered expression, then fuse its blockwise chains.

    The new expression has one key for each key of ``expr``, in the same order. Expressions whose
    names are in ``compiled`` are replaced too.
    """
    expr = _drop_labels(_drop_numbers(_replace(expr, {**(compiled or {})})))
    return optimize_blockwise_fusion(_link_joins(expr))


def _readers(expr: CoreExpr) -> list[tuple[ExoShuffle, list[CoreExpr]]]:
    """Return each shuffle below an expression, and those that read it."""
    shuffles: dict[str, ExoShuffle] = {}
    readers: dict[str, dict[str, CoreExpr]] = defaultdict(dict)
    for node in expr.walk():
        for dependency in node.dependencies():
            if isinstance(dependency, ExoShuffle):
                shuffles[dependency._name] = dependency
                readers[dependency._name][node._name] = node
    return [(shuffle, list(readers[name].values())) for name, shuffle in shuffles.items()]


def _drop_labels(expr: CoreExpr) -> CoreExpr:
    """Drop the labels of rows in shuffles whose readers all join by columns."""
    replacements: dict[str, CoreExpr] = {
        shuffle._name: shuffle.substitute_parameters({"ignore_index": True})
        for shuffle, readers in _readers(expr)
        if not shuffle.ignore_index
        and all(_join_keys(reader) and reader.how in _JOINS for reader in readers)
    }
    return _replace(expr, replacements) if replacements else expr


def _join_keys(expr: CoreExpr) -> tuple[list[Any], list[Any]] | None:
    """Return the columns of both sides that a join compares; None for another expression."""
    if type(expr) is not MergePartitions or expr.left_index or expr.right_index:
        return None
    left, right = (on if isinstance(on, list) else [on] for on in (expr.left_on, expr.right_on))
    known = set(left) <= set(expr.left.columns) and set(right) <= set(expr.right.columns)
    return (left, right) if known else None


_JOINS = ("inner", "left", "right", "outer")  # that make the labels of rows anew
_FILTERED = {"left": ("inner", "right", "leftsemi"), "right": ("inner", "left", "leftsemi")}
"""Joins that drop rows of a side which find no partner in the other one."""


def _link_joins(expr: CoreExpr) -> CoreExpr:
    """Tell shuffles which others may filter their rows, since only a join reads them."""
    nodes = {node._name: node for node in expr.walk()}.values()
    readers = Counter(name for node in nodes for name in {n._name for n in node.dependencies()})
    linked: dict[str, CoreExpr] = {}
    sources: dict[str, list[tuple[str, Any, Any]]] = defaultdict(list)
    for join in nodes:
        keys = _join_keys(join)
        if keys is None or any(map(_has_categories, join.dependencies())):
            continue  # the categories of a result depend on all values
        sides = ("left", join.left, keys[0]), ("right", join.right, keys[1])
        for (name, side, on), (_, other, other_on) in (sides, sides[::-1]):
            larger = side
            while type(larger) is Projection and readers[larger._name] == 1:
                larger = larger.frame
            private = isinstance(larger, ExoShuffle) and readers[larger._name] == 1
            if not private or join.how not in _FILTERED[name]:
                continue
            for smaller, labels in _shuffled_keys(other, other_on):
                pairs = [
                    (key, column)
                    for key, column in zip(labels, on, strict=True)
                    if key_filter.can_filter(smaller._meta[key].dtype, larger._meta[column].dtype)
                ]
                if pairs and smaller._name != larger._name:
                    linked |= {larger._name: larger, smaller._name: smaller}
                    columns, others = zip(*pairs, strict=True)
                    sources[larger._name].append((smaller._name, columns, others))
    # fingerprints of a program contain these numbers, which are the same in the next one
    numbers = {name: str(i) for i, name in enumerate(linked)}
    replacements: dict[str, CoreExpr] = {}
    for name, shuffle in linked.items():
        filters = [FilterSource(numbers[source], *keys) for source, *keys in sources[name]]
        replacements[name] = shuffle.substitute_parameters(
            {"join": JoinSide(numbers[name], tuple(filters))}
        )
    return _replace(expr, replacements) if replacements else expr


def _has_categories(expr: CoreExpr) -> bool:
    return len(expr._meta.select_dtypes("category").columns) > 0


def _shuffled_keys(expr: CoreExpr, on: list[Any]) -> Iterator[tuple[ExoShuffle, list[Any]]]:
    """Yield shuffles below an expression which have all values of its columns ``on``."""
    keys = _join_keys(expr)
    if isinstance(expr, ExoShuffle):
        yield expr, on
    elif type(expr) in (Projection, elementwise.Filter) and set(on) <= set(expr.frame.columns):
        yield from _shuffled_keys(expr.frame, on)
    elif keys is not None:
        same = {a for a, b in zip(*keys, strict=True) if a == b}  # one column of the result
        sides = [(expr.left, expr.right)] * (expr.how in ("inner", "left", "leftsemi"))
        sides += [(expr.right, expr.left)] * (expr.how in ("inner", "right"))
        for side, other in sides:
            if set(on) <= set(side.columns) - (set(other.columns) - same):
                yield from _shuffled_keys(side, on)


def _drop_numbers(expr: CoreExpr) -> CoreExpr:
    """Drop the partition numbers in shuffles whose readers all drop them."""
    replacements: dict[str, CoreExpr] = {}
    for shuffle, parents in _readers(expr):
        if shuffle.drop_column:
            continue
        numbered = shuffle.partitioning_index in (PARTITION_COLUMN, [PARTITION_COLUMN])
        narrow = all(isinstance(parent, Projection) for parent in parents)
        if not numbered or not narrow or any(PARTITION_COLUMN in p.columns for p in parents):
            continue
        narrowed = shuffle.substitute_parameters(
            {"drop_column": True, "meta": shuffle._meta.drop(columns=PARTITION_COLUMN)}
        )
        for parent in parents:
            columns = parent.operand("columns")
            same = isinstance(columns, list) and parent.columns == narrowed.columns
            replacements[parent._name] = narrowed if same else Projection(narrowed, columns)
    return _replace(expr, replacements) if replacements else expr


def _replace(expr: CoreExpr, replacements: dict[str, CoreExpr]) -> CoreExpr:
    """Rebuild ``expr`` bottom-up, through operands and lists of operands (``Fused.exprs``)."""
    if expr._name in replacements:
        return replacements[expr._name]
    operands = [_replace_operand(operand, replacements) for operand in expr.operands]
    changed = any(new is not old for new, old in zip(operands, expr.operands, strict=True))
    new = type(expr)(*operands) if changed else expr
    if isinstance(new, HashJoinP2P):
        new = _replace(_as_two_shuffles(new), replacements)
    elif isinstance(new, SimpleShuffle):
        new = _as_exoshuffle(new)
    else:
        new = substitute(new)
    if isinstance(new, Fused) and changed:
        new = _without_unread(new)
    new = replacements[expr._name] = _read_once(new)
    return new


def _read_once(expr: CoreExpr) -> CoreExpr:
    """Keep single partitions that many others read out of their fusion."""
    if not is_valid_blockwise_op(expr) or expr.npartitions == 1:
        return expr
    alone = {
        operand._name
        for operand in expr.dependencies()
        if is_valid_blockwise_op(operand) and operand.npartitions == 1
    }
    operands = [
        Once(operand) if isinstance(operand, CoreExpr) and operand._name in alone else operand
        for operand in expr.operands
    ]
    return type(expr)(*operands) if alone else expr


def _replace_operand(operand: Any, replacements: dict[str, CoreExpr]) -> Any:
    if isinstance(operand, CoreExpr):
        return _replace(operand, replacements)
    if isinstance(operand, list) and any(isinstance(item, CoreExpr) for item in operand):
        new = [_replace_operand(item, replacements) for item in operand]
        changed = any(a is not b for a, b in zip(new, operand, strict=True))
        return new if changed else operand
    return operand


def _without_unread(fused: Fused) -> CoreExpr:
    """Drop expressions of a fused one that none of the others reads any more."""
    read, unread = fused.exprs[:1], fused.exprs[1:]
    for expr in read:
        dependencies = {expr._name for expr in expr.dependencies()}
        read += [expr for expr in unread if expr._name in dependencies]
        unread = [expr for expr in unread if expr._name not in dependencies]
    return Fused(read, *fused.operands[1:]) if unread else fused


def _as_exoshuffle(shuffle: SimpleShuffle) -> ExoShuffle:
    frame, column = shuffle.frame, shuffle.partitioning_index
    if type(frame) is RepartitionToFewer and frame.new_partitions == shuffle.npartitions_out:
        frame = frame.frame  # Dask narrows before its own shuffles; an Exoshuffle need not
    keys = shuffle.original_partitioning_index
    keys = tuple(keys) if isinstance(keys, list) else ()
    return ExoShuffle(
        frame,
        column,
        shuffle.npartitions_out,
        bool(shuffle.ignore_index) and isinstance(shuffle, TaskShuffle),  # the others keep it
        keys,
        shuffle._meta,
        isinstance(shuffle, P2PShuffle),
        frame.keys if isinstance(frame, NumberRows) else None,
        list(shuffle._partitions) if shuffle._filtered else None,
    )


def _as_two_shuffles(join: HashJoinP2P) -> CoreExpr:
    """Lower a hash join as Dask does for every other shuffle method."""
    npartitions = join.operand("_npartitions")
    left, right = (
        RearrangeByColumn(
            side, on, npartitions_out=npartitions, method="tasks", index_shuffle=index
        )
        for side, on, index in (
            (join.left, join.shuffle_left_on, join.left_index),
            (join.right, join.shuffle_right_on, join.right_index),
        )
    )
    names = BlockwiseMerge._parameters
    kwargs = {name: join.operand(name) for name in names if name in HashJoinP2P._parameters}
    merged: CoreExpr = BlockwiseMerge(
        **{**kwargs, "left": left, "right": right, "_npartitions": npartitions}
    )
    if join._filtered:
        merged = SelectPartitions(merged, list(join._partitions))
    return merged.simplify().lower_completely().simplify()


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
