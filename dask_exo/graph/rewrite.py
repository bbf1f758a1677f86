"""Replace every shuffle that Dask lowered by one Exoshuffle node.

The scheduler gets the optimized expression. All of Dask's concrete shuffles subclass
``SimpleShuffle`` and take a column of ready partition numbers, so one node stands for each;
a ``HashJoinP2P`` is first turned back into two shuffles and a blockwise merge. Expressions are
immutable and interned by name, so a changed node needs a new name, and so do all above it:
the caller maps old keys to new ones by position.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from dask_exo.dask_adapter import (
    BlockwiseMerge,
    CoreExpr,
    Expr,
    HashJoinP2P,
    P2PShuffle,
    PartitionsFiltered,
    RearrangeByColumn,
    RepartitionToFewer,
    SelectPartitions,
    SimpleShuffle,
    Task,
    TaskRef,
    optimize_blockwise_fusion,
)
from dask_exo.frame import host

__all__ = ["Exchange", "ExoShuffle", "rewrite"]


class Exchange(Task):
    """The task of one whole shuffle: M partitions in, a list of R partitions out.

    The driver loop runs it as an Exoshuffle. Called as a plain task, which any other scheduler
    can do, it computes the same thing.

    Parameters
    ----------
    key : tuple
    split : Split
        How rows find their partition.
    *parts : TaskRef
        (M,) the input partitions.
    """

    __slots__ = ()

    def __init__(self, key: Any, func: Split, /, *parts: Any) -> None:
        super().__init__(key, func, *parts)

    @property
    def split(self) -> Split:
        """How rows find their partition."""
        split = self.func
        assert isinstance(split, Split)
        return split


class Split:
    """How rows find their output partition, and what an output partition looks like.

    Parameters
    ----------
    column : label or list of labels
        Column of ready partition numbers, or columns to hash.
    npartitions : int
        Number of output partitions before any selection.
    kept : tuple of int, optional
        Output partitions that are asked for, in order; None means all.
    keys : tuple of labels
        Columns that the partition numbers come from, for the integrity check.
    ignore_index : bool
        Whether output partitions get a new index.
    drop : bool
        Whether the column of partition numbers is left out of the output.
    """

    def __init__(
        self,
        column: Any,
        npartitions: int,
        kept: tuple[int, ...] | None,
        keys: tuple[Any, ...],
        *,
        ignore_index: bool,
        drop: bool,
    ) -> None:
        self.column, self.npartitions, self.kept, self.keys = column, npartitions, kept, keys
        self.ignore_index, self.drop = ignore_index, drop

    @property
    def numbers(self) -> Sequence[int]:
        """(R,) partition number of each output."""
        return range(self.npartitions) if self.kept is None else self.kept

    def only(self, used: Sequence[int]) -> Split:
        """The same, with only some of the outputs."""
        return Split(
            self.column,
            self.npartitions,
            tuple(self.numbers[j] for j in used),
            self.keys,
            ignore_index=self.ignore_index,
            drop=self.drop,
        )

    def __call__(self, *parts: Any) -> list[Any]:
        """Shuffle in one process: (M,) frames in, (R,) frames out."""
        frame = host.concat(parts)
        ids = host.destinations(frame, self.column, self.npartitions)
        if self.drop:
            frame = frame.drop(columns=self.column)
        out = [frame[ids == number] for number in self.numbers]
        return [part.reset_index(drop=True) for part in out] if self.ignore_index else out


class ExoShuffle(PartitionsFiltered, Expr):
    """A shuffle by a column of partition numbers.

    Operands as of Dask's ``SimpleShuffle``; ``drop_column`` stands for P2P's habit of leaving the
    partition numbers out.
    """

    _parameters = [  # noqa: RUF012  as Dask's expressions have it
        "frame",
        "partitioning_index",
        "npartitions_out",
        "ignore_index",
        "keys",
        "meta",
        "drop_column",
        "_partitions",
    ]
    _defaults = {"_partitions": None}  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.npartitions_out + 1)

    def _layer(self) -> dict[Any, Any]:
        split = Split(
            self.partitioning_index,
            self.npartitions_out,
            tuple(self._partitions) if self._filtered else None,
            self.keys,
            ignore_index=self.ignore_index,
            drop=self.drop_column,
        )
        frame = self.frame
        refs = [TaskRef((frame._name, i)) for i in range(frame.npartitions)]
        whole = Exchange((f"exchange-{self._name}", 0), split, *refs)
        outputs = {
            (self._name, j): Task((self._name, j), _take, TaskRef(whole.key), j)
            for j in range(len(split.numbers))
        }
        return {whole.key: whole, **outputs}


def _take(parts: list[Any], j: int) -> Any:
    return parts[j]


def rewrite(expr: CoreExpr) -> CoreExpr:
    """Replace all shuffles in an optimized expression, then fuse its blockwise chains.

    Parameters
    ----------
    expr : Expr
        Lowered, as Dask hands it to a scheduler; possibly a sequence of expressions.

    Returns
    -------
    Expr
        With one key for each key of ``expr``, in the same order.
    """
    return optimize_blockwise_fusion(_replace(expr, {}))


def _replace(expr: CoreExpr, done: dict[str, CoreExpr]) -> CoreExpr:
    """Rebuild ``expr`` bottom-up, through operands and lists of operands (``Fused.exprs``)."""
    if expr._name in done:
        return done[expr._name]
    operands = [_replace_operand(operand, done) for operand in expr.operands]
    changed = any(new is not old for new, old in zip(operands, expr.operands, strict=True))
    new = type(expr)(*operands) if changed else expr
    if isinstance(new, HashJoinP2P):
        new = _replace(_as_two_shuffles(new), done)
    elif isinstance(new, SimpleShuffle):
        new = _as_exoshuffle(new)
    done[expr._name] = new
    return new


def _replace_operand(operand: Any, done: dict[str, CoreExpr]) -> Any:
    if isinstance(operand, CoreExpr):
        return _replace(operand, done)
    if isinstance(operand, list) and any(isinstance(item, CoreExpr) for item in operand):
        new = [_replace_operand(item, done) for item in operand]
        changed = any(a is not b for a, b in zip(new, operand, strict=True))
        return new if changed else operand
    return operand


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
        bool(shuffle.ignore_index),
        keys,
        shuffle._meta,
        isinstance(shuffle, P2PShuffle),
        list(shuffle._partitions) if shuffle._filtered else None,
    )


def _as_two_shuffles(join: HashJoinP2P) -> CoreExpr:
    """The hash join as Dask lowers it for every other shuffle method."""
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
