"""What all expressions that put rows into another order have in common."""

from __future__ import annotations

from typing import Any

from dask_exo.dask_adapter import Alias, CoreExpr, Expr, Projection, determine_column_projection


class Reorder(Expr):
    """Rows in another order, over all partitions; lowered to several expressions.

    Operands of all: ``frame``, the first one, and ``npartitions_out``, None for as many as there
    are.
    """

    _is_length_preserving = True

    @property
    def _pieces(self) -> int:
        return self.operand("npartitions_out") or self.frame.npartitions

    @property
    def _read(self) -> list[Any]:
        """Columns that the order depends on."""
        return []

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self._pieces + 1)

    def _simplify_up(self, parent: CoreExpr, dependents: Any) -> CoreExpr | None:
        """Read only the columns that are asked for, or that the order depends on."""
        if not isinstance(parent, Projection):
            return None
        wanted = determine_column_projection(
            self, parent, dependents, additional_columns=self._read
        )
        wanted = set(wanted) if isinstance(wanted, list) else {wanted}
        kept = [name for name in self.frame.columns if name in wanted]
        if len(kept) == len(self.frame.columns):
            return None
        narrow = type(self)(self.frame[kept], *self.operands[1:])
        return type(parent)(narrow, *parent.operands[1:])

    def _layer(self) -> dict[Any, Any]:
        """Tasks as they are lowered: Dask up to 2026.1 looks at them to tell what this is."""
        lowered = self.lower_completely()
        names = [((self._name, i), (lowered._name, i)) for i in range(lowered.npartitions)]
        return {**lowered.__dask_graph__(), **{mine: Alias(mine, its) for mine, its in names}}
