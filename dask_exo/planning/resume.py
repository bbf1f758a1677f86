"""Resume: read the checkpoints of earlier programs in place of computing them again.

The pass finds values that may be checkpointed: inputs and outputs of shuffles, and marked
collections. Those that are stored become tasks that read them, and culling drops whatever only they
needed. The others are told where to store their values. If only some values of a collection are
stored, one of them is recomputed and compared, so that a function that is not deterministic does
not give a collection of old and new partitions that do not belong together.

References: ExoFlow (Ray's exactly-once workflows), of which this is the case without side effects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from dask.utils import key_split

from dask_exo.checkpoint import CheckpointStore, StoredValue
from dask_exo.dask_adapter import Blockwise, DataNode, GraphNode, Task, TaskRef
from dask_exo.events import CheckpointSeen
from dask_exo.execution.checkpoints import (
    CheckpointKey,
    CheckpointMark,
    ShuffleCheckpoint,
    read_checkpoint,
)
from dask_exo.execution.persisted import fetch
from dask_exo.planning.fingerprint.tasks import NoFingerprint, fingerprints
from dask_exo.planning.graph_passes import final_target
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
    """Values of a graph that may be stored for the next program."""

    shuffles: dict[Key, ShuffleCheckpoint] = field(default_factory=dict)
    parts: dict[Key, CheckpointKey] = field(default_factory=dict)  # inputs of shuffles
    seen: tuple[CheckpointSeen, ...] = ()  # checkpoints found of each collection, for reports
    fingerprints: dict[Key, str] = field(default_factory=dict)  # of requested keys that have one


@dataclass
class _Collection:
    """Values of one collection: their fingerprints, and the entries or values that are stored."""

    store: CheckpointStore
    folder: str
    fingerprints: dict[Key, str]
    stored: dict[Key, StoredValue | DataNode] = field(default_factory=dict)
    probe: Key | None = None  # a stored value that is recomputed and compared

    def nodes(self) -> dict[Key, GraphNode]:
        """Return the nodes that take the place of those whose values are stored."""
        return {
            key: one if isinstance(one, DataNode) else Task(key, read_checkpoint, self.store, one)
            for key, one in self.stored.items()
            if key != self.probe
        }

    def checkpoint_key(self, key: Key) -> CheckpointKey:
        """Return where a value may be stored, and the entry to compare it with."""
        name = self.fingerprints[key]
        before = self.stored.get(key) if key == self.probe else None
        if isinstance(before, DataNode):  # its value has been read; its entry is looked up by name
            before = self.store.found(self.folder).get(name)
        return CheckpointKey(self.store, self.folder, name, before)


def resume(
    graph: Graph, keys: Set[Key], store: CheckpointStore, *, shuffles: bool, share: float | None
) -> tuple[Graph, Checkpoints]:
    """Replace values that are stored by tasks that read them; give the others a `CheckpointKey`.

    The graph is normalized and culled to the requested ``keys``; return the tasks that are still to
    run. With ``shuffles``, inputs and outputs of shuffles may be stored too, and not only marked
    values. See `ShuffleCheckpoint` for the ``share``.
    """
    outputs = _shuffle_outputs(graph)
    parts = _shuffle_inputs(graph) - outputs.keys() if shuffles else set()
    members: dict[str, list[Key]] = defaultdict(list)
    for key, node in graph.items():
        if _marked(node) or key in parts or (shuffles and key in outputs):
            members[group_of(key)].append(key)
    requested = [*chain.from_iterable(members.values()), *keys]
    known = fingerprints(graph, requested, excluded=store.url)
    collections, seen = [], []
    for name, group in members.items():
        folder = key_split(group[0])
        if group[0] in outputs:  # one folder for each shuffle
            folder = f"{folder}-{known[outputs[group[0]][0]]}"
        collection = _Collection(store, folder, {key: str(known[key]) for key in group})
        refused = [one.reason for key in group if isinstance(one := known[key], NoFingerprint)]
        if not refused:
            collection.stored.update(_stored(graph, collection))
            collections.append(collection)
        stored = len(collection.stored)
        if stored or group[0] not in parts:  # few inputs of shuffles are worth an event
            seen.append(CheckpointSeen(name, len(group), stored, refused[0] if refused else ""))
    live = _replaced(graph, keys, collections)
    places = {
        key: collection.checkpoint_key(key)
        for collection in collections
        for key in collection.fingerprints
        if live.get(key) is graph[key]  # it is computed
    }
    slots: dict[Key, dict[int, CheckpointKey]] = defaultdict(dict)
    for key, place in places.items():
        node = graph[key]
        if isinstance(node, Task) and _marked(node):
            live[key] = Task(key, CheckpointKey.write, place, *node.args)
        elif key in outputs:
            stage, slot = outputs[key]
            slots[stage][slot] = place
    return live, Checkpoints(
        {stage: ShuffleCheckpoint(keys_of, share) for stage, keys_of in slots.items()},
        {key: places[key] for key in parts & places.keys()},
        tuple(seen),
        {key: one for key in keys if isinstance(one := known[key], str)},
    )


def _marked(node: GraphNode) -> bool:
    return isinstance(node, Task) and isinstance(node.func, CheckpointMark)


def _shuffle_outputs(graph: Graph) -> dict[Key, tuple[Key, int]]:
    """Return the shuffle and the number of the output that each task takes, if it does."""
    found = {}
    for key, node in graph.items():
        if isinstance(node, Task) and node.func is take:
            (stage,) = node.dependencies
            if isinstance(graph[stage], ShuffleNode):
                found[key] = stage, node.args[1]
    return found


def _shuffle_inputs(graph: Graph) -> set[Key]:
    """Return the tasks on the way into shuffles that are not marked.

    These are the inputs of shuffles, and values that several tasks read to compute these inputs:
    a sort samples its inputs before it divides them.
    """
    readers = Counter(
        final_target(graph, name) for node in graph.values() for name in node.dependencies
    )
    shuffles = [node for node in graph.values() if isinstance(node, ShuffleNode)]
    parts = {final_target(graph, name) for node in shuffles for name in node.dependencies}
    inputs = {final_target(graph, name) for key in parts for name in graph[key].dependencies}
    found = parts | {key for key in inputs if readers[key] > 1}
    return {key for key in found if _computes(graph[key])}


def _computes(node: GraphNode) -> bool:
    """Return whether a node is a task that computes a value and is not marked."""
    if not isinstance(node, Task) or isinstance(node, ShuffleNode):
        return False
    return node.func is not fetch and not _marked(node)


def _stored(graph: Graph, collection: _Collection) -> Iterator[tuple[Key, StoredValue | DataNode]]:
    """Yield the stored values of a collection that are still valid."""
    entries = collection.store.found(collection.folder)
    for key, name in collection.fingerprints.items():
        if name not in entries:
            continue
        node = graph[key]
        assert isinstance(node, Task)
        if isinstance(node.func, CheckpointMark) and node.func.is_valid is not None:
            value = collection.store.read(entries[name])
            if node.func.is_valid(value):
                yield key, DataNode(key, value)
        else:
            yield key, entries[name]


def _replaced(graph: Graph, keys: Set[Key], collections: list[_Collection]) -> Graph:
    """Drop stored values from the graph, but for one of each partially stored collection.

    Recomputing that one may need other collections that are also stored in part.
    """
    while True:
        new = dict(graph)
        for collection in collections:
            new.update(collection.nodes())
        live = cull(new, keys)
        more = [one for one in collections if one.probe is None and _in_part(one, live)]
        for one in more:
            one.probe = next(key for key in one.fingerprints if key in one.stored and key in live)
        if not more:
            return live


def _in_part(collection: _Collection, live: Graph) -> bool:
    needed = [key in collection.stored for key in collection.fingerprints if key in live]
    return any(needed) and not all(needed)
