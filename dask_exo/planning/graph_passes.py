"""Passes over a materialized graph: every shuffle in it becomes one `ShuffleNode`.

`rewrite` has already replaced the shuffles of expressions. The others are in graphs that Dask has
materialized (``to_delayed``, delayed values next to frames), in legacy arrays, and in bags. A pass
never changes the value of a key.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import product
from typing import Any

from dask.utils import key_split
from tlz import groupby, identity

from dask_exo.cluster.resources import ONE_CPU
from dask_exo.dask_adapter import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    execute_subgraph,
    merge_chunk,
    old_to_new,
    roles,
)
from dask_exo.errors import ShuffleMethodError
from dask_exo.execution.checkpoints import CheckpointMark
from dask_exo.execution.persisted import fetch
from dask_exo.execution.requests import ResourceBoundFunction
from dask_exo.partitions.kernels.hash_partition import assign_partitions
from dask_exo.planning.annotations import request_of
from dask_exo.planning.partitioners import (
    Chunk,
    ChunkPartitioner,
    ItemPartitioner,
    Partitioner,
    RowPartitioner,
    ShuffleNode,
    by_group,
    by_hash,
    take,
)

Key = Any
Graph = dict[Key, GraphNode]


def unfuse(graph: Graph) -> Graph:
    """Replace fused tasks by their inner ones, if the planner has to see one of these.

    Such tasks are steps of a shuffle, persisted values, marked values, and calls with a resource
    request of their own. Inner tasks get their old keys back, unless another task has them.
    """
    while True:
        inner = {path: task for key, node in graph.items() for path, task in _inside(node, (key,))}
        visible = {path[0] for path in roles(inner)}
        visible.update(path[0] for path, node in inner.items() if _planned(path[-1], node))
        if not visible:
            return graph
        graph = expand(graph, visible)


def unfuse_all(graph: Graph) -> Graph:
    """Replace all fused tasks by their inner ones."""
    while fused := {key for key, node in graph.items() if inner_tasks(node)}:
        graph = expand(graph, fused)
    return graph


def _planned(key: Key, node: GraphNode) -> bool:
    """Return whether the planner treats a task differently from a plain function call."""
    if not isinstance(node, Task):
        return False
    if node.func is fetch or isinstance(node.func, CheckpointMark) or is_step(key):
        return True
    return ResourceBoundFunction.used and request_of(node) not in (None, ONE_CPU)


def _inside(node: GraphNode, path: tuple[Key, ...]) -> Iterator[tuple[tuple[Key, ...], GraphNode]]:
    """Yield the tasks inside a fused one, at any depth, with their paths of keys."""
    for key, inner in inner_tasks(node).items():
        yield (*path, key), inner
        yield from _inside(inner, (*path, key))


def inner_tasks(node: GraphNode) -> Graph:
    """Return the inner tasks of one that Dask has fused; nothing for other nodes."""
    if isinstance(node, Task) and node.func is execute_subgraph:
        return node.args[0]
    return {}


def expand(graph: Graph, fused: Collection[Key]) -> Graph:
    """Replace some fused tasks by those inside them, in the order of the graph."""
    new = dict(graph)
    for key in graph:
        if key not in fused:
            continue
        node: Any = graph[key]
        inner, outkey, inkeys, *values = node.args
        names = {k: key if k == outkey else _free(k, key, new) for k in inner}
        substitutions: dict[Key, Any] = {k: name for k, name in names.items() if k != name}
        for k, value in zip(inkeys, values, strict=True):
            if isinstance(value, (Alias, TaskRef)):
                substitutions[k] = _target(value)
            else:
                substitutions[k] = value if isinstance(value, GraphNode) else DataNode(None, value)
        new.update({names[k]: _renamed(task, names[k], substitutions) for k, task in inner.items()})
    return new


def _free(key: Key, outer: Key, graph: Graph) -> Key:
    """Return the key of an inner task, or another with its numbers if the graph has that key."""
    if key not in graph:
        return key
    numbers = key[1:] if isinstance(key, tuple) else ()
    return (f"{key_split(key)}-unfused", outer, key, *numbers)


def _renamed(node: GraphNode, key: Key, substitutions: dict[Key, Any]) -> GraphNode:
    if isinstance(node, Alias):  # whose own substitution also renames it
        target = substitutions.get(node.target, node.target)
        return target if isinstance(target, GraphNode) else Alias(key, target)
    return node.substitute(substitutions, key=key)


JOIN, GROUP = "shuffle-join-", "shuffle-group-"
"""Prefixes of Dask's keys: the inputs of a step of a groupby by tasks, and the step."""


