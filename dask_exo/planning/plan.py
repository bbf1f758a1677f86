"""From a graph to the units that run: bundles of tasks, and shuffle stages.

A *bundle* is a convex subgraph with one output that runs as one task. Linear chains are fused. A
shuffle is a *stage*: its inputs are bundles too, fused into the maps if nothing else reads them.
Each output is assembled by the one bundle that reads it. So neither the input partitions nor the
unsorted outputs enter the object store.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from dask.sizeof import sizeof
from dask.utils import key_split

from dask_exo.dask_adapter import Alias, DataNode, GraphNode, Task, TaskRef, order, role
from dask_exo.events import CheckpointSeen
from dask_exo.execution.checkpoints import PartCheckpoint, ShuffleCheckpoint
from dask_exo.execution.persisted import Promise, promised
from dask_exo.planning.annotations import NO_OPTIONS, TaskOptions
from dask_exo.planning.normalize import Graph, Key, group_of
from dask_exo.planning.partitioners import Partitioner, ShuffleNode


class OutputKey(NamedTuple):
    """Name of one output of a shuffle, before it is assembled."""

    stage: Key
    slot: int


@dataclass(slots=True)
class Bundle:
    """Tasks that run together and return one value.

    Attributes
    ----------
    key : Key
        Key of the value.
    nodes : list of (Key, GraphNode)
        Dependencies first; empty if the value is an input as it is. A node's own ``key`` may
        differ from its key in the graph.
    inputs : dict
        Name of a value in the nodes → key of the unit that computes it.
    literals : dict
        Name → small value that is sent with the code.
    priority : int
        Lower runs first.
    options : TaskOptions
        Resources, retries and priority.
    label : PartCheckpoint, optional
        Where its value is stored, if it is a shuffle's input that may be checkpointed.
    """

    key: Key
    nodes: list[tuple[Key, GraphNode]] = field(default_factory=list)
    inputs: dict[Key, Key] = field(default_factory=dict)
    literals: dict[Key, Any] = field(default_factory=dict)
    priority: int = 0
    options: TaskOptions = NO_OPTIONS
    label: PartCheckpoint | None = None

    @property
    def group(self) -> str:
        """Name of its collection, whose bundles have similar durations and sizes."""
        return group_of(self.key)

    @property
    def sources(self) -> set[Key]:
        """Keys of the values that it reads."""
        return set(self.inputs.values())

    @property
    def getitem(self) -> bool:
        """True if it only picks an item out of a value."""
        return [getattr(node, "func", None) for _, node in self.nodes] == [operator.getitem]

    def copy(self) -> Bundle:
        """Return a bundle that `absorb` can change without changing this one."""
        return replace(
            self, nodes=[*self.nodes], inputs=dict(self.inputs), literals=dict(self.literals)
        )

    def absorb(self, inner: Bundle) -> None:
        """Run ``inner``, whose value this bundle reads, inside it."""
        names = [name for name, source in self.inputs.items() if source == inner.key]
        for name in names:
            del self.inputs[name]
        aliases = [(name, Alias(name, inner.key)) for name in names if name != inner.key]
        self.nodes[:0] = [*inner.nodes, *aliases]
        self.inputs.update(inner.inputs)
        self.literals.update(inner.literals)


@dataclass(slots=True)
class Stage:
    """One shuffle: M inputs, and one output for each reducer that is read.

    Attributes
    ----------
    key : Key
    partitioner : Partitioner
        Selects the outputs that are read.
    parts : list of Bundle
        (M,)
    columns : list of OutputKey
        (R,)
    priority : int
    options : TaskOptions
        Options of the maps, which compute the inputs and divide them.
    keeping : ShuffleCheckpoint, optional
        Checkpoints of its outputs, if they may be stored.
    """

    key: Key
    partitioner: Partitioner
    parts: list[Bundle]
    columns: list[OutputKey]
    priority: int
    options: TaskOptions = NO_OPTIONS
    keeping: ShuffleCheckpoint | None = None

    @property
    def sources(self) -> set[Key]:
        """Keys of the values that its inputs read."""
        return {source for part in self.parts for source in part.inputs.values()}

    @property
    def name(self) -> str:
        """Short name for people."""
        return key_split(self.key[0].removeprefix("exchange-"))

    @property
    def label(self) -> str:
        """Name that is unique among shuffles of the same kind."""
        return f"{self.name}-{self.key[0][-4:]}"


@dataclass(slots=True)
class Plan:
    """All units of one run.

    Attributes
    ----------
    bundles : list of Bundle
    stages : list of Stage
    literals : dict
        Values that are in the graph itself.
    given : dict
        Values of other computations, finished or running.
    results : dict
        Key in the graph → key of the unit, literal or given value that holds its value.
    seen : tuple of CheckpointSeen
        Checkpoints found of each collection.
    fingerprints : dict
        Fingerprints of results, if checkpoints are on.
    """

    bundles: list[Bundle]
    stages: list[Stage]
    literals: dict[Key, Any]
    given: dict[Key, Promise]
    results: dict[Key, Key]
    seen: tuple[CheckpointSeen, ...] = ()
    fingerprints: Mapping[Key, str] = field(default_factory=dict)


def plan(
    graph: Graph,
    keys: set[Key],
    *,
    small: int,
    options: Mapping[Key, TaskOptions] | None = None,
    fuse: bool = True,
) -> Plan:
    """Cut a graph into units.

    Parameters
    ----------
    graph : dict
        Normalized and culled.
    keys : set of Key
        Those options for: their values are kept.
    small : int
        Bytes up to which a literal is copied into each task that reads it.
    options : mapping, optional
        Options of the tasks that have any.
    fuse : bool
        Whether tasks may run inside others, so that the driver does not see their values.
    """
    aliases = _aliases(graph)
    literals = {key: node.value for key, node in graph.items() if isinstance(node, DataNode)}
    given = {key: found for key, node in graph.items() if (found := promised(node))}
    results = {key: aliases.get(key, key) for key in keys}
    kept = set(results.values()) if fuse else set(graph)
    planner = _Planner(graph, aliases, literals, kept, small=small, options=options or {})
    there = literals.keys() | given.keys()
    for key in sorted(graph, key=planner.ranks.__getitem__):
        if key not in there and not isinstance(graph[key], (Alias, ShuffleNode)):
            planner.add(key)
    stages = [planner.stage(node) for node in graph.values() if isinstance(node, ShuffleNode)]
    planner.order_columns()
    return Plan(list(planner.bundles.values()), stages, literals, given, results)


class _Planner:
    """The bundles so far, and the facts about the graph that fusion needs."""

    def __init__(
        self,
        graph: Graph,
        aliases: dict[Key, Key],
        literals: dict[Key, Any],
        kept: set[Key],
        *,
        small: int,
        options: Mapping[Key, TaskOptions],
    ) -> None:
        self.ranks: dict[Key, int] = order(graph)
        self.bundles: dict[Key, Bundle] = {}
        self._graph, self._aliases, self._kept, self._options = graph, aliases, kept, options
        self._light = {key: value for key, value in literals.items() if sizeof(value) <= small}
        self._columns: dict[Key, set[int]] = defaultdict(set)
        self._staying: dict[tuple[int, ...], bool] = {}  # by the identities of arguments
        self._readers: dict[Key, set[Key]] = defaultdict(set)
        for key, node in graph.items():
            if not isinstance(node, Alias):
                for name in node.dependencies:
                    self._readers[aliases.get(name, name)].add(key)

    def add(self, key: Key) -> None:
        """Add the bundle of one node, and fuse those inputs that can run inside it."""
        node = self._graph[key]
        options = self._options.get(key, NO_OPTIONS)
        if (role(node) in ("storing", "loading") and self._stays(node)) or (
            role(node) == "loading" and self._from_here(node)
        ):
            options = replace(options, here=True)
        bundle = Bundle(key, priority=self.ranks[key], options=options)
        for name in sorted(node.dependencies, key=self.ranks.__getitem__):
            source = self._aliases.get(name, name)
            if isinstance(self._graph[source], ShuffleNode):
                source = OutputKey(source, _slot(node))
                self._columns[source.stage].add(source.slot)
                node = Task(key, _same, Alias(name))
            if source in self._light:
                bundle.literals[name] = self._light[source]
            else:
                bundle.inputs[name] = source
        bundle.nodes.append((key, node))
        for source in self._fusable(bundle):
            bundle.absorb(self.bundles.pop(source))
        self.bundles[key] = bundle

    def _stays(self, node: GraphNode) -> bool:
        """Return whether a task of ``da.store`` uses a target or lock of this process only."""
        assert isinstance(node, Task)
        mine = [self._literal(arg) for arg in (*node.args[1:], *node.kwargs.values())]
        fixed = tuple(id(arg) for arg in mine if not isinstance(arg, (tuple, bool, type(None))))
        if fixed not in self._staying:
            self._staying[fixed] = any(isinstance(arg, np.ndarray) for arg in mine) or any(
                not _sendable(arg) for arg in mine
            )
        return self._staying[fixed]

    def _from_here(self, node: GraphNode) -> bool:
        """Return whether a task reads what one that runs in this process has stored."""
        sources = [self._aliases.get(name, name) for name in node.dependencies]
        return any(key in self.bundles and self.bundles[key].options.here for key in sources)

    def _literal(self, arg: Any) -> Any:
        """Return the value of an argument, or None if a task computes it."""
        if isinstance(arg, (Alias, TaskRef)):
            key = arg.target if isinstance(arg, Alias) else arg.key
            arg = self._graph.get(self._aliases.get(key, key))
        if isinstance(arg, GraphNode):
            return arg.value if isinstance(arg, DataNode) else None
        return arg

    def stage(self, exchange: ShuffleNode) -> Stage:
        """Make a stage; bundles that only it reads become its inputs."""
        sources = [self._aliases.get(ref.key, ref.key) for ref in exchange.args]
        uses, rank = Counter(sources), self.ranks[exchange.key]
        options = self._options.get(exchange.key, NO_OPTIONS)
        options = options if options.device else NO_OPTIONS
        parts = [
            self.bundles.pop(source)
            if uses[source] == 1 and self._private(source, options)
            else Bundle(source, inputs={source: source}, priority=rank, options=options)
            for source in sources
        ]
        partitioner: Partitioner = exchange.partitioner
        used = sorted(self._columns[exchange.key])
        if len(used) < len(partitioner.numbers):
            partitioner = partitioner.select(used)
        columns = [OutputKey(exchange.key, j) for j in used]
        return Stage(exchange.key, partitioner, parts, columns, rank, options)

    def order_columns(self) -> None:
        """Run readers of one shuffle's outputs in the order of the reducers.

        Dask orders them as text: 1, 10, 100, 2. Blocks of neighbours are in the same objects.
        """
        alike: dict[Any, list[tuple[int, Bundle]]] = defaultdict(list)
        for bundle in self.bundles.values():
            columns = [source for source in bundle.inputs.values() if isinstance(source, OutputKey)]
            if columns:
                kind = columns[0].stage, frozenset(self._readers[bundle.key])
                alike[kind].append((columns[0].slot, bundle))
        for found in alike.values():
            priorities = sorted(bundle.priority for _, bundle in found)
            found.sort(key=operator.itemgetter(0))
            for priority, (_, bundle) in zip(priorities, found, strict=True):
                bundle.priority = priority

    def _private(self, source: Key, options: TaskOptions) -> bool:
        """Return whether only one node reads a bundle's value, and their options are equal."""
        if source not in self.bundles or self.bundles[source].options != options or options.here:
            return False
        return len(self._readers[source]) == 1 and source not in self._kept

    def _fusable(self, bundle: Bundle) -> list[Key]:
        """Return the inputs that may run inside this bundle without losing parallelism.

        A single input may, if nothing else reads it. Of several, those may that only assemble
        outputs of a shuffle, at most one of each shuffle: this is a merge of two shuffles, and
        not the final concatenation of all outputs of one.
        """
        inputs = bundle.inputs.values()
        private = [source for source in inputs if self._private(source, bundle.options)]
        if len(bundle.inputs) == 1:
            return private
        assembling = [source for source in private if _stages_read(self.bundles[source])]
        stages = [stage for s in assembling for stage in _stages_read(self.bundles[s])]
        return assembling if len(stages) == len(set(stages)) else []


def _same(value: Any) -> Any:
    return value


def _sendable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  any error means that it cannot be sent
        return False
    return True


def _slot(output: GraphNode) -> int:
    """Return the number of the output that a node of `ExoShuffle` takes."""
    assert isinstance(output, Task)
    slot = output.args[1]
    assert isinstance(slot, int)
    return slot


def _aliases(graph: Graph) -> dict[Key, Key]:
    """Return the final target of each alias."""
    found: dict[Key, Key] = {}
    for key, node in graph.items():
        target: GraphNode | None = node
        while isinstance(target, Alias):
            found[key] = target.target
            target = graph.get(target.target)
    return found


def _stages_read(bundle: Bundle) -> list[Key]:
    """Return the stages whose outputs a bundle reads, if it reads nothing else."""
    sources = bundle.inputs.values()
    stages = [source.stage for source in sources if isinstance(source, OutputKey)]
    return stages if len(stages) == len(bundle.inputs) else []
