"""Random shuffle of rows, for training.

The output of each row is drawn from a generator that is seeded by the partition and the seed, and
each output is permuted. So the same seed gives the same order on any scheduler, for any columns.

References: Exoshuffle section 3.3.3.2, figure 3.2d.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from dask_exo.dask_adapter import CoreExpr, Expr, Shuffle, Task, TaskRef
from dask_exo.partitions.pandas_partition import PARTITION_COLUMN
from dask_exo.planning.expressions.base import Reorder

__all__ = ["DrawNumbers", "MixRows", "ShuffleRows"]


class ShuffleRows(Reorder):
    """Rows in random order over all partitions; a seed (a tuple of numbers) determines it."""

    _parameters = ["frame", "seed", "npartitions_out"]  # noqa: RUF012  as Dask's expressions have it

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _lower(self) -> CoreExpr:
        drawn = DrawNumbers(self.frame, self.seed, self._count_out)
        shuffled = Shuffle(drawn, PARTITION_COLUMN, self._count_out, False, "tasks")  # noqa: FBT003
        return MixRows(shuffled, self.seed, self._meta)


class DrawNumbers(Expr):
    """Rows with a column of the output number of each.

    The other columns are called "0", "1", ..., so that no user label collides.
    """

    _parameters = ["frame", "seed", "pieces"]  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return _draw(self.frame._meta, self.seed, 0, self.pieces)

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.frame.npartitions + 1)

    def _layer(self) -> dict[Any, Any]:
        name, below = self._name, self.frame._name
        tasks = [
            Task((name, i), _draw, TaskRef((below, i)), self.seed, i, self.pieces)
            for i in range(self.frame.npartitions)
        ]
        return {task.key: task for task in tasks}


class MixRows(Expr):
    """Outputs of a shuffle by drawn numbers, each in random order."""

    _parameters = ["frame", "seed", "meta"]  # noqa: RUF012

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.frame.npartitions + 1)

    def _layer(self) -> dict[Any, Any]:
        name, below = self._name, self.frame._name
        tasks = [
            Task((name, j), _mix, TaskRef((below, j)), self.seed, j, self._meta.columns)
            for j in range(self.frame.npartitions)
        ]
        return {task.key: task for task in tasks}


def _draw(part: Any, seed: tuple[int, ...], i: int, pieces: int) -> Any:
    numbers = np.random.default_rng([*seed, 0, i]).integers(0, pieces, len(part))
    plain = part.set_axis([str(i) for i in range(part.shape[1])], axis=1)
    return plain.assign(**{PARTITION_COLUMN: numbers})


def _mix(part: Any, seed: tuple[int, ...], j: int, labels: Any) -> Any:
    order = np.random.default_rng([*seed, 1, j]).permutation(len(part))
    return part.drop(columns=PARTITION_COLUMN).take(order).set_axis(labels, axis=1)
