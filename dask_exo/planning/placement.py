"""Placement: find the tasks that read or return partitions on a GPU, and so need one.

The metadata of an expression tells whether its partitions are on a GPU. Tasks are found by the
names of expressions. Inner tasks of a layer, such as the steps of a tree, are placed with their
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dask_exo.dask_adapter import (
    Alias,
    CoreExpr,
    Fused,
    FusedIO,
    GraphNode,
    MapPartitions,
    Task,
    TaskRef,
    ToBackend,
    execute_subgraph,
)
from dask_exo.partitions import protocol
from dask_exo.planning.graph_passes import expand

Key = Any
Graph = dict[Key, GraphNode]
Places = Mapping[str, bool]
"""Name of an expression → whether its partitions are on a GPU."""


def gpu_placement(expr: CoreExpr) -> Places:
    """Find the expressions whose partitions are on a GPU; return nothing if all are on hosts.

    Inferring metadata takes time. So the expressions that can move partitions to a GPU are
    checked first.
    """
    nodes = list(walk_fused(expr))
    if not any(_moves_to_gpu(node) for node in nodes):
        return {}
    found = {node._name: _on_device(node) for node in nodes}
    return {name: there for name, there in found.items() if there is not None}


def unfuse_mixed(graph: Graph, where: Places) -> Graph:
    """Unfuse the tasks that consist of tasks with and without a GPU."""
    while where:
        made, new = _on_gpu(graph, where), dict(graph)
        for key, node in graph.items():
            tasks = sum(isinstance(one, Task) for one in _fused(node).values())
            if 0 < len(_inside(node, where, made)) < tasks:
                new.update(expand(key, node, new))
        if len(new) == len(graph):
            break
        graph = new
    return graph


def gpu_tasks(graph: Graph, where: Places) -> frozenset[Key]:
    """Return the tasks that need a GPU."""
    return frozenset(_gpu_tasks(graph, where, {})) if where else frozenset()


def walk_fused(expr: CoreExpr) -> Iterator[Any]:
    """Yield an expression, all below it, and the expressions that were fused into them."""
    for node in expr.walk():
        yield node
        yield from _parts(node)


def _parts(node: Any) -> Iterator[Any]:
    for part in fused_from(node):
        yield part
        yield from _parts(part)


def fused_from(node: Any) -> Sequence[Any]:
    """Return the expressions that were fused into one; nothing if it is not fused."""
    if isinstance(node, FusedIO):
        return [node.operand("_expr")]
    return node.exprs if isinstance(node, Fused) else ()


def _moves_to_gpu(node: Any) -> bool:
    """Return whether an expression creates partitions on a GPU, or moves them there."""
    if isinstance(node, MapPartitions):  # whose function may have to be called to know more
        return protocol.on_device(node.operand("meta"))
    return bool((isinstance(node, ToBackend) or not node.dependencies()) and _on_device(node))


def _on_device(node: Any) -> bool | None:
    """Return whether the partitions of one expression are on a GPU; None if it is unknown."""
    try:
        return protocol.on_device(node._meta)
    except Exception:  # noqa: BLE001  it has no metadata; its tasks are placed with their inputs
        return None


def _on_gpu(
    graph: Graph, where: Places, outside: Mapping[Key, bool] | None = None
) -> dict[Key, bool]:
    """Return for each task whether its value is on a GPU."""
    made = dict(outside or {})
    stack = list(graph)
    while stack:
        key = stack[-1]
        node = graph.get(key)
        if key in made or node is None:
            made.setdefault(key, False)
            stack.pop()
            continue
        known = where.get(key[0]) if isinstance(key, tuple) and len(key) == 2 else None
        waiting = [dep for dep in node.dependencies if dep not in made]
        if known is not None and not isinstance(node, Alias):
            made[key] = known
        elif waiting:
            stack.extend(waiting)
        else:
            made[key] = any(made[dep] for dep in node.dependencies)
    return made


def _gpu_tasks(graph: Graph, where: Places, outside: Mapping[Key, bool]) -> set[Key]:
    """Return the tasks that need a GPU; ``outside`` tells which other values are on one."""
    made = _on_gpu(graph, where, outside)
    return {
        key
        for key, node in graph.items()
        if isinstance(node, Task)
        and (made[key] or any(made[dep] for dep in node.dependencies) or _inside(node, where, made))
    }


def _fused(node: GraphNode) -> Graph:
    """Return the inner tasks of one that Dask has fused."""
    if isinstance(node, Task) and node.func is execute_subgraph:
        inner: Graph = node.args[0]
        return inner
    return {}


def _inside(node: GraphNode, where: Places, made: Mapping[Key, bool]) -> set[Key]:
    """Return the inner tasks of a fused one that need a GPU."""
    if not (inner := _fused(node)):
        return set()
    assert isinstance(node, Task)
    _, _, names, *values = node.args
    outside = {name: _input_on_gpu(value, made) for name, value in zip(names, values, strict=True)}
    return _gpu_tasks(inner, where, outside)


def _input_on_gpu(value: Any, made: Mapping[Key, bool]) -> bool:
    """Return whether an input of a fused task is on a GPU."""
    if isinstance(value, TaskRef):
        return made[value.key]
    return isinstance(value, GraphNode) and any(made[dep] for dep in value.dependencies)
