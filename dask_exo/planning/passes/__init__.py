"""Passes over a materialized graph: every shuffle in it becomes one `ShuffleNode`.

Shuffles in expressions have been replaced before (see `rewrite`). What comes here as Dask's own
tasks are shuffles that Dask had made a graph of already (``to_delayed``, delayed values next to
frames), those of legacy arrays, and those of bags. A pass never changes what a key computes.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from dask_exo.dask_adapter import GraphNode
from dask_exo.planning.passes.bag import bag
from dask_exo.planning.passes.p2p import p2p
from dask_exo.planning.passes.unfuse import unfuse

__all__ = ["PASSES", "apply"]

Graph = dict[Any, GraphNode]

PASSES: dict[str, Callable[[Graph, Set[Any]], Graph]] = {
    "unfuse": unfuse,
    "p2p": p2p,
    "bag": bag,
}
"""All passes by name, in their order."""


def apply(graph: Graph, keys: Set[Any]) -> Graph:
    """Run all passes.

    Parameters
    ----------
    graph : dict
        Task-spec nodes, culled to what ``keys`` need; it is not changed.
    keys : set of Key
        What is asked for.

    Returns
    -------
    dict
        The same graph if there was nothing to do; otherwise with nodes that nobody needs any more.

    Raises
    ------
    ShuffleMethodError
        A shuffle that cannot run outside Dask's own workers is not understood.
    """
    for run in PASSES.values():
        graph = run(graph, keys)
    return graph
