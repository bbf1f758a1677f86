"""Placement: find the tasks that need a GPU because they read or return partitions on one.

The metadata of an expression tells whether its partitions are on a GPU. Tasks are found by the
names of expressions. Inner tasks of a layer, such as the steps of a tree, are placed with their
inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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

    Inferring metadata takes time, so the expressions that can move partitions to a GPU are checked
    first.
    """
    nodes = list(walk_fused(expr))
    if not any(_moves_to_gpu(node) for node in nodes):
        return {}
    places = {node._name: _on_device(node) for node in nodes}
    return {name: on_gpu for name, on_gpu in places.items() if on_gpu is not None}


def unfuse_mixed(graph: Graph, places: Places) -> Graph:
    """Unfuse the tasks that consist of tasks with and without a GPU."""
    while mixed := gpu_tasks(graph, places, {})[1]:
        graph = expand(graph, mixed)
    return graph


def gpu_tasks(
    graph: Graph, places: Places, inputs_on_gpu: Mapping[Key, bool]
) -> tuple[set[Key], set[Key]]:
    """Return the tasks that need a GPU, and the fused ones in which only some inner tasks do.

    ``inputs_on_gpu`` tells which values of other tasks are on a GPU.
    """
    gpu_keys: set[Key] = set()
    mixed: set[Key] = set()
    on_gpu = _on_gpu(graph, places, inputs_on_gpu) if places else {}
    for key, node in graph.items() if places else ():
        if not isinstance(node, Task):
            continue
        inner_keys: set[Key] = set()
        if inner := inner_tasks(node):
            _, _, names, *values = node.args
            inputs = {
                name: any(on_gpu[source] for source in _sources(value))
                for name, value in zip(names, values, strict=True)
            }
            inner_keys, _ = gpu_tasks(inner, places, inputs)
            if 0 < len(inner_keys) < sum(isinstance(task, Task) for task in inner.values()):
                mixed.add(key)
        if inner_keys or on_gpu[key] or any(on_gpu[source] for source in node.dependencies):
            gpu_keys.add(key)
    return gpu_keys, mixed


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


def _on_gpu(graph: Graph, places: Places, inputs_on_gpu: Mapping[Key, bool]) -> dict[Key, bool]:
    """Return for each task whether its value is on a GPU: as its expression, or as its inputs."""
    on_gpu = dict(inputs_on_gpu)
    stack = list(graph)
    while stack:
        key = stack[-1]
        node = graph.get(key)
        if key in on_gpu or node is None:
            on_gpu.setdefault(key, False)
            stack.pop()
            continue
        known = places.get(key[0]) if isinstance(key, tuple) and len(key) == 2 else None
        missing = [source for source in node.dependencies if source not in on_gpu]
        if known is not None and not isinstance(node, Alias):
            on_gpu[key] = known
        elif missing:
            stack.extend(missing)
        else:
            on_gpu[key] = any(on_gpu[source] for source in node.dependencies)
    return on_gpu
