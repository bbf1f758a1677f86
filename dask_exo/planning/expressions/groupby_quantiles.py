"""Medians and quantiles of groups in sorted partitions, however many rows a group has.

Each partition reports its first and last group. A task finds the groups that span partitions, and
the rows to pick of each. Each partition picks these, and aggregates the groups that begin in it.
Only counts and picked values leave a partition. See `dask_exo.partitions.kernels.quantiles`.
"""

from __future__ import annotations

import functools
from typing import Any

from dask_exo.dask_adapter import Task, TaskRef, concat_partitions
from dask_exo.partitions.kernels import quantiles
from dask_exo.partitions.kernels.quantiles import EdgeGroups, SpanningGroup
from dask_exo.planning.expressions.base import SkewResistant

__all__ = ["GroupRanks"]


class GroupRanks(SkewResistant):
    """Medians and quantiles of groups: a row for each group, with its keys.

    Operands: ``frame``, sorted by ``keys`` and then by `spans.VALUE`; ``asked``, a list of ranks;
    ``names``, a column for each of them; ``column``, what the user calls the value.
    """

    _parameters = ["frame", "keys", "asked", "names", "column"]  # noqa: RUF012  as Dask has it

    @property
    def plan(self) -> str:
        """One line for people that says how groups are divided."""
        shares = ", ".join("median" if one is None else f"quantile {one:g}" for one in self.asked)
        return (
            f"{shares} of {self.column} by group: sorted by group and value, groups are cut like "
            f"others, and the values asked for are found by their ranks"
        )

    @functools.cached_property
    def _meta(self) -> Any:
        meta = self.frame._meta
        none = quantiles.pick_ranked_rows(meta, self.keys, [], self.asked, 0)
        return quantiles.finish_quantiles(meta, self.keys, [], none, self.asked, self.names, 0)

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self.frame.npartitions + 1)

    def _layer(self) -> dict[Any, Any]:
        name, keys, asked = self._name, self.keys, self.asked
        parts = [TaskRef((self.frame._name, i)) for i in range(self.frame.npartitions)]
        edges = [
            Task((f"edges-{name}", i), quantiles.edge_groups, part, keys)
            for i, part in enumerate(parts)
        ]
        spanning = Task((f"spans-{name}", 0), _spans, *(one.ref() for one in edges))
        picks = [
            Task(
                (f"pick-{name}", i),
                quantiles.pick_ranked_rows,
                part,
                keys,
                spanning.ref(),
                asked,
                i,
            )
            for i, part in enumerate(parts)
        ]
        picked = Task((f"picked-{name}", 0), _together, *(one.ref() for one in picks))
        found = [
            Task(
                (name, i),
                quantiles.finish_quantiles,
                part,
                keys,
                spanning.ref(),
                picked.ref(),
                asked,
                self.names,
                i,
            )
            for i, part in enumerate(parts)
        ]
        return {task.key: task for task in [*edges, spanning, *picks, picked, *found]}


def _spans(*found: EdgeGroups | None) -> list[SpanningGroup]:
    return quantiles.spanning_groups(found)


def _together(*picked: Any) -> Any:
    return concat_partitions(list(picked))
