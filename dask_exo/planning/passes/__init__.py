"""Passes over a materialized graph: every shuffle in it becomes one `ShuffleNode`.

`rewrite` has replaced the shuffles of expressions before. Those that are left are of graphs that
Dask has materialized (``to_delayed``, delayed values next to frames), of legacy arrays, and of
bags. A pass never changes the value of a key.
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
        Requested keys.

    Returns
    -------
    dict
        The same graph if there is nothing to do; else it may have nodes that nothing reads.

    Raises
    ------
    ShuffleMethodError
        A shuffle that runs only on Dask's own workers has an unknown form.
    """
    for run in PASSES.values():
        graph = run(graph, keys)
    return graph
