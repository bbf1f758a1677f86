"""Joins of shuffled sides: shuffles that filter each other, and reducers that may be divided."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from dask.core import toposort

from dask_exo.dask_adapter import (
    Chunk,
    CoreExpr,
    DecomposableGroupbyAggregation,
    FunctionMap,
    GroupByChunk,
    Index,
    Projection,
    PropertyMap,
    RepartitionToFewer,
    ResetIndex,
    ToParquetData,
    TreeReduce,
    elementwise,
    sum_of_squares,
)
from dask_exo.partitions.kernels import key_filter
from dask_exo.planning.expressions import (
    ExoShuffle,
    MergePartitions,
    MergeWithAll,
    PartialGroups,
    PartitionNumbers,
    PartitionsByHash,
)
from dask_exo.shuffle.key_filters import FilterSource, JoinSide

_FILTERED = {"left": ("inner", "right", "leftsemi"), "right": ("inner", "left", "leftsemi")}
"""Joins that drop rows of a side which find no partner in the other one."""

_DEALT = {"left": ("inner", "left", "leftsemi"), "right": ("inner", "right")}
"""Joins in which each row of a side finds its partners by itself."""

_ENDS = (ExoShuffle, TreeReduce, ToParquetData)
"""Expressions whose readers need not know which partition a row was in before."""

_BY_ROW = (*vars(elementwise).values(), FunctionMap, Index, PropertyMap)
_BY_ROW += (MergeWithAll, PartitionNumbers, PartitionsByHash, RepartitionToFewer)
"""Expressions that treat each row by itself."""

_ANY_ORDER = {"sum", "prod", "min", "max", "any", "all", "count", "size", "len", "mean", "var"}
_ANY_ORDER |= {"cov", "nunique"}
"""Aggregations that do not depend on the order of rows."""


def join_keys(expr: CoreExpr) -> tuple[list[Any], list[Any]] | None:
    """Return the columns of both sides that a join compares; None for another expression."""
    if type(expr) is not MergePartitions or expr.left_index or expr.right_index:
        return None
    left, right = (on if isinstance(on, list) else [on] for on in (expr.left_on, expr.right_on))
    known = set(left) <= set(expr.left.columns) and set(right) <= set(expr.right.columns)
    return (left, right) if known else None


def link_joins(expr: CoreExpr) -> list[tuple[CoreExpr, JoinSide]]:
    """Find shuffles that only a join reads: which others may filter each, and its partner.

    A shuffle is after those that it depends on.
    """
    nodes = {node._name: node for node in expr.walk()}
    reads = {name: {n._name for n in node.dependencies()} for name, node in nodes.items()}
    readers = Counter(name for names in reads.values() for name in names)
    in_order = [nodes[name] for name in toposort(nodes, reads)]
    sources: dict[str, list[tuple[str, Any, Any]]] = defaultdict(list)
    partners: dict[str, tuple[str, bool]] = {}
    for join in nodes.values():
        if type(join) is not MergePartitions or any(map(_has_categories, join.dependencies())):
            continue  # the categories of a result depend on all values
        left, right = (_private_shuffle(side, readers) for side in (join.left, join.right))
        for name, *source in _filters(join, left, right):
            sources[name].append(tuple(source))
        dealt = [join.how in _DEALT[name] for name in ("left", "right")]
        if left is not None and right is not None and any(dealt) and _is_divisible(join, in_order):
            partners[left._name] = right._name, dealt[0]
            partners[right._name] = left._name, dealt[1]
    linked = {*partners, *sources, *(name for each in sources.values() for name, _, _ in each)}
    # fingerprints of a program contain these numbers, which are the same in the next one
    numbers = {name: str(i) for i, name in enumerate(name for name in nodes if name in linked)}
    found = []
    for name in (node._name for node in in_order if node._name in linked):
        filters = [FilterSource(numbers[source], *keys) for source, *keys in sources[name]]
        partner, is_dealt = partners.get(name, ("", False))
        side = JoinSide(numbers[name], tuple(filters), numbers.get(partner), is_dealt)
        found.append((nodes[name], side))
    return found


def _filters(
    join: CoreExpr, left: ExoShuffle | None, right: ExoShuffle | None
) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the names of a private shuffle of a join and of one that may filter it, and keys."""
    keys = join_keys(join)
    if keys is None:
        return
    for name, larger, on, other, other_on in (
        ("left", left, keys[0], join.right, keys[1]),
        ("right", right, keys[1], join.left, keys[0]),
    ):
        if larger is None or join.how not in _FILTERED[name]:
            continue
        for smaller, labels in _shuffled_keys(other, other_on):
            pairs = [
                (key, column)
                for key, column in zip(labels, on, strict=True)
                if key_filter.can_filter(smaller._meta[key].dtype, larger._meta[column].dtype)
            ]
            if pairs and smaller._name != larger._name:
                columns, others = zip(*pairs, strict=True)
                yield larger._name, smaller._name, columns, others


def _private_shuffle(side: CoreExpr, readers: Counter[str]) -> ExoShuffle | None:
    """Return the shuffle that only a join reads, as its side or through projections of it."""
    while type(side) is Projection and readers[side._name] == 1:
        side = side.frame
    return side if isinstance(side, ExoShuffle) and readers[side._name] == 1 else None


def _is_divisible(join: CoreExpr, nodes: Sequence[CoreExpr]) -> bool:
    """Return whether no result depends on which partition a row of a join is in, or on their order.

    ``nodes`` are all expressions, each after those that it reads.
    """
    moved = {join._name}
    for node in nodes:
        read = {n._name for n in node.dependencies()}
        if moved.isdisjoint(read) or type(node) in _ENDS:
            continue
        aligned = {n._name for n in node.dependencies() if n.npartitions > 1} <= moved
        if not (aligned or type(node) is MergeWithAll) or not _is_by_row(node):
            return False
        moved.add(node._name)
    return nodes[-1]._name not in moved


def _is_by_row(expr: CoreExpr) -> bool:
    """Return whether rows are treated one by one, or aggregated in a way that allows any order."""
    if type(expr) not in (Chunk, GroupByChunk, PartialGroups):
        return type(expr) in _BY_ROW or (type(expr) is ResetIndex and expr.drop)
    if expr.kind is not DecomposableGroupbyAggregation:
        return expr.kind.__module__.startswith("dask.") and expr.kind.__name__.lower() in _ANY_ORDER
    return all(
        func is sum_of_squares or getattr(options.get("func"), "method", None) in _ANY_ORDER
        for _, func, options in expr.chunk_kwargs["funcs"]
    )


def _has_categories(expr: CoreExpr) -> bool:
    return len(expr._meta.select_dtypes("category").columns) > 0


def _shuffled_keys(expr: CoreExpr, on: list[Any]) -> Iterator[tuple[ExoShuffle, list[Any]]]:
    """Yield shuffles below an expression which have all values of its columns ``on``."""
    keys = join_keys(expr)
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
