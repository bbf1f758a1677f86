"""Dask's callbacks (`ProgressBar`, `Profiler`, `Cache`, …), called as Dask's own schedulers do.

References: ``dask.local.get_async``, whose protocol this is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask.callbacks import unpack_callbacks
from dask.diagnostics.profile import Profiler, ResourceProfiler
from dask.diagnostics.progress import ProgressBar

from dask_exo.dask_adapter import DataNode

Key = Any
WORKER = "ray"  # which process ran a task is for Ray to know


class Callbacks:
    """The callbacks of one computation.

    Parameters
    ----------
    callbacks : sequence of tuple
        ``(start, start_state, pretask, posttask, finish)`` each.

    Attributes
    ----------
    values : bool
        Whether a callback may read values of tasks. Then every task runs in a call of its own, and
        its value is fetched to this process, as in Dask's own schedulers.
    """

    def __init__(self, callbacks: Sequence[tuple[Callable[..., Any] | None, ...]]) -> None:
        self._callbacks = callbacks
        _, self._prepared, self._before, self._after, _ = unpack_callbacks(callbacks)
        self._begun: list[tuple[Callable[..., Any] | None, ...]] = []
        self._graph: dict[Key, Any] = {}
        self._state: dict[str, Any] = {}
        known = (ProgressBar, Profiler, ResourceProfiler)
        self.values = any(type(getattr(f, "__self__", None)) not in known for f in self._after)

    def __bool__(self) -> bool:
        """Return whether there is a callback."""
        return bool(self._callbacks)

    def begin(self, graph: dict[Key, Any]) -> None:
        """Call the start callbacks; they may put values into ``graph``."""
        self._graph = graph
        for callback in self._callbacks:
            if callback[0]:
                callback[0](graph)
            self._begun.append(callback)

    def prepare(self, graph: Mapping[Key, Any]) -> None:
        """Pass all tasks of ``graph``, as it will run."""
        data = {key for key, node in graph.items() if isinstance(node, DataNode)}
        self._graph = dict(graph)
        self._state = {
            "dependencies": {key: set(node.dependencies) for key, node in graph.items()},
            "waiting": {key: set(graph[key].dependencies) for key in graph.keys() - data},
            "cache": {key: graph[key].value for key in data},
            "ready": [],
            "running": set(),
            "finished": set(),
            "released": set(),
        }
        for prepared in self._prepared:
            prepared(self._graph, self._state)

    def started(self, keys: Iterable[Key]) -> None:
        """Call back before tasks run."""
        for key in keys:
            if self._state["waiting"].pop(key, None) is not None:
                self._state["running"].add(key)
                for before in self._before:
                    before(key, self._graph, self._state)

    def finished(self, key: Key, value: Any = None) -> None:
        """Call back after a task has run."""
        if key in self._state["running"]:
            self._state["running"].remove(key)
            self._state["finished"].add(key)
            for after in self._after:
                after(key, value, self._graph, self._state, WORKER)

    def end(self, *, failed: bool) -> None:
        """Call the finish callbacks."""
        if not failed and self._state:
            self._state["finished"].update(self._state["waiting"])
            self._state["waiting"].clear()
        for callback in self._begun:
            if callback[4]:
                callback[4](self._graph, self._state, failed)
