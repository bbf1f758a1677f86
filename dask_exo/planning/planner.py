"""Cut a graph into the units that run: bundles of tasks, and shuffle stages.

Linear chains are fused to one bundle. The inputs of a shuffle are fused into its maps if nothing
else reads them, and each output is assembled by the one bundle that reads it. So neither the input
partitions nor the unsorted outputs enter the object store.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tlz import identity

from dask_exo.cluster.ownership import size_of
from dask_exo.dask_adapter import Alias, DataNode, GraphNode, Task, TaskRef, order, roles
from dask_exo.execution.messages import is_picklable
from dask_exo.execution.persisted import fetch
from dask_exo.planning.annotations import NO_OPTIONS, TaskOptions
from dask_exo.planning.graph_passes import final_target
from dask_exo.planning.normalize import Graph, Key
from dask_exo.planning.partitioners import ShuffleNode
from dask_exo.planning.plan import Bundle, OutputKey, Plan, Stage


def plan(
    graph: Graph,
    keys: Collection[Key],
    *,
    small: int,
    options: Mapping[Key, TaskOptions] | None = None,
    fuse: bool = True,
) -> Plan:
    """Cut a normalized and culled graph into units that compute the requested ``keys``.

    The first of them come first where Dask has no order, as between parts that share nothing.
    A literal of at most ``small`` bytes is copied into each task that reads it. With ``fuse``,
    tasks may run inside others, so that the driver does not see their values.
    """
    aliases = {key: final_target(graph, key) for key in graph if isinstance(graph[key], Alias)}
    literals = {key: node.value for key, node in graph.items() if isinstance(node, DataNode)}
    promises = {
        key: node.args[0]
        for key, node in graph.items()
        if isinstance(node, Task) and node.func is fetch
    }
    results = {key: aliases.get(key, key) for key in keys}
    visible = set(results.values()) if fuse else set(graph)
    small_literals = {
        key: value for key, value in literals.items() if size_of(value, small) <= small
    }
    planner = _Planner(graph, aliases, visible, small_literals, options or {})
    for key in sorted(graph, key=planner.ranks.__getitem__):
        is_task = key not in literals and key not in promises
        if is_task and not isinstance(graph[key], (Alias, ShuffleNode)):
            planner.add(key)
    shuffles = {node.key: node for node in graph.values() if isinstance(node, ShuffleNode)}
    ordered = list(shuffles) if len(shuffles) < 2 else _upstream(graph, results.values(), shuffles)
    stages = [planner.stage(shuffles[key]) for key in ordered]
    planner.order_columns()
    return Plan(list(planner.bundles.values()), stages, literals, promises, results)


def _upstream(graph: Graph, keys: Iterable[Key], wanted: Container[Key]) -> list[Key]:
    """Return the ``wanted`` keys on which others depend, those of the first keys first."""
    found, seen = [], set()
    for key in keys:
        stack = [key]
        while stack:
            if (source := stack.pop()) not in seen:
                seen.add(source)
                stack.extend(graph[source].dependencies)
                found += [source] if source in wanted else []
    return found


class _Planner:
    """The bundles so far, and the facts about the graph that fusion needs."""

    def __init__(
        self,
        graph: Graph,
        aliases: dict[Key, Key],
        visible: set[Key],
        literals: dict[Key, Any],
        options: Mapping[Key, TaskOptions],
    ) -> None:
        self.ranks: dict[Key, int] = order(graph)
        self.bundles: dict[Key, Bundle] = {}
        self._graph, self._aliases = graph, aliases
        self._visible, self._literals = visible, literals
        self._options = {**options, **_in_driver(graph, aliases, self.ranks, options)}
        self._readers: dict[Key, set[Key]] = defaultdict(set)
        self._outputs: dict[Key, OutputKey] = {}  # of a shuffle, by the task that takes it
        self._columns: dict[Key, set[OutputKey]] = defaultdict(set)
        for key, node in graph.items():
            if isinstance(node, Alias):
                continue
            for name in node.dependencies:
                source = aliases.get(name, name)
                self._readers[source].add(key)
                if isinstance(graph[source], ShuffleNode):
                    assert isinstance(node, Task)
                    self._outputs[key] = OutputKey(source, node.args[1])
                    self._columns[source].add(self._outputs[key])

    def add(self, key: Key) -> None:
        """Add the bundle of one node, and fuse those inputs that can run inside it."""
        node, rank = self._graph[key], self.ranks[key]
        bundle = Bundle(key, priority=rank, options=self._options.get(key, NO_OPTIONS))
        if key in self._outputs:
            (name,) = node.dependencies
            bundle.inputs[name] = self._outputs[key]
            node = Task(key, identity, Alias(name))
        else:
            for name in sorted(node.dependencies, key=self.ranks.__getitem__):
                source = self._aliases.get(name, name)
                if source in self._literals:
                    bundle.literals[name] = self._literals[source]
                else:
                    bundle.inputs[name] = source
        bundle.nodes.append((key, node))
        for source in self._fusable(bundle):
            bundle.absorb(self.bundles.pop(source))
        self.bundles[key] = bundle

    def stage(self, shuffle: ShuffleNode) -> Stage:
        """Return a stage; bundles that only it reads become its inputs."""
        sources = [self._aliases.get(ref.key, ref.key) for ref in shuffle.args]
        uses, rank = Counter(sources), self.ranks[shuffle.key]
        options = self._options.get(shuffle.key, NO_OPTIONS)
        options = options if options.device else NO_OPTIONS
        parts = [
            self.bundles.pop(source)
            if uses[source] == 1 and self._private(source, options)
            else Bundle(source, inputs={source: source}, priority=rank, options=options)
            for source in sources
        ]
        partitioner = shuffle.partitioner
        columns = sorted(self._columns[shuffle.key], key=operator.attrgetter("slot"))
        if len(columns) < len(partitioner.numbers):
            partitioner = partitioner.select([column.slot for column in columns])
        return Stage(shuffle.key, partitioner, parts, columns, rank, options)

    def order_columns(self) -> None:
        """Run readers of one shuffle's outputs in the order of the reducers.

        Dask orders them as text: 1, 10, 100, 2. Blocks of neighbours are in the same objects.
        """
        groups: dict[Any, list[tuple[int, Bundle]]] = defaultdict(list)
        for bundle in self.bundles.values():
            columns = [source for source in bundle.inputs.values() if isinstance(source, OutputKey)]
            if columns:
                kind = columns[0].stage, frozenset(self._readers[bundle.key])
                groups[kind].append((columns[0].slot, bundle))
        for members in groups.values():
            priorities = sorted(bundle.priority for _, bundle in members)
            members.sort(key=operator.itemgetter(0))
            for priority, (_, bundle) in zip(priorities, members, strict=True):
                bundle.priority = priority

    def _private(self, source: Key, options: TaskOptions) -> bool:
        """Return whether only one node reads a bundle's value, with equal options."""
        bundle = self.bundles.get(source)
        if bundle is None or bundle.options != options or options.in_driver:
            return False
        return len(self._readers[source]) == 1 and source not in self._visible

    def _fusable(self, bundle: Bundle) -> list[Key]:
        """Return the inputs that may run inside this bundle without losing parallelism.

        A single input may, if nothing else reads it. Of several, those may that only assemble
        outputs of a shuffle, at most one of each shuffle: this is a merge of two shuffles, and
        not the final concatenation of all outputs of one.
        """
        private = [s for s in bundle.inputs.values() if self._private(s, bundle.options)]
        if len(bundle.inputs) == 1:
            return private
        read = {source: list(self.bundles[source].inputs.values()) for source in private}
        assembling = {
            source: outputs
            for source, outputs in read.items()
            if outputs and all(isinstance(output, OutputKey) for output in outputs)
        }
        stages = [output.stage for outputs in assembling.values() for output in outputs]
        return list(assembling) if len(stages) == len(set(stages)) else []


