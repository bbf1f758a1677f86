"""What all expressions that put rows into another order have in common."""

from __future__ import annotations

from typing import Any

from dask_exo.dask_adapter import Alias, Expr


class Reorder(Expr):
    """Rows in another order, over all partitions; lowered to several expressions."""

    _is_length_preserving = True

    def _layer(self) -> dict[Any, Any]:
        """Tasks as they are lowered: Dask up to 2026.1 looks at them to tell what this is."""
        lowered = self.lower_completely()
        names = [((self._name, i), (lowered._name, i)) for i in range(lowered.npartitions)]
        return {**lowered.__dask_graph__(), **{mine: Alias(mine, its) for mine, its in names}}
