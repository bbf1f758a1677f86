"""``Bag.groupby``: by disk, which several nodes do not share, and by tasks, in steps.

Each becomes one `ShuffleNode` of items. Every group has the items that Dask gives it, in the same
order.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Set
from itertools import product
from typing import Any

from tlz import groupby

from dask_exo.dask_adapter import Alias, DataNode, GraphNode, Task, TaskRef, role
from dask_exo.errors import ShuffleMethodError
from dask_exo.planning.partitioners import ItemPartitioner, ShuffleNode, take
from dask_exo.planning.partitioners.items import by_group, by_hash

Key = Any
Graph = dict[Key, GraphNode]

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
