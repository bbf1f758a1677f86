"""Whatever Dask hands a scheduler becomes ``{key: GraphNode}``, with nothing in it but what is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask.core import flatten

from dask_exo.dask_adapter import CoreExpr, GraphNode, convert_legacy_graph
from dask_exo.graph.rewrite import rewrite

Key = Any  # Dask's: str, bytes, int, float, or a tuple of keys
Graph = dict[Key, GraphNode]


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
    """
    wanted = list(flatten(keys)) if isinstance(keys, list) else [keys]
    names = {key: key for key in wanted}
    if isinstance(dsk, CoreExpr):
        new = rewrite(dsk)
        renamed = dict(
            zip(flatten(dsk.__dask_keys__()), flatten(new.__dask_keys__()), strict=True)
        )
        names = {key: renamed.get(key, key) for key in wanted}
        dsk = new.__dask_graph__()
    graph = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dict(dsk))
    return cull(graph, names.values()), names


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
