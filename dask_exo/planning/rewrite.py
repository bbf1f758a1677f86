"""Replace every shuffle that Dask lowered by one Exoshuffle node.

The scheduler gets the optimized expression. All of Dask's concrete shuffles subclass
``SimpleShuffle`` and take a column of ready partition numbers, so one node stands for each;
a ``HashJoinP2P`` is first turned back into two shuffles and a blockwise merge. Expressions are
immutable and interned by name, so a changed node needs a new name, and so do all above it:
the caller maps old keys to new ones by position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dask_exo.dask_adapter import (
    BlockwiseMerge,
    CoreExpr,
    Fused,
    HashJoinP2P,
    P2PShuffle,
    Projection,
    RearrangeByColumn,
    RepartitionToFewer,
    SelectPartitions,
    SimpleShuffle,
    TaskShuffle,
    is_valid_blockwise_op,
    optimize_blockwise_fusion,
)
from dask_exo.partitions.protocol import PARTITION_COLUMN
from dask_exo.planning.expressions import ExoShuffle, Once, substitute
from dask_exo.planning.joins import join_keys, link_joins
from dask_exo.planning.reorder import NumberRows


def rewrite(expr: CoreExpr, compiled: Mapping[str, CoreExpr] | None = None) -> CoreExpr:
    """Replace all shuffles in a lowered expression, then fuse its blockwise chains.

    The new expression has one key for each key of ``expr``, in the same order. Expressions whose
    names are in ``compiled`` are replaced too.
    """
    expr = _drop_labels(_drop_numbers(_replace(expr, {**(compiled or {})})))
    return optimize_blockwise_fusion(_link_joins(expr))


def _link_joins(expr: CoreExpr) -> CoreExpr:
    """Tell the shuffles of joins about each other."""
    replacements: dict[str, CoreExpr] = {}
    for shuffle, side in link_joins(expr):
        new = _replace(shuffle, replacements).substitute_parameters({"join": side})
        replacements[shuffle._name] = new
    return _replace(expr, replacements)


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
        and all(join_keys(reader) and reader.how in _JOINS for reader in readers)
    }
    return _replace(expr, replacements) if replacements else expr


_JOINS = ("inner", "left", "right", "outer")  # that make the labels of rows anew


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
    new = _rebuilt(expr, operands) if changed else expr
    if isinstance(new, HashJoinP2P):
        new = _replace(_as_two_shuffles(new), replacements)
    elif isinstance(new, SimpleShuffle):
        new = _as_exoshuffle(new)
    else:
        new = substitute(new)
    if isinstance(new, Fused) and changed:
        new = _fused_again(new)
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
    return _rebuilt(expr, operands) if alone else expr


def _rebuilt(expr: CoreExpr, operands: list[Any]) -> CoreExpr:
    """Return an expression with other operands, whose metadata and divisions are the same.

    To infer them again takes Dask a tenth of the time of planning.
    """
    new: CoreExpr = type(expr)(*operands)
    new.__dict__.update({k: expr.__dict__[k] for k in ("_meta", "divisions") if k in expr.__dict__})
    return new


def _replace_operand(operand: Any, replacements: dict[str, CoreExpr]) -> Any:
    if isinstance(operand, CoreExpr):
        return _replace(operand, replacements)
    if isinstance(operand, list) and any(isinstance(item, CoreExpr) for item in operand):
        new = [_replace_operand(item, replacements) for item in operand]
        changed = any(a is not b for a, b in zip(new, operand, strict=True))
        return new if changed else operand
    return operand


def _fused_again(fused: Fused) -> CoreExpr:
    """Drop expressions of a fused one that no other reads any more; add what they read now.

    An expression that is persisted, or computed after ``optimize()``, comes with its fusion.
    """
    read, unread = fused.exprs[:1], fused.exprs[1:]
    for expr in read:
        dependencies = {expr._name for expr in expr.dependencies()}
        read += [expr for expr in unread if expr._name in dependencies]
        unread = [expr for expr in unread if expr._name not in dependencies]
    once = {d._name: d for expr in read for d in expr.dependencies() if isinstance(d, Once)}
    return Fused(read, *fused.operands[1:], *once.values()) if unread or once else fused


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
