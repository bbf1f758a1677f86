"""Placement: find the tasks that read or return partitions on a GPU, and so need one.

The metadata of an expression tells whether its partitions are on a GPU. Tasks are found by the
names of expressions. Inner tasks of a layer, such as the steps of a tree, are placed with their
inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

from dask_exo.dask_adapter import (
    Alias,
    CoreExpr,
    Fused,
    FusedIO,
    MapPartitions,
    Task,
    TaskRef,
    ToBackend,
)
from dask_exo.partitions import protocol
from dask_exo.planning.graph_passes import Graph, Key, expand, inner_tasks

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
    while mixed := _gpu_tasks(graph, where, {})[1]:
        graph = expand(graph, mixed)
    return graph


def gpu_tasks(graph: Graph, where: Places) -> Set[Key]:
    """Return the tasks that need a GPU."""
    return _gpu_tasks(graph, where, {})[0]


def _gpu_tasks(
    graph: Graph, where: Places, outside: Mapping[Key, bool]
) -> tuple[set[Key], set[Key]]:
    """Return the tasks that need a GPU, and the fused ones of which only some inner tasks do.

    ``outside`` tells which values of other tasks are on a GPU.
    """
    needing: set[Key] = set()
    mixed: set[Key] = set()
    on_gpu = _on_gpu(graph, where, outside) if where else {}
    for key, node in graph.items() if where else ():
        if not isinstance(node, Task):
            continue
        inside: set[Key] = set()
        if inner := inner_tasks(node):
            _, _, names, *values = node.args
            inputs = {
                name: any(on_gpu[source] for source in _sources(value))
                for name, value in zip(names, values, strict=True)
            }
            inside, _ = _gpu_tasks(inner, where, inputs)
            if 0 < len(inside) < sum(isinstance(one, Task) for one in inner.values()):
                mixed.add(key)
        if inside or on_gpu[key] or any(on_gpu[source] for source in node.dependencies):
            needing.add(key)
    return needing, mixed


def _sources(value: Any) -> Collection[Key]:
    """Return the tasks that an argument of a fused task reads."""
    return [value.key] if isinstance(value, TaskRef) else getattr(value, "dependencies", ())


def walk_fused(expr: CoreExpr) -> Iterator[Any]:
    """Yield an expression, all below it, and the expressions that were fused into them."""
    nodes = list(expr.walk())
    for node in nodes:
        yield node
        nodes += fused_from(node)


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


def _on_gpu(graph: Graph, where: Places, outside: Mapping[Key, bool]) -> dict[Key, bool]:
    """Return for each task whether its value is on a GPU: as its expression, or as its inputs."""
    found = dict(outside)
    stack = list(graph)
    while stack:
        key = stack[-1]
        node = graph.get(key)
        if key in found or node is None:
            found.setdefault(key, False)
            stack.pop()
            continue
        known = where.get(key[0]) if isinstance(key, tuple) and len(key) == 2 else None
        waiting = [source for source in node.dependencies if source not in found]
        if known is not None and not isinstance(node, Alias):
            found[key] = known
        elif waiting:
            stack.extend(waiting)
        else:
            found[key] = any(found[source] for source in node.dependencies)
    return found
