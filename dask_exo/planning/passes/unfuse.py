"""Unfuse tasks that hide a task which the planner has to see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any

from dask.utils import key_split

from dask_exo.dask_adapter import Alias, DataNode, GraphNode, Task, TaskRef, execute_subgraph, role
from dask_exo.execution.checkpoints.outputs import CheckpointMark
from dask_exo.execution.persisted import promised
from dask_exo.execution.requests import ONE_CPU
from dask_exo.planning.annotations import request_of
from dask_exo.planning.passes.bag import is_step

Key = Any
Graph = dict[Key, GraphNode]


def unfuse(graph: Graph, keys: Set[Key]) -> Graph:  # noqa: ARG001  as all passes
    """Replace fused tasks by their inner ones, if the planner has to see one of these.

    Such tasks are parts of a shuffle, persisted values, marked values, and calls with a resource
    request of their own. Inner tasks get their old keys back, unless another task has them.
    """
    return _expanded(graph, _hides)


def unfuse_all(graph: Graph) -> Graph:
    """Replace all fused tasks by their inner ones."""
    return _expanded(graph, lambda node: bool(_inside(node)))


def _expanded(graph: Graph, applies: Callable[[GraphNode], bool]) -> Graph:
    todo = [key for key, node in graph.items() if applies(node)]
    if not todo:
        return graph
    new = dict(graph)
    while todo:
        key = todo.pop()
        inner = expand(key, new[key], new)
        new.update(inner)
        todo.extend(k for k, node in inner.items() if applies(node))
    return new


def _hides(node: GraphNode) -> bool:
    """Return whether the planner has to see a task inside this one, at any depth."""
    return any(
        role(inner) is not None
        or is_step(key)
        or promised(inner) is not None
        or isinstance(getattr(inner, "func", None), CheckpointMark)
        or request_of(inner) not in (None, ONE_CPU)
        or _hides(inner)
        for key, inner in _inside(node).items()
    )


def _inside(node: GraphNode) -> Graph:
    if isinstance(node, Task) and node.func is execute_subgraph:
        inner: Graph = node.args[0]
        return inner
    return {}


def expand(key: Key, node: GraphNode, taken: Graph) -> Graph:
    """Return the nodes inside a fused task, under keys that are not ``taken``."""
    assert isinstance(node, Task)
    inner, outkey, inkeys, *values = node.args
    names = dict(_names(key, inner, outkey, taken))
    known: dict[Key, Any] = {k: name for k, name in names.items() if k != name}
    for k, value in zip(inkeys, values, strict=True):
        if isinstance(value, (Alias, TaskRef)):
            known[k] = value.target if isinstance(value, Alias) else value.key
        else:
            known[k] = value if isinstance(value, GraphNode) else DataNode(None, value)
    return {names[k]: _renamed(one, names[k], known) for k, one in inner.items()}


def _names(key: Key, inner: Graph, outkey: Key, taken: Graph) -> Iterator[tuple[Key, Key]]:
    for k in inner:
        if k == outkey:
            yield k, key
        elif k in taken:
            yield k, (f"{key_split(k)}-unfused", key, k)
        else:
            yield k, k


def _renamed(node: GraphNode, key: Key, known: dict[Key, Any]) -> GraphNode:
    if isinstance(node, Alias):  # whose own substitution also renames it
        target = known.get(node.target, node.target)
        return target if isinstance(target, GraphNode) else Alias(key, target)
    return node.substitute(known, key=key)
