"""Workflows: graphs whose outputs are as if nothing had failed, although tasks ran again.

Annotations say which tasks have an external output, which may return another value if they run
again, and of which the value is stored. A pass over the graph checks that each external output
depends only on values that are stored before (`check_commits`), and adds tasks that store values,
and tasks that wait for this before an external output (`commit`). So a value is stored while others
already read it.

A task whose value is stored does not run again, in this program or the next one: it returns the
value. A task that can be rolled back is, before it runs again.

References: ExoFlow (Zhuang et al., "ExoFlow: a universal workflow system for exactly-once DAGs",
OSDI 2023), table 1 and invariants 1 and 2; "Systems for distributed futures", chapter 6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from dask.utils import key_split

from dask_exo.checkpoint import CheckpointStore
from dask_exo.dask_adapter import Task, TaskRef
from dask_exo.errors import CheckpointError, ConfigError, WorkflowError
from dask_exo.execution.checkpoints import read_checkpoint
from dask_exo.planning.annotations import Semantics, TaskOptions
from dask_exo.planning.fingerprint.tasks import NoFingerprint, fingerprints
from dask_exo.planning.normalize import Graph, Key, cull

Function = Callable[..., Any]


@dataclass(frozen=True)
class Workflow:
    """Additions to a graph.

    Attributes
    ----------
    stores : set of Key
        Tasks that store values, which nothing may read.
    options : dict of TaskOptions
        Of the tasks that wait for them.
    identities : dict of str
        The fingerprints of annotated tasks, which count in place of those of the graph's.
    repeatable : bool
        True if the whole graph may run again after a task returned two different values.
    """

    stores: frozenset[Key] = frozenset()
    options: Mapping[Key, TaskOptions] = field(default_factory=dict)
    identities: Mapping[Key, str] = field(default_factory=dict)
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class StoredTask:
    """Place of an annotated task in a store: a folder for tasks of its name, and its identity."""

    store: CheckpointStore
    folder: str
    identity: str

    def write(self, value: Any) -> None:
        """Store the value of the task, unless there is one: the first one is valid."""
        if self.identity not in self.store.found(self.folder):
            self.store.write(self.folder, self.identity, value)

    def call(self, semantics: Semantics, func: Function, *args: Any, **kwargs: Any) -> Any:
        """Return the stored value of the task; else roll back an attempt before, and call it."""
        if semantics.checkpoint:
            entry = self.store.found(self.folder).get(self.identity)
            if entry is not None:
                return self.store.read(entry)
        if semantics.rollback is not None and not self.store.begin(self.folder, self.identity):
            semantics.rollback.function(*args, **kwargs)
        return func(*args, **kwargs)


def commit(
    graph: Graph, keys: Set[Key], semantics: Mapping[Key, Semantics], url: str | None
) -> tuple[Graph, Workflow]:
    """Replace annotated tasks by ones that run once; add tasks that store values, and wait for it.

    Parameters
    ----------
    graph : Graph
        Normalized and culled to the requested ``keys``.
    semantics : mapping of Semantics
        Of the annotated tasks; others are deterministic, without external output.
    url : str, optional
        Of the store, if there is one.

    Raises
    ------
    WorkflowError
        An external output depends on a value that is not stored before.
    CheckpointError
        A task that is to be stored cannot be recognized in the next program.
    ConfigError
        A value is to be stored, but there is no store.
    """
    flow = {key: each for key, each in semantics.items() if type(graph.get(key)) is Task}
    check_commits(graph, flow)
    places = _places(graph, flow, url)
    entries = {place.folder: place.store.found(place.folder) for place in places.values()}
    new, pending, stored = dict(graph), set(), set()
    for key, place in places.items():
        entry = entries[place.folder].get(place.identity) if flow[key].checkpoint else None
        if entry is not None:
            stored.add(key)
            new[key] = Task(key, read_checkpoint, place.store, entry)
            continue
        node: Any = graph[key]
        new[key] = Task(key, place.call, flow[key], node.func, *node.args, **node.kwargs)
        if flow[key].checkpoint:
            pending.add(key)
            new["store", key] = Task(("store", key), place.write, TaskRef(key))
    options = {}
    for key in [key for key in flow.keys() - stored if flow[key].has_output]:
        if unsaved := _commit_points(graph, flow, key) & pending:
            wait, node = ("commit", key), new[key]
            options[wait] = TaskOptions(in_driver=True, compares=True)
            new[wait] = Task(wait, _nothing, *(TaskRef(("store", name)) for name in unsaved))
            new[key] = Task(key, _after, TaskRef(wait), node.func, *node.args, **node.kwargs)
    stores = frozenset(("store", key) for key in pending & cull(new, keys).keys())
    identities = {key: place.identity for key, place in places.items()}
    repeatable = not all(each.deterministic for each in flow.values())
    return cull(new, keys | stores), Workflow(stores, options, identities, repeatable)


def check_commits(graph: Graph, flow: Mapping[Key, Semantics]) -> None:
    """Check that a stored value is on each way from a task that may change to an external output.

    A task may change if it is not deterministic, or can be rolled back.
    """
    causes: dict[Key, Key | None] = {}  # a task before each that may change, and is not stored
    order = TopologicalSorter({key: node.dependencies for key, node in graph.items()})
    for key in order.static_order():
        causes[key] = None
        for source in graph[key].dependencies:
            each = flow.get(source, Semantics())
            if not each.checkpoint:
                causes[key] = causes[key] or (source if each.may_change else causes[source])
        if causes[key] is not None and key in flow and flow[key].has_output:
            raise WorkflowError(
                f"{key!r} has an external output, which would not match if {causes[key]!r} before "
                f"it returned another value when it runs again: add dask.annotate(checkpoint=True) "
                f"to that task, or to tasks between them"
            )


def _places(graph: Graph, flow: Mapping[Key, Semantics], url: str | None) -> dict[Key, StoredTask]:
    """Return the places of tasks in the store."""
    keys = [key for key, each in flow.items() if each.is_stored]
    if not keys:
        return {}
    if url is None:
        raise ConfigError(
            f"{keys[0]!r} is annotated with checkpoint or rollback, but there is no place for "
            f"checkpoints: set exo.checkpoint.path to a directory that all nodes share"
        )
    store = CheckpointStore.open(url)
    # files that tasks with an output name may be that output
    writers = {key for key, each in flow.items() if each.has_output}
    known, places = fingerprints(graph, keys, excluded=store.url, writers=writers), {}
    for key in keys:
        fingerprint = known[key]
        if isinstance(fingerprint, NoFingerprint):
            raise CheckpointError(
                f"{key!r} cannot be stored, since the next program would not recognize it: "
                f"{fingerprint.reason}. Make it a function of its arguments, and name it with "
                f"dask_key_name="
            )
        identity = hashlib.sha256(f"{fingerprint} {key!r}".encode()).hexdigest()[:32]
        places[key] = StoredTask(store, key_split(key), identity)
    return places


def _commit_points(graph: Graph, flow: Mapping[Key, Semantics], key: Key) -> set[Key]:
    """Return the nearest tasks before a task whose values are stored."""
    points, seen, stack = set(), set(), list(graph[key].dependencies)
    while stack:
        source = stack.pop()
        if source not in seen:
            seen.add(source)
            if source in flow and flow[source].checkpoint:
                points.add(source)
            else:
                stack.extend(graph[source].dependencies)
    return points


def _nothing(*_: None) -> None:
    """Wait for values that are stored."""


def _after(_: None, func: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a function after another task."""
    return func(*args, **kwargs)
