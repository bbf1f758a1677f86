"""A dataframe whose partitions shall be kept: ``ddf.exo.checkpoint()``."""

from __future__ import annotations

from typing import Any

from dask_exo.dask_adapter import Blockwise, Task, TaskRef
from dask_exo.execution.checkpoints.outputs import Mark


class Marked(Blockwise):
    """The same partitions, each through a task that `dask_exo.planning.resume` finds."""

    _parameters = ["frame"]  # noqa: RUF012  as Dask's expressions have it
    _preserves_partitioning_information = True

    @property
    def _meta(self) -> Any:
        return self.frame._meta

    def _task(self, name: Any, index: int) -> Task:
        return Task(name, Mark(), TaskRef((self.frame._name, index)))
