"""Which tasks need a GPU: those that make partitions in the memory of one, or read such.

An expression knows of its partitions what they are, by its empty one. Tasks are found by the names
of expressions; what a layer has between (the steps of a tree, a shuffle) lies where its inputs do.
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
from dask_exo.planning.passes.unfuse import expand

Key = Any
Graph = dict[Key, GraphNode]
Places = Mapping[str, bool]
"""Name of an expression, and whether its partitions lie on a device."""


def gpu_placement(expr: CoreExpr) -> Places:
    """Where the partitions of an expression and of all below it lie; nothing if all are on hosts.

    Only what can bring partitions to a device is asked first: the others need not tell what they
    make, which takes time.
    """
    nodes = list(walk_fused(expr))
    if not any(_brings(node) for node in nodes):
        return {}
    found = {node._name: _on_device(node) for node in nodes}
    return {name: there for name, there in found.items() if there is not None}


def unfuse_mixed(graph: Graph, where: Places) -> Graph:
    """Take fused tasks apart of which a part needs a GPU and another one does not."""
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
    """Tasks that need a GPU."""
    return frozenset(_gpu_tasks(graph, where, {})) if where else frozenset()


def walk_fused(expr: CoreExpr) -> Iterator[Any]:
    """An expression, all below it, and what those that were fused have been made of."""
    for node in expr.walk():
        yield node
        yield from _parts(node)


def _parts(node: Any) -> Iterator[Any]:
    for part in fused_from(node):
        yield part
        yield from _parts(part)


def fused_from(node: Any) -> Sequence[Any]:
    """What an expression was fused of, directly; nothing where it was not."""
    if isinstance(node, FusedIO):
        return [node.operand("_expr")]
    return node.exprs if isinstance(node, Fused) else ()


def _brings(node: Any) -> bool:
    """Whether an expression makes partitions on a device of nothing, or of some on the host."""
    if isinstance(node, MapPartitions):  # whose function may have to be called to know more
        return protocol.on_device(node.operand("meta"))
    return bool((isinstance(node, ToBackend) or not node.dependencies()) and _on_device(node))


def _on_device(node: Any) -> bool | None:
    """Whether the partitions of one expression lie there; None if that is not known."""
    try:
        return protocol.on_device(node._meta)
    except Exception:  # noqa: BLE001  it has no metadata; its tasks lie where their inputs do
        return None


def _on_gpu(
    graph: Graph, where: Places, outside: Mapping[Key, bool] | None = None
) -> dict[Key, bool]:
    """Whether what each task makes lies on a device."""
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
    """Tasks that need a GPU; ``outside`` says of other values whether they lie there."""
    made = _on_gpu(graph, where, outside)
    return {
        key
        for key, node in graph.items()
        if isinstance(node, Task)
        and (made[key] or any(made[dep] for dep in node.dependencies) or _inside(node, where, made))
    }


def _fused(node: GraphNode) -> Graph:
    """The tasks in one that Dask has fused."""
    if isinstance(node, Task) and node.func is execute_subgraph:
        inner: Graph = node.args[0]
        return inner
    return {}


def _inside(node: GraphNode, where: Places, made: Mapping[Key, bool]) -> set[Key]:
    """Those of the tasks in a fused one that need a GPU."""
    if not (inner := _fused(node)):
        return set()
    assert isinstance(node, Task)
    _, _, names, *values = node.args
    outside = {name: _lies(value, made) for name, value in zip(names, values, strict=True)}
    return _gpu_tasks(inner, where, outside)


def _lies(value: Any, made: Mapping[Key, bool]) -> bool:
    """Whether an input of a fused task lies on a device."""
    if isinstance(value, TaskRef):
        return made[value.key]
    return isinstance(value, GraphNode) and any(made[dep] for dep in value.dependencies)
