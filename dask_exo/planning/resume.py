"""Resume: read the checkpoints of earlier programs instead of recomputing their values.

The pass finds values that may be checkpointed: inputs and outputs of shuffles, and marked
collections. Those that are stored become tasks that read them, and culling drops whatever only they
needed. The others are told where to store their values. If only some values of a collection are
stored, one of them is recomputed and compared. So a function that is not deterministic cannot mix
old and new partitions that do not belong together.

See `dask_exo.planning.workflow` for tasks with side effects.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set
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
    """The same partitions, each passed through a task that `resume` finds.

    ``ddf.exo.checkpoint()`` creates it.
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
            key: value
            if isinstance(value, DataNode)
            else Task(key, read_checkpoint, self.store, value)
            for key, value in self.stored.items()
            if key != self.probe
        }

    def checkpoint_key(self, key: Key) -> CheckpointKey:
        """Return where a value may be stored, and the entry to compare it with."""
        name = self.fingerprints[key]
        previous = self.stored.get(key) if key == self.probe else None
        if isinstance(previous, DataNode):  # its value has been read; its entry is found by name
            previous = self.store.found(self.folder).get(name)
        return CheckpointKey(self.store, self.folder, name, previous)


def resume(
    graph: Graph,
    keys: Set[Key],
    store: CheckpointStore,
    *,
    shuffles: bool,
    share: float | None,
    identities: Mapping[Key, str] | None = None,
) -> tuple[Graph, Checkpoints]:
    """Replace values that are stored by tasks that read them; give the others a `CheckpointKey`.

    The graph is normalized and culled to the requested ``keys``; return the tasks that are still to
    run. With ``shuffles``, inputs and outputs of shuffles may be stored too, and not only marked
    values. See `ShuffleCheckpoint` for the ``share``, and `Workflow` for the ``identities``.
    """
    outputs = _shuffle_outputs(graph)
    parts = _shuffle_inputs(graph) - outputs.keys() if shuffles else set()
    members: dict[str, list[Key]] = defaultdict(list)
    for key, node in graph.items():
        if _marked(node) or key in parts or (shuffles and key in outputs):
            members[group_of(key)].append(key)
    requested = [*chain.from_iterable(members.values()), *keys]
    fingerprint_of = fingerprints(graph, requested, store.url, identities)
    collections, seen = [], []
    for name, group in members.items():
        folder = key_split(group[0])
        if group[0] in outputs:  # one folder for each shuffle
            folder = f"{folder}-{fingerprint_of[outputs[group[0]][0]]}"
        collection = _Collection(store, folder, {key: str(fingerprint_of[key]) for key in group})
        reasons = [f.reason for k in group if isinstance(f := fingerprint_of[k], NoFingerprint)]
        if not reasons:
            collection.stored.update(_stored(graph, collection))
            collections.append(collection)
        stored = len(collection.stored)
        if stored or group[0] not in parts:  # few inputs of shuffles are worth an event
            seen.append(CheckpointSeen(name, len(group), stored, reasons[0] if reasons else ""))
    live = _replaced(graph, keys, collections)
    checkpoint_keys = {
        key: collection.checkpoint_key(key)
        for collection in collections
        for key in collection.fingerprints
        if live.get(key) is graph[key]  # it is computed
    }
    slots: dict[Key, dict[int, CheckpointKey]] = defaultdict(dict)
    for key, checkpoint_key in checkpoint_keys.items():
        node = graph[key]
        if isinstance(node, Task) and _marked(node):
            live[key] = Task(key, CheckpointKey.write, checkpoint_key, *node.args)
        elif key in outputs:
            stage, slot = outputs[key]
            slots[stage][slot] = checkpoint_key
    return live, Checkpoints(
        {stage: ShuffleCheckpoint(by_slot, share) for stage, by_slot in slots.items()},
        {key: checkpoint_keys[key] for key in parts & checkpoint_keys.keys()},
        tuple(seen),
        {key: fingerprint for key in keys if isinstance(fingerprint := fingerprint_of[key], str)},
    )


def _marked(node: GraphNode) -> bool:
    return isinstance(node, Task) and isinstance(node.func, CheckpointMark)


def _shuffle_outputs(graph: Graph) -> dict[Key, tuple[Key, int]]:
    """Return the shuffle and the output number of each task that takes an output."""
    outputs = {}
    for key, node in graph.items():
        if isinstance(node, Task) and node.func is take:
            (stage,) = node.dependencies
            if isinstance(graph[stage], ShuffleNode):
                outputs[key] = stage, node.args[1]
    return outputs


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
    candidates = parts | {key for key in inputs if readers[key] > 1}
    return {key for key in candidates if _computes(graph[key])}


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
    """Drop stored values from the graph, except one of each partially stored collection.

    Recomputing that one may need other collections that are also partially stored.
    """
    while True:
        new = dict(graph)
        for collection in collections:
            new.update(collection.nodes())
        live = cull(new, keys)
        unprobed = [c for c in collections if c.probe is None and _in_part(c, live)]
        for collection in unprobed:
            collection.probe = next(
                key for key in collection.fingerprints if key in collection.stored and key in live
            )
        if not unprobed:
            return live


def _in_part(collection: _Collection, live: Graph) -> bool:
    needed = [key in collection.stored for key in collection.fingerprints if key in live]
    return any(needed) and not all(needed)
