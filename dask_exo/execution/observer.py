"""Who is told what becomes of the nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterable

from dask_exo.execution.persisted import Local, Remote
from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Stage


class Watcher:
    """Is told what becomes of the nodes of the graph; this one does not care."""

    def started(self, keys: Iterable[Key]) -> None:
        """Nodes run."""

    def finished(self, key: Key, inner: Iterable[Key], held: Local | Remote | None) -> None:
        """A node and those inside it have run; ``held`` is the value of ``key``, if kept."""


def inside(stage: Stage) -> list[Key]:
    """Nodes of the graph that a shuffle runs."""
    return [stage.key, *(key for part in stage.parts for key, _ in part.nodes)]