def bag(graph: Graph) -> Graph:
    """Replace every ``groupby`` of a bag by a `ShuffleNode`.

    Bags group by disk, which several nodes do not share, or by tasks, in steps. Every group has the
    items that Dask gives it, in the same order. Raise `ShuffleMethodError` for a groupby by disk of
    an unknown form.
    """
    collects: dict[Key, dict[Key, Any]] = defaultdict(dict)
    for key, role in roles(graph).items():
        if role == "collect":
            node: Any = graph[key]
            collects[_target(node.args[3])][key] = node
    steps = _steps(graph)
    if not collects and not steps:
        return graph
    new = dict(graph)
    for barrier, tasks in collects.items():
        _by_disk(new, barrier, tasks)
    for token, (radix, digits) in steps.items():
        if radix > 1:
            _by_tasks(new, token, radix, digits)
    return new


def is_step(key: Key) -> bool:
    """Return whether a key may belong to a step of a groupby by tasks, or to its input."""
    return (
        isinstance(key, tuple)
        and len(key) == 3
        and isinstance(key[0], str)
        and key[0].startswith((JOIN, GROUP))
        and isinstance(key[2], tuple)
    )


def _steps(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return the radix and the number of digits of each groupby by tasks, by its token."""
    groups: dict[Key, Any] = {
        key: node.args[0]
        for key, node in graph.items()
        if is_step(key) and isinstance(node, Task) and node.args
    }
    return {
        key[0].removeprefix(GROUP): (groups[key].args[0], len(key[2]))
        for key, role in roles(groups).items()
        if role == "make_group"
    }


def _target(ref: Any) -> Key:
    return ref.target if isinstance(ref, Alias) else ref.key


def final_target(graph: Graph, key: Key) -> Key:
    """Return the key of the task that computes a value, through all aliases."""
    while isinstance(node := graph.get(key), Alias):
        key = node.target
    return key


def _by_disk(graph: Graph, barrier: Key, collects: dict[Key, Task]) -> None:
    """Replace a groupby that writes items to a file by group and reads them after a barrier."""
    name = str(barrier).removeprefix("groupby-barrier-")
    barrier_task: Any = graph[final_target(graph, barrier)]
    inputs = [final_target(graph, _target(ref)) for ref in barrier_task.args]
    writers: dict[Key, Any] = {key: graph[key] for key in inputs if isinstance(graph[key], Task)}
    role_of = roles(writers)
    if {role_of.get(key) for key in writers} != {"partition"}:
        raise ShuffleMethodError(
            f"{next(iter(collects))!r} belongs to a groupby by disk of an unknown form, which "
            f"would lose items where nodes do not share a disk: use "
            f"bag.groupby(..., shuffle='tasks')"
        )
    parts: list[TaskRef] = []
    for node in writers.values():
        grouper, items, count, _, batch_size = node.args
        part = Task((f"items-{name}", len(parts)), list, items)
        graph[part.key] = part
        parts.append(TaskRef(part.key))
    place = functools.partial(by_group, grouper=grouper, batch_size=batch_size)
    numbers = tuple(sorted({task.args[1] for task in collects.values()}))
    partitioner = ItemPartitioner(place=place, count=count, selected=numbers)
    outputs = [(f"group-{name}", j) for j in numbers]
    _add_shuffle(graph, f"exchange-groupby-{name}", partitioner, parts, outputs)
    for key, node in collects.items():
        graph[key] = Task(key, _groups, node.args[0], TaskRef((f"group-{name}", node.args[1])))


def _groups(grouper: Callable[[Any], Any], items: Iterable[Any]) -> list[tuple[Any, list[Any]]]:
    return list(groupby(grouper, items).items())


def _by_tasks(graph: Graph, token: str, radix: int, digits: int) -> None:
    """Replace a groupby that moves items by the digits of their hashes, one in each step."""
    places = [inp[::-1] for inp in product(range(radix), repeat=digits)]  # last runs fastest
    sources = [(f"{JOIN}{token}", 0, place) for place in places]
    outputs = [(f"{JOIN}{token}", digits, place) for place in places]
    selected = tuple(j for j, key in enumerate(outputs) if key in graph)
    if not all(key in graph for key in sources):
        return  # of an unknown form, but correct as it is
    non_empty = [TaskRef(key) for key in sources if graph[key] != DataNode(key, [])]
    partitioner = ItemPartitioner(place=by_hash, count=len(places), selected=selected)
    requested = [outputs[j] for j in selected]
    _add_shuffle(graph, f"exchange-groupby-{token}", partitioner, non_empty, requested)


def _add_shuffle(
    graph: Graph, name: str, partitioner: Partitioner, parts: list[TaskRef], outputs: list[Key]
) -> None:
    """Put a `ShuffleNode` into a graph, and a task for each requested output."""
    shuffle = ShuffleNode((name, 0), partitioner, *parts)
    graph[shuffle.key] = shuffle
    for slot, key in enumerate(outputs):
        graph[key] = Task(key, take, TaskRef(shuffle.key), slot)


Number = Any  # of an output: an integer for frames, (ndim,) integers for arrays


def p2p(graph: Graph) -> Graph:
    """Replace every p2p shuffle, transfer → barrier → unpack, by a `ShuffleNode`.

    The barrier has the specification. Each transfer becomes the input that it would have sent, the
    barrier becomes a `ShuffleNode`, and each unpack takes one of its outputs. Raise
    `ShuffleMethodError` for a shuffle of an unknown form.
    """
    role_of = roles(graph)
    barriers = [key for key, role in role_of.items() if role == "barrier"]
    if not barriers:
        return graph
    unpacks = {key: _arguments(graph[key]) for key, role in role_of.items() if role == "unpack"}
    readers: dict[Key, dict[Number, Key]] = defaultdict(dict)  # barrier → output → its reader
    for key, args in unpacks.items():
        reads = _reads(args)
        for barrier, number in reads:
            side = (str(barrier).replace("barrier", "side"), number)
            readers[barrier].setdefault(number, key if len(reads) == 1 else side)
    new = dict(graph)
    for key, args in unpacks.items():
        new[key] = _unpacked(key, args, readers)
    for barrier in barriers:
        _exchange(new, barrier, readers.pop(barrier), role_of)
    if readers:
        raise _not_understood(next(iter(readers)), "it is no barrier")
    return new


_signature = functools.lru_cache(maxsize=None)(inspect.signature)


def _arguments(node: GraphNode) -> dict[str, Any]:
    """Return the arguments of a task by name."""
    assert isinstance(node, Task)
    return _signature(node.func).bind(*node.args, **node.kwargs).arguments


def _reads(args: dict[str, Any]) -> list[tuple[Key, Number]]:
    """Return the barrier and number of each output that an unpack with some arguments reads."""
    number = args["output_chunk"] if "output_chunk" in args else args["output_partition"]
    names = [name for name in ("barrier_run_id", "barrier_left", "barrier_right") if name in args]
    return [(_target(args[name]), number) for name in names]


def _unpacked(key: Key, args: dict[str, Any], readers: dict[Key, dict[Number, Key]]) -> GraphNode:
    """Return the node that replaces an unpack."""
    sources = [readers[barrier][number] for barrier, number in _reads(args)]
    if len(sources) == 1:
        return Alias(key, sources[0])
    about_unpacking = ("shuffle_id_", "output_partition", "barrier_")
    options = {name: arg for name, arg in args.items() if not name.startswith(about_unpacking)}
    return Task(key, merge_chunk, *map(TaskRef, sources), **options)


def _exchange(
    graph: Graph, barrier: Key, readers: dict[Number, Key], role_of: dict[Key, str]
) -> None:
    """Put a `ShuffleNode` into the graph, and a task for each requested output."""
    task: Any = graph[barrier]
    spec = task.spec
    parts = [TaskRef(final_target(graph, key)) for key in map(_target, task.args[1:])]
    for part in parts:
        graph[part.key] = _input(part.key, role_of.get(part.key), graph[part.key], spec)
    numbers = sorted(readers)
    partitioner, outputs = _split(barrier, spec, numbers), [readers[j] for j in numbers]
    _add_shuffle(graph, f"exchange-p2p-{spec.id}", partitioner, parts, outputs)


def _split(barrier: Key, spec: Any, numbers: list[Number]) -> Partitioner:
    kind = type(spec).__name__
    if kind == "DataFrameShuffleSpec":
        return RowPartitioner(
            column=spec.column,
            count=spec.npartitions,
            selected=tuple(numbers),
            drop=spec.drop_column,
        )
    if kind == "ArrayRechunkSpec":
        return ChunkPartitioner.of(old_to_new(spec.old, spec.new), spec.old, numbers)
    raise _not_understood(barrier, f"its specification is a {kind}")


def _input(key: Key, role: str | None, transfer: GraphNode, spec: Any) -> Task:
    """Return the task for the input that a transfer would have sent."""
    if role == "transfer":
        return Task(key, identity, _arguments(transfer)["input"])
    if role == "rechunk transfer":
        args = _arguments(transfer)
        return Task(key, Chunk, args["input_chunk"], args["input"])
    if role == "hashing transfer":
        args = _arguments(transfer)
        numbers = (args[name] for name in ("df", "index", "name", "npartitions"))
        return Task(key, assign_partitions, *numbers, spec.meta, args["index_merge"])
    raise _not_understood(key, "it is no transfer that dask_exo knows")


def _not_understood(key: Key, reason: str) -> ShuffleMethodError:
    return ShuffleMethodError(
        f"{key!r} belongs to a p2p shuffle that dask_exo does not understand: {reason}. Such a "
        f"shuffle runs on distributed's workers only. Set dataframe.shuffle.method (and "
        f"array.rechunk.method) to 'tasks'"
    )


PASSES: dict[str, Callable[[Graph], Graph]] = {"unfuse": unfuse, "p2p": p2p, "bag": bag}
"""All passes over a graph by name, in their order."""


def apply(graph: Graph) -> Graph:
    """Run all passes over a culled graph, which is not changed.

    Return the same graph if there is nothing to do; else it may have nodes that nothing reads.
    """
    for run in PASSES.values():
        graph = run(graph)
    return graph