def _in_driver(
    graph: Graph, aliases: dict[Key, Key], ranks: dict[Key, int], options: Mapping[Key, TaskOptions]
) -> dict[Key, TaskOptions]:
    """Return the options of the tasks of ``da.store`` that must run in this process.

    These use a target or lock that exists only here, or read what such a task has stored.
    """
    role_of = roles(graph)
    stores = [key for key, role in role_of.items() if role in ("storing", "loading")]
    is_local: dict[tuple[int, ...], bool] = {}  # by the identities of arguments
    driver_keys: set[Key] = set()
    for key in sorted(stores, key=ranks.__getitem__):
        node: Any = graph[key]
        values = [_literal(graph, aliases, arg) for arg in (*node.args[1:], *node.kwargs.values())]
        ids = tuple(id(v) for v in values if not isinstance(v, (tuple, bool, type(None))))
        if ids not in is_local:
            is_local[ids] = any(isinstance(v, np.ndarray) or not is_picklable(v) for v in values)
        stored = driver_keys.intersection(aliases.get(name, name) for name in node.dependencies)
        if is_local[ids] or (stored and role_of[key] == "loading"):
            driver_keys.add(key)
    return {key: replace(options.get(key, NO_OPTIONS), in_driver=True) for key in driver_keys}


def _literal(graph: Graph, aliases: dict[Key, Key], arg: Any) -> Any:
    """Return the value of an argument, or None if a task computes it."""
    if isinstance(arg, (Alias, TaskRef)):
        key = arg.target if isinstance(arg, Alias) else arg.key
        arg = graph.get(aliases.get(key, key))
    if isinstance(arg, GraphNode):
        return arg.value if isinstance(arg, DataNode) else None
    return arg
