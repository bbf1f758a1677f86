"""P2P shuffles in materialized graphs: transfer → barrier → unpack.

The barrier has the specification. Each transfer becomes the input that it would have sent, the
barrier becomes an `ShuffleNode`, and each unpack takes one of its outputs.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Set
from typing import Any

from dask_exo.dask_adapter import (
    Alias,
    GraphNode,
    Task,
    TaskRef,
    is_p2p_barrier,
    merge_chunk,
    old_to_new,
    role,
)
from dask_exo.errors import ShuffleMethodError
from dask_exo.partitions.kernels.hash_partition import assign_partitions
from dask_exo.planning.partitioners import (
    Chunk,
    ChunkPartitioner,
    Partitioner,
    RowPartitioner,
    ShuffleNode,
    take,
)

Key = Any
Graph = dict[Key, GraphNode]
Number = Any  # of an output: an integer for frames, (ndim,) integers for arrays


def p2p(graph: Graph, keys: Set[Key]) -> Graph:  # noqa: ARG001  as all passes
    """Replace every p2p shuffle by an `ShuffleNode`.

    Raises
    ------
    ShuffleMethodError
        A shuffle has an unknown form.
    """
    barriers = [key for key, node in graph.items() if is_p2p_barrier(node)]
    if not barriers:
        return graph
    unpacks = {key: node for key, node in graph.items() if role(node) in _UNPACKS}
    wanted: dict[Key, dict[Number, Key]] = defaultdict(dict)  # barrier → output → its reader
    for key, node in unpacks.items():
        for barrier, number in _reads(node):
            side = (str(barrier).replace("barrier", "side"), number)
            wanted[barrier].setdefault(number, key if role(node) == "unpack" else side)
    new = dict(graph)
    for key, node in unpacks.items():
        new[key] = _unpacked(key, node, wanted)
    for barrier in barriers:
        _exchange(new, barrier, wanted.pop(barrier))
    if wanted:
        raise _not_understood(next(iter(wanted)), "it is no barrier")
    return new


_UNPACKS = ("unpack", "merging unpack")
_signature = functools.lru_cache(maxsize=None)(inspect.signature)


def _arguments(node: GraphNode) -> dict[str, Any]:
    """Return the arguments of a task by name."""
    assert isinstance(node, Task)
    return _signature(node.func).bind(*node.args, **node.kwargs).arguments


def _target(ref: Any) -> Key:
    return ref.target if isinstance(ref, Alias) else ref.key


def _reads(unpack: GraphNode) -> list[tuple[Key, Number]]:
    """Return the barrier and number of each output that an unpack reads."""
    given = _arguments(unpack)
    if role(unpack) == "merging unpack":
        number = given["output_partition"]
        return [(_target(given["barrier_left"]), number), (_target(given["barrier_right"]), number)]
    number = given["output_chunk"] if "output_chunk" in given else given["output_partition"]
    return [(_target(given["barrier_run_id"]), number)]


def _unpacked(key: Key, unpack: GraphNode, wanted: dict[Key, dict[Number, Key]]) -> GraphNode:
    """Return the node that replaces an unpack."""
    names = [wanted[barrier][number] for barrier, number in _reads(unpack)]
    if role(unpack) == "unpack":
        return Alias(key, names[0])
    given = {k: v for k, v in _arguments(unpack).items() if k not in _ABOUT_UNPACKING}
    return Task(key, merge_chunk, *map(TaskRef, names), **given)


_ABOUT_UNPACKING = (
    "shuffle_id_left",
    "shuffle_id_right",
    "output_partition",
    "barrier_left",
    "barrier_right",
)


def _exchange(graph: Graph, barrier: Key, wanted: dict[Number, Key]) -> None:
    """Put an `ShuffleNode` into the graph, and a task for each requested output."""
    task: Any = graph[barrier]
    spec = task.spec
    parts = [TaskRef(_last(graph, key)) for key in map(_target, task.args[1:])]
    for part in parts:
        graph[part.key] = _part(part.key, graph[part.key], spec)
    numbers = sorted(wanted)
    whole = ShuffleNode((f"exchange-p2p-{spec.id}", 0), _split(barrier, spec, numbers), *parts)
    graph[whole.key] = whole
    for slot, number in enumerate(numbers):
        graph[wanted[number]] = Task(wanted[number], take, TaskRef(whole.key), slot)


def _last(graph: Graph, key: Key) -> Key:
    """Return the final target of aliases."""
    while isinstance(node := graph[key], Alias):
        key = node.target
    return key


def _split(barrier: Key, spec: Any, numbers: list[Number]) -> Partitioner:
    kind = type(spec).__name__
    if kind == "DataFrameShuffleSpec":
        return RowPartitioner(
            column=spec.column, count=spec.npartitions, kept=tuple(numbers), drop=spec.drop_column
        )
    if kind == "ArrayRechunkSpec":
        return ChunkPartitioner.of(old_to_new(spec.old, spec.new), spec.old, numbers)
    raise _not_understood(barrier, f"its specification is a {kind}")


def _part(key: Key, transfer: GraphNode, spec: Any) -> Task:
    """Return the task for the input that a transfer would have sent."""
    build = _PARTS.get(role(transfer) or "")
    if build is None:
        raise _not_understood(key, "it is no transfer that dask_exo knows")
    return build(key, _arguments(transfer), spec)


def _frame(key: Key, given: dict[str, Any], spec: Any) -> Task:  # noqa: ARG001
    return Task(key, _same, given["input"])


def _numbered_frame(key: Key, given: dict[str, Any], spec: Any) -> Task:
    return Task(
        key,
        assign_partitions,
        given["df"],
        given["index"],
        given["name"],
        given["npartitions"],
        spec.meta,
        given["index_merge"],
    )


def _chunk(key: Key, given: dict[str, Any], spec: Any) -> Task:  # noqa: ARG001
    return Task(key, Chunk, given["input_chunk"], given["input"])


_PARTS: dict[str, Callable[[Key, dict[str, Any], Any], Task]] = {
    "transfer": _frame,
    "hashing transfer": _numbered_frame,
    "rechunk transfer": _chunk,
}


def _same(value: Any) -> Any:
    return value


def _not_understood(key: Key, reason: str) -> ShuffleMethodError:
    return ShuffleMethodError(
        f"{key!r} belongs to a p2p shuffle that dask_exo does not understand: {reason}. Such a "
        f"shuffle runs on distributed's workers only. Set dataframe.shuffle.method (and "
        f"array.rechunk.method) to 'tasks'"
    )
