"""Normalize what Dask hands a scheduler to ``{key: GraphNode}``, culled to the requested keys."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Set
from typing import Any

from dask.core import flatten
from dask.utils import key_split

from dask_exo.compile.compiled import NOTHING, Compilation, compiled
from dask_exo.dask_adapter import CoreExpr, GraphNode, Task, convert_legacy_graph
from dask_exo.execution.persisted import fetch, promise_of
from dask_exo.planning import graph_passes, placement
from dask_exo.planning.rewrite import rewrite

Key = Any  # Dask's: str, bytes, int, float, or a tuple of keys
Graph = dict[Key, GraphNode]

# Before Python 3.12 ``cached_property`` takes a lock for each property of a class, and Dask's
# expressions have many: two threads that walk expressions can lock each other out.
_graph_lock = threading.RLock()  # making a graph may compute: metadata of `from_map`, for example


def group_of(key: Key) -> str:
    """Return the name of a key's collection, whose tasks have similar durations and sizes."""
    return str(key[0]) if isinstance(key, tuple) else str(key_split(key))


def compilation(dsk: Any, mode: str) -> Compilation:
    """Find what of an expression Polars can do; ``mode`` is the value of ``exo.compile``."""
    if mode == "off" or not isinstance(dsk, CoreExpr):
        return NOTHING
    with _graph_lock:
        return compiled(dsk, verify=mode == "verify")


def normalize(
    dsk: Any, keys: Any, replacements: Mapping[str, CoreExpr] | None = None
) -> tuple[Graph, dict[Key, Key], Set[Key]]:
    """Materialize an expression or graph, convert and cull it, and run the passes over it.

    Return the nodes that ``keys`` depend on; the key under which each of ``keys`` is in that graph,
    since rewriting renames; and the tasks that need a GPU, because they read or return partitions
    on one. ``replacements`` are those of a `compilation`.
    """
    wanted = list(flatten(keys)) if isinstance(keys, list) else [keys]
    names = {key: key for key in wanted}
    places: placement.Places = {}
    if isinstance(dsk, CoreExpr):
        with _graph_lock:
            new = rewrite(dsk, replacements)
            layers, places = new.__dask_graph__(), placement.gpu_placement(new)
        renamed = dict(zip(flatten(dsk.__dask_keys__()), flatten(new.__dask_keys__()), strict=True))
        names = {key: renamed.get(key, key) for key in wanted}
    else:
        layers = dsk
    graph = convert_legacy_graph(layers if isinstance(layers, Mapping) else dict(layers))
    graph = cull(graph, names.values())
    passed = graph_passes.apply(placement.unfuse_mixed(graph, places))
    graph = graph if passed is graph else cull(passed, names.values())
    return graph, names, placement.gpu_tasks(graph, places, {})[0]


def future_node(key: Key) -> GraphNode:
    """Return the node for a future: the graph has only its key."""
    promise = promise_of(key)
    if promise is None:
        raise KeyError(f"{key!r} is neither in the graph nor the key of a live future")
    return Task(key, fetch, promise)


def cull(graph: Graph, keys: Iterable[Key]) -> Graph:
    """Return the part of ``graph`` that ``keys`` depend on."""
    needed: Graph = {}
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key not in needed:
            needed[key] = graph[key] if key in graph else future_node(key)
            stack.extend(needed[key].dependencies)
    return needed
