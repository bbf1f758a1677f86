"""Small computations on Dask's threads, with our shuffles.

The graph is the one that a cluster would get. A `ShuffleNode` becomes plain tasks: each cuts
consecutive parts, as many together as give every thread some, and each output is assembled from
the blocks of all. Dask's own shuffle for threads writes each partition to disk, which takes longer,
and fails for columns of lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import dask.threaded
from dask.system import CPU_COUNT
from dask.utils import key_split

from dask_exo.dask_adapter import GraphNode, Task, TaskRef
from dask_exo.planning.normalize import Graph, Key, normalize
from dask_exo.planning.partitioners import Partitioner, ShuffleNode, take


def compute(dsk: Any, keys: Any) -> Any:
    """Compute ``keys`` of a graph or expression on threads of this process.

    Parameters
    ----------
    dsk : Expr or mapping
        What Dask hands a scheduler.
    keys : key or nested list of keys

    Returns
    -------
    object
        Values in the shape of ``keys``.
    """
    graph, names, _ = normalize(dsk, keys)
    return dask.threaded.get(without_exchanges(graph, CPU_COUNT), _renamed(keys, names))


def _renamed(keys: Any, names: dict[Key, Key]) -> Any:
    return [_renamed(key, names) for key in keys] if isinstance(keys, list) else names[keys]


def without_exchanges(graph: Graph, threads: int) -> Graph:
    """Return a graph in which each shuffle is a set of plain tasks, for so many threads."""
    cuts = {
        key: list(_cuts(node, threads))
        for key, node in graph.items()
        if isinstance(node, ShuffleNode)
    }
    if not cuts:
        return graph
    new: Graph = {key: node for key, node in graph.items() if key not in cuts}
    for key, node in graph.items():
        if isinstance(node, Task) and node.func is take:
            new[key] = _assembling(key, node, graph, cuts)
    for mine in cuts.values():
        new.update((cut.key, cut) for cut in mine)
    return new


def _cuts(exchange: ShuffleNode, threads: int) -> Iterator[Task]:
    """Yield the tasks that divide the inputs of a shuffle into blocks."""
    parts: Sequence[Any] = exchange.args
    name = f"cut-{key_split(exchange.key)}"
    count = min(len(parts), threads)
    for i in range(count):
        mine = parts[i * len(parts) // count : (i + 1) * len(parts) // count]
        yield Task((name, exchange.key, i), _cut, exchange.partitioner, *mine)


def _assembling(key: Key, node: GraphNode, graph: Graph, cuts: dict[Key, list[Task]]) -> Task:
    """Return the task that assembles one output of a shuffle."""
    assert isinstance(node, Task)
    whole, output = node.args
    exchange = graph[whole.key]
    assert isinstance(exchange, ShuffleNode)
    blocks = [TaskRef(cut.key) for cut in cuts[whole.key]]
    return Task(key, _assemble, exchange.partitioner, output, *blocks)


def _cut(split: Partitioner, *parts: Any) -> Any:
    (blocks,), _ = split.cut(parts, [range(len(split.numbers))])
    return blocks


def _assemble(split: Partitioner, output: int, *blocks: Any) -> Any:
    return split.assemble(blocks, output, output)[0]
