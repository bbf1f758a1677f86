"""Whatever Dask hands a scheduler becomes ``{key: GraphNode}``, culled to what is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from dask.core import flatten

from dask_exo.dask_adapter import (
    CoreExpr,
    GraphNode,
    convert_legacy_graph,
    is_p2p_barrier,
)
from dask_exo.errors import ShuffleMethodError
from dask_exo.graph.rewrite import rewrite

Key = Any  # Dask's: str, bytes, int, float, or a tuple of keys
Graph = dict[Key, GraphNode]

# Before Python 3.12 ``cached_property``, of which Dask's expressions have many, takes a lock for
# each property of a class: two threads that walk expressions can lock each other out.
_one_at_a_time = threading.Lock()


def normalize(dsk: Any, keys: Any) -> tuple[Graph, dict[Key, Key]]:
    """Materialize, convert and cull.

    Parameters
    ----------
    dsk : Expr or mapping
        An expression, a high-level graph, or a raw ``dict``.
    keys : key or nested list of keys
        What is asked for.

    Returns
    -------
    graph : dict
        What ``keys`` need, as task-spec nodes.
    names : dict
        The key under which each of ``keys`` is in ``graph``: rewriting renames.

    Raises
    ------
    KeyError
        A key is not in the graph.
    ShuffleMethodError
        The graph has a shuffle in it that needs distributed's workers.
    """
    wanted = list(flatten(keys)) if isinstance(keys, list) else [keys]
    names = {key: key for key in wanted}
    if isinstance(dsk, CoreExpr):
        with _one_at_a_time:
            new = rewrite(dsk)
            layers = new.__dask_graph__()
        renamed = dict(zip(flatten(dsk.__dask_keys__()), flatten(new.__dask_keys__()), strict=True))
        names = {key: renamed.get(key, key) for key in wanted}
    else:
        layers = dsk
    graph = convert_legacy_graph(layers if isinstance(layers, Mapping) else dict(layers))
    graph = cull(graph, names.values())
    _refuse_p2p(graph)
    return graph, names


def _refuse_p2p(graph: Graph) -> None:
    """A p2p shuffle that Dask has made a graph of needs distributed's workers."""
    for key, node in graph.items():
        if is_p2p_barrier(node):
            raise ShuffleMethodError(
                f"{key!r} belongs to a p2p shuffle that was made a graph of before it came here "
                f"(by to_delayed, or delayed values mixed with dataframes); it runs on "
                f"distributed's workers only. Set dataframe.shuffle.method (and "
                f"array.rechunk.method) to 'tasks'"
            )


def cull(graph: Graph, keys: Iterable[Key]) -> Graph:
    """The part of ``graph`` that ``keys`` depend on."""
    kept: Graph = {}
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key not in kept:
            kept[key] = graph[key]
            stack.extend(kept[key].dependencies)
    return kept
