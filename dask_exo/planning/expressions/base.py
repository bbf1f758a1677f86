"""Base classes of expressions that reorder rows or spread heavy hitters; the checkpoint mark."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from dask_exo.dask_adapter import (
    Alias,
    Blockwise,
    CoreExpr,
    Expr,
    Projection,
    Task,
    TaskRef,
    determine_column_projection,
)
from dask_exo.execution.checkpoints.outputs import CheckpointMark


class Reorder(Expr):
    """Rows in another order, over all partitions; lowered to several expressions.

    Operands of all: ``frame``, the first one, and ``npartitions_out``, None for as many as
    ``frame`` has.
    """

    _is_length_preserving = True

    @property
    def _count_out(self) -> int:
        return self.operand("npartitions_out") or self.frame.npartitions

    @property
    def _order_columns(self) -> list[Any]:
        """Columns that the order depends on."""
        return []

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self._count_out + 1)

    def _simplify_up(self, parent: CoreExpr, dependents: Any) -> CoreExpr | None:
        """Read only the columns that the readers need, or that the order depends on."""
        if not isinstance(parent, Projection):
            return None
        needed = determine_column_projection(
            self, parent, dependents, additional_columns=self._order_columns
        )
        needed = set(needed) if isinstance(needed, list) else {needed}
        columns = [name for name in self.frame.columns if name in needed]
        if len(columns) == len(self.frame.columns):
            return None
        narrow = type(self)(self.frame[columns], *self.operands[1:])
        return type(parent)(narrow, *parent.operands[1:])

    def _layer(self) -> dict[Any, Any]:
        """Return the lowered tasks: Dask up to 2026.1 infers the type of collection from them."""
        lowered = self.lower_completely()
        names = [((self._name, i), (lowered._name, i)) for i in range(lowered.npartitions)]
        return {**lowered.__dask_graph__(), **{name: Alias(name, to) for name, to in names}}


class SkewResistant(Expr):
    """Part of an operation in which a heavy hitter makes no large partition."""

    @property
    @abstractmethod
    def plan(self) -> str:
        """One line for people that says how heavy hitters are spread."""


class CheckpointExpr(Blockwise):
    """The same partitions, each through a task that `dask_exo.planning.resume` finds.

    ``ddf.exo.checkpoint()`` makes it.
    """

    _parameters = ["frame"]  # noqa: RUF012  as Dask's expressions have it
    _preserves_partitioning_information = True

    @property
    def _meta(self) -> Any:
        return self.frame._meta

    def _task(self, name: Any, index: int) -> Task:
        return Task(name, CheckpointMark(), TaskRef((self.frame._name, index)))
