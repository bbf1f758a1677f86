"""Resume: read the checkpoints of earlier programs in place of computing them again.

The pass looks for values that may be checkpointed: inputs and outputs of shuffles, and marked
collections. Those that are stored become tasks that read them, and culling drops whatever only they
needed. The others are told where to store their values. If only some values of a collection are
stored, one of them is recomputed and compared, so that a function that is not deterministic does
not give a collection of old and new partitions that do not belong together.

References: ExoFlow (Ray's exactly-once workflows), of which this is the case without side effects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from dask.utils import key_split

from dask_exo.checkpoint import CheckpointStore, StoredValue
from dask_exo.dask_adapter import Alias, Blockwise, DataNode, GraphNode, Task, TaskRef
from dask_exo.events import CheckpointSeen
from dask_exo.execution.checkpoints import (
    CheckpointKey,
    CheckpointMark,
    ShuffleCheckpoint,
    keep,
    restore,
)
from dask_exo.execution.persisted import promised
from dask_exo.planning.fingerprint.tasks import Fingerprint, NoFingerprint, fingerprints
from dask_exo.planning.normalize import Graph, Key, cull, group_of
from dask_exo.planning.partitioners import ShuffleNode, take


class CheckpointExpr(Blockwise):
    """The same partitions, each through a task that `dask_exo.planning.resume` finds.

    ``ddf.exo.checkpoint()`` makes it.
    """

    _parameters = ["frame"]  # noqa: RUF012  as Dask's expressions have it
    _preserves_partitioning_information = True

    @property
    def _meta(self) -> Any:
        return self.frame._meta

    def _task(self, name: Any, index: int) -> Task:
        return Task(name, CheckpointMark(), TaskRef((self.frame._name, index)))


@dataclass(frozen=True)
class Checkpoints:
    """Values of a graph that may be stored for the next program.

    Attributes
    ----------
    shuffles : dict
        Shuffle → what is known of the checkpoints of its outputs.
    parts : dict
        Key of a shuffle's input → where it may be stored.
    seen : tuple of CheckpointSeen
        Checkpoints found of each collection, for reports.
    fingerprints : dict
        Fingerprints of the requested keys that have one.
    """

    shuffles: dict[Key, ShuffleCheckpoint] = field(default_factory=dict)
    parts: dict[Key, CheckpointKey] = field(default_factory=dict)
    seen: tuple[CheckpointSeen, ...] = ()
    fingerprints: dict[Key, str] = field(default_factory=dict)


@dataclass
class _Group:
    """Values of one collection: their fingerprints, and the entries or values that are stored.

    Its name is that of its folder in the store.
    """

    name: str
    keys: dict[Key, str]
    found: dict[Key, StoredValue | DataNode]
    probe: Key | None = None

    @property
    def replaced(self) -> dict[Key, StoredValue | DataNode]:
        return {key: one for key, one in self.found.items() if key != self.probe}


def resume(
    graph: Graph, keys: Set[Key], store: CheckpointStore, *, shuffles: bool, share: float | None
) -> tuple[Graph, Checkpoints]:
    """Replace values that are stored by tasks that read them; label the others.

    Parameters
    ----------
    graph : dict
        Normalized and culled.
    keys : set of Key
        Requested keys.
    store : CheckpointStore
    shuffles : bool
        Whether inputs and outputs of shuffles may be stored too, and not only marked values.
    share : float, optional
        See `ShuffleCheckpoint`.

    Returns
    -------
    graph : dict
        Tasks that are still to run.
    checkpoints : Checkpoints
    """
    parts = _parts(graph) if shuffles else set()
    members = _members(graph, parts, shuffles=shuffles)
    asked_for = [*(key for mine in members.values() for key in mine), *keys]
    known = fingerprints(graph, asked_for, besides=store.url)
    groups, seen = [], []
    for collection, mine in members.items():
        refused = next((known[key] for key in mine if isinstance(known[key], NoFingerprint)), None)
        found: dict[Key, StoredValue | DataNode] = {}
        if refused is None:
            name = _folder(graph, mine[0], known)
            group = _Group(name, {key: str(known[key]) for key in mine}, found)
            found.update(_found(graph, group, store))
            groups.append(group)
        reason = refused.reason if isinstance(refused, NoFingerprint) else ""
        if (
            found or mine[0] not in parts
        ):  # few inputs of shuffles are worth it: no event if none is stored
            seen.append(CheckpointSeen(collection, len(mine), len(found), reason))
    live = _replaced(graph, keys, groups, store)
    labels = {key: _label(group, key, store) for group in groups for key in group.keys}
    outputs: dict[Key, dict[int, CheckpointKey]] = defaultdict(dict)
    for key, node in live.items():
        if key in labels and isinstance(node, Task) and isinstance(node.func, CheckpointMark):
            live[key] = Task(key, keep, *node.args, labels[key])
        elif key in labels and (place := _place(node, live)) is not None:
            outputs[place[0]][place[1]] = labels[key]
    keepings = {stage: ShuffleCheckpoint(mine, share) for stage, mine in outputs.items()}
    read = {key for group in groups for key in group.replaced}
    making = {key: labels[key] for key in (parts & labels.keys() & live.keys()) - read}
    asked = {key: one for key in keys if isinstance(one := known[key], str)}
    return live, Checkpoints(keepings, making, tuple(seen), asked)


def _members(graph: Graph, parts: Set[Key], *, shuffles: bool) -> dict[str, list[Key]]:
    """Return the keys of values that may be checkpointed, by collection."""
    found: dict[str, list[Key]] = defaultdict(list)
    for key, node in graph.items():
        if _marked(node) or key in parts or (shuffles and _place(node, graph) is not None):
            found[group_of(key)].append(key)
    return found


def _marked(node: GraphNode) -> bool:
    return isinstance(node, Task) and isinstance(node.func, CheckpointMark)


def _parts(graph: Graph) -> set[Key]:
    """Return the values on the way into shuffles that are not checkpointed anyway.

    These are the inputs of shuffles, and values that several tasks read to compute these inputs:
    a sort samples its inputs before it divides them.
    """
    readers = Counter(_made(graph, name) for node in graph.values() for name in node.dependencies)
    shuffles = [node for node in graph.values() if isinstance(node, ShuffleNode)]
    parts = {_made(graph, name) for node in shuffles for name in node.dependencies}
    inputs = {_made(graph, name) for key in parts for name in graph[key].dependencies}
    found = parts | {key for key in inputs if readers[key] > 1}
    return {key for key in found if _makes(graph[key]) and _place(graph[key], graph) is None}


def _made(graph: Graph, key: Key) -> Key:
    """Return the key of the task that computes a value, through all aliases."""
    while isinstance(node := graph[key], Alias):
        key = node.target
    return key


def _makes(node: GraphNode) -> bool:
    """Return whether a node is a task that computes a value and is not marked."""
    plain = isinstance(node, Task) and not isinstance(node, ShuffleNode)
    return plain and not (_marked(node) or promised(node))


def _folder(graph: Graph, key: Key, known: Mapping[Key, Fingerprint]) -> str:
    """Return the folder of a collection: one for each shuffle, and one for each marked kind."""
    place = _place(graph[key], graph)
    return key_split(key) if place is None else f"{key_split(key)}-{known[place[0]]}"


def _place(node: GraphNode, graph: Graph) -> tuple[Key, int] | None:
    """Return the shuffle and the number of the output that a task takes, if it does."""
    if not isinstance(node, Task) or node.func is not take:
        return None
    (stage,) = node.dependencies
    return (stage, node.args[1]) if isinstance(graph[stage], ShuffleNode) else None


def _found(
    graph: Graph, group: _Group, store: CheckpointStore
) -> Iterator[tuple[Key, StoredValue | DataNode]]:
    """Yield the stored values of a collection that are still valid."""
    entries = store.found(group.name)
    for key, name in group.keys.items():
        if name not in entries:
            continue
        node = graph[key]
        assert isinstance(node, Task)
        if isinstance(node.func, CheckpointMark) and node.func.still is not None:
            value = store.read(entries[name])
            if node.func.still(value):
                yield key, DataNode(key, value)
        else:
            yield key, entries[name]


def _replaced(graph: Graph, keys: Set[Key], groups: list[_Group], store: CheckpointStore) -> Graph:
    """Drop stored values from the graph, but for one of each partially stored collection.

    Recomputing that one may need other collections that are also stored in part.
    """
    while True:
        new = dict(graph)
        for group in groups:
            new.update(_reading(group.replaced, store))
        live = cull(new, keys)
        more = [group for group in groups if group.probe is None and _in_part(group, live)]
        for group in more:
            group.probe = next(key for key in group.keys if key in group.found and key in live)
        if not more:
            return live


def _reading(
    found: Mapping[Key, StoredValue | DataNode], store: CheckpointStore
) -> Iterator[tuple[Key, Any]]:
    for key, one in found.items():
        yield key, one if isinstance(one, DataNode) else Task(key, restore, store, one)


def _in_part(group: _Group, live: Graph) -> bool:
    needed = [key in group.found for key in group.keys if key in live]
    return any(needed) and not all(needed)


def _label(group: _Group, key: Key, store: CheckpointStore) -> CheckpointKey:
    before = group.found.get(key) if key == group.probe else None
    if isinstance(before, DataNode):  # its value has been read; its entry is looked up by name
        before = store.found(group.name).get(group.keys[key])
    return CheckpointKey(store, group.name, group.keys[key], before)
