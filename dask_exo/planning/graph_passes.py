"""Passes over a materialized graph: every shuffle in it becomes one `ShuffleNode`.

`rewrite` has replaced the shuffles of expressions before. Those that are left are of graphs that
Dask has materialized (``to_delayed``, delayed values next to frames), of legacy arrays, and of
bags. A pass never changes the value of a key.
"""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import product
from typing import Any

from dask.utils import key_split
from tlz import groupby

from dask_exo.cluster.resources import ONE_CPU
from dask_exo.dask_adapter import (
    Alias,
    DataNode,
    GraphNode,
    Task,
    TaskRef,
    execute_subgraph,
    is_p2p_barrier,
    merge_chunk,
    old_to_new,
    role,
)
from dask_exo.errors import ShuffleMethodError
from dask_exo.execution.checkpoints import CheckpointMark
from dask_exo.execution.persisted import promised
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


JOIN, GROUP = "shuffle-join-", "shuffle-group-"
"""Prefixes of Dask's keys: the inputs of a step of a groupby by tasks, and the step."""


def bag(graph: Graph, keys: Set[Key]) -> Graph:  # noqa: ARG001  as all passes
    """Replace every ``groupby`` of a bag by an `ShuffleNode`.

    Raises
    ------
    ShuffleMethodError
        A groupby by disk has an unknown form.
    """
    collects: dict[Key, dict[Key, Task]] = defaultdict(dict)
    steps: dict[str, tuple[int, int]] = {}
    for key, node in graph.items():
        if isinstance(node, Task) and role(node) == "collect":
            collects[_target(node.args[3])][key] = node
        elif is_step(key) and (radix := _radix(node)):
            steps[key[0].removeprefix(GROUP)] = (radix, len(key[2]))
    if not collects and not steps:
        return graph
    new = dict(graph)
    for barrier, mine in collects.items():
        _by_disk(new, barrier, mine)
    for token, (radix, digits) in steps.items():
        if radix > 1:
            _by_tasks(new, token, radix, digits)
    return new


def is_step(key: Key) -> bool:
    """Return whether a key may be that of a step of a groupby by tasks, or of its input."""
    return (
        isinstance(key, tuple)
        and len(key) == 3
        and isinstance(key[0], str)
        and key[0].startswith((JOIN, GROUP))
        and isinstance(key[2], tuple)
    )


def _target(ref: Any) -> Key:
    return ref.target if isinstance(ref, Alias) else ref.key


def _radix(node: GraphNode) -> int:
    """Return the number of groups that a step splits into; 0 if the task is no step."""
    first = node.args[0] if isinstance(node, Task) and node.args else None
    if isinstance(first, Task) and role(first) == "make_group":
        radix: int = first.args[0]
        return radix
    return 0


def _by_disk(graph: Graph, barrier: Key, collects: dict[Key, Task]) -> None:
    """Replace a groupby that writes items to a file by group, and reads them after a barrier."""
    name = str(barrier).removeprefix("groupby-barrier-")
    parts: list[TaskRef] = []
    for node in _before(graph, barrier):
        if role(node) != "partition":
            raise ShuffleMethodError(
                f"{next(iter(collects))!r} belongs to a groupby by disk of an unknown form, which "
                f"would lose items where nodes do not share a disk: use "
                f"bag.groupby(..., shuffle='tasks')"
            )
        grouper, items, count, _, together = node.args
        part = Task((f"items-{name}", len(parts)), list, items)
        graph[part.key] = part
        parts.append(TaskRef(part.key))
    place = functools.partial(by_group, grouper=grouper, together=together)
    slots = {j: slot for slot, j in enumerate(sorted({one.args[1] for one in collects.values()}))}
    whole = ShuffleNode(
        (f"exchange-groupby-{name}", 0),
        ItemPartitioner(place=place, count=count, kept=tuple(slots)),
        *parts,
    )
    graph[whole.key] = whole
    for j, slot in slots.items():
        graph[f"group-{name}", j] = Task((f"group-{name}", j), take, TaskRef(whole.key), slot)
    for key, node in collects.items():
        graph[key] = Task(key, _groups, node.args[0], TaskRef((f"group-{name}", node.args[1])))


def _before(graph: Graph, barrier: Key) -> list[Task]:
    """Return the tasks that a barrier waits for, or the barrier itself if there are none."""
    while isinstance(node := graph[barrier], Alias):
        barrier = node.target
    assert isinstance(node, Task)
    found = []
    for key in map(_target, node.args):
        while isinstance(one := graph[key], Alias):
            key = one.target  # noqa: PLW2901
        found.append(one)
    return [one for one in found if isinstance(one, Task)] or [node]


def _groups(grouper: Callable[[Any], Any], items: Iterable[Any]) -> list[tuple[Any, list[Any]]]:
    return list(groupby(grouper, items).items())


def _by_tasks(graph: Graph, token: str, radix: int, digits: int) -> None:
    """Replace a groupby that moves items by the digits of their hashes, one in each step."""
    places = [inp[::-1] for inp in product(range(radix), repeat=digits)]  # last runs fastest
    sources = [(f"{JOIN}{token}", 0, place) for place in places]
    outputs = [(f"{JOIN}{token}", digits, place) for place in places]
    kept = tuple(j for j, key in enumerate(outputs) if key in graph)
    if not all(key in graph for key in sources):
        return  # of an unknown form, but correct as it is
    full = [key for key in sources if graph[key] != DataNode(key, [])]
    whole = ShuffleNode(
        (f"exchange-groupby-{token}", 0),
        ItemPartitioner(place=by_hash, count=len(places), kept=kept),
        *(TaskRef(key) for key in full),
    )
    graph[whole.key] = whole
    for slot, j in enumerate(kept):
        graph[outputs[j]] = Task(outputs[j], take, TaskRef(whole.key), slot)


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
