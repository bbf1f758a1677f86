"""From a graph to the units that run: bundles of tasks, and shuffle stages.

A *bundle* is a convex piece of the graph with one output that runs as one task. Linear chains
are fused. A shuffle is a *stage*: its parts are bundles too, fused into the maps where nobody
else reads them, and each of its outputs is a *column* that the one bundle reading it
assembles for itself, so that neither the unsplit nor the unsorted partition enters the store.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dask.sizeof import sizeof
from dask.utils import key_split

from dask_exo.dask_adapter import Alias, DataNode, GraphNode, Task, order
from dask_exo.graph.normalize import Graph, Key
from dask_exo.graph.rewrite import Exchange, Split


class ColumnKey(NamedTuple):
    """Name of one output of a shuffle, before it is assembled."""

    stage: Key
    slot: int


@dataclass(slots=True)
class Bundle:
    """Tasks that run together and leave one value.

    Attributes
    ----------
    key : Key
        Of the value.
    nodes : list of (Key, GraphNode)
        Dependencies first; empty where the value is an input as it is. A node's own ``key`` is not
        always the one under which it is in the graph.
    inputs : dict
        Name under which the nodes know a value → key of the unit that makes it.
    literals : dict
        Name → small value that goes with the code.
    priority : int
        Lower runs first.
    """

    key: Key
    nodes: list[tuple[Key, GraphNode]] = field(default_factory=list)
    inputs: dict[Key, Key] = field(default_factory=dict)
    literals: dict[Key, Any] = field(default_factory=dict)
    priority: int = 0

    @property
    def group(self) -> str:
        """Name of the collection it belongs to: bundles of one group take alike."""
        return self.key[0] if isinstance(self.key, tuple) else key_split(self.key)

    @property
    def sources(self) -> set[Key]:
        """Keys of the values it reads."""
        return set(self.inputs.values())

    @property
    def getitem(self) -> bool:
        """Whether it only picks an item out of a value."""
        return [getattr(node, "func", None) for _, node in self.nodes] == [operator.getitem]


@dataclass(slots=True)
class Stage:
    """One shuffle: M parts in, one column for each output that is read.

    Attributes
    ----------
    key : Key
    split : Split
        With only the outputs that are read.
    parts : list of Bundle
        (M,)
    columns : list of ColumnKey
        (R,)
    priority : int
    """

    key: Key
    split: Split
    parts: list[Bundle]
    columns: list[ColumnKey]
    priority: int

    @property
    def sources(self) -> set[Key]:
        """Keys of the values that its parts read."""
        return {source for part in self.parts for source in part.inputs.values()}

    @property
    def name(self) -> str:
        """Short name for people."""
        return key_split(self.key[0].removeprefix("exchange-"))


@dataclass(slots=True)
class Plan:
    """All units of one run.

    Attributes
    ----------
    bundles : list of Bundle
    stages : list of Stage
    literals : dict
        Values that are in the graph itself.
    results : dict
        Key in the graph → key of the unit or literal that has its value.
    """

    bundles: list[Bundle]
    stages: list[Stage]
    literals: dict[Key, Any]
    results: dict[Key, Key]


def plan(graph: Graph, keys: set[Key], *, small: int) -> Plan:
    """Cut a graph into units.

    Parameters
    ----------
    graph : dict
        Normalized and culled.
    keys : set of Key
        Those asked for: their values are kept.
    small : int
        Bytes up to which a literal is copied into each task that reads it.
    """
    ranks = order(graph)
    aliases, literals = _aliases(graph), _literals(graph)
    results = {key: aliases.get(key, key) for key in keys}
    asked = set(results.values())
    light = {key for key, value in literals.items() if sizeof(value) <= small}
    readers = _readers(graph, aliases)
    bundles: dict[Key, Bundle] = {}
    exchanges: list[Key] = []
    columns: dict[Key, set[int]] = defaultdict(set)

    for key in sorted(graph, key=ranks.__getitem__):
        node = graph[key]
        if key in literals or isinstance(node, Alias):
            continue
        if isinstance(node, Exchange):
            exchanges.append(key)
            continue
        bundle = Bundle(key, priority=ranks[key])
        for name in sorted(node.dependencies, key=ranks.__getitem__):
            source = aliases.get(name, name)
            if isinstance(graph.get(source), Exchange):
                source = ColumnKey(source, _slot(node))
                columns[source.stage].add(source.slot)
                node = Task(key, _same, Alias(name))
            if source in light:
                bundle.literals[name] = literals[source]
            else:
                bundle.inputs[name] = source
        bundle.nodes.append((key, node))
        for name, source in _fusable(bundle, bundles, readers, asked):
            _absorb(bundle, name, bundles.pop(source))
        bundles[key] = bundle

    stages = [
        _stage(graph[key], sorted(columns[key]), ranks[key], aliases, readers, asked, bundles)
        for key in exchanges
    ]
    return Plan(list(bundles.values()), stages, literals, results)


def _same(value: Any) -> Any:
    return value


def _slot(output: GraphNode) -> int:
    """Which output of the shuffle an output node of `ExoShuffle` takes."""
    slot = output.args[1]
    assert isinstance(slot, int)
    return slot


def _aliases(graph: Graph) -> dict[Key, Key]:
    """Where each alias leads in the end."""
    found: dict[Key, Key] = {}
    for key, node in graph.items():
        if isinstance(node, Alias):
            target = node.target
            while isinstance(graph.get(target), Alias):
                target = graph[target].target
            found[key] = target
    return found


def _literals(graph: Graph) -> dict[Key, Any]:
    return {key: node.value for key, node in graph.items() if isinstance(node, DataNode)}


def _readers(graph: Graph, aliases: dict[Key, Key]) -> dict[Key, set[Key]]:
    readers: dict[Key, set[Key]] = defaultdict(set)
    for key, node in graph.items():
        if not isinstance(node, Alias):
            for name in node.dependencies:
                readers[aliases.get(name, name)].add(key)
    return readers


def _columns(bundle: Bundle) -> list[Key]:
    """Stages whose columns a bundle reads, if it reads nothing else."""
    sources = bundle.inputs.values()
    stages = [source.stage for source in sources if isinstance(source, ColumnKey)]
    return stages if len(stages) == len(bundle.inputs) else []


def _fusable(
    bundle: Bundle, bundles: dict[Key, Bundle], readers: dict[Key, set[Key]], asked: set[Key]
) -> list[tuple[Key, Key]]:
    """Inputs whose bundles may run inside this one without losing parallelism.

    A lone input may, if nobody else reads it. Of several, those may that only assemble columns,
    one of each shuffle at most: that is a merge of two shuffles, and not the final concatenation
    of all of one shuffle's outputs.
    """
    private = [
        (name, source)
        for name, source in bundle.inputs.items()
        if source in bundles and len(readers[source]) == 1 and source not in asked
    ]
    if len(bundle.inputs) == 1:
        return private
    from_columns = [(n, s) for n, s in private if _columns(bundles[s])]
    stages = [stage for _, source in from_columns for stage in _columns(bundles[source])]
    return from_columns if len(stages) == len(set(stages)) else []


def _absorb(bundle: Bundle, name: Key, inner: Bundle) -> None:
    """Run ``inner`` inside ``bundle``, which knows its value as ``name``."""
    del bundle.inputs[name]
    bundle.inputs.update(inner.inputs)
    bundle.literals.update(inner.literals)
    if name != inner.key:
        bundle.nodes.insert(0, (name, Alias(name, inner.key)))
    bundle.nodes[:0] = inner.nodes


def _stage(
    exchange: GraphNode,
    used: list[int],
    priority: int,
    aliases: dict[Key, Key],
    readers: dict[Key, set[Key]],
    asked: set[Key],
    bundles: dict[Key, Bundle],
) -> Stage:
    """Make a stage; bundles that only it reads become its parts."""
    split: Split = exchange.func
    sources = [aliases.get(ref.key, ref.key) for ref in exchange.args]
    uses = Counter(sources)
    parts = []
    for source in sources:
        private = len(readers[source]) == 1 and source not in asked and uses[source] == 1
        if private and source in bundles:
            parts.append(bundles.pop(source))
        else:
            parts.append(Bundle(source, inputs={source: source}, priority=priority))
    kept = split.kept
    if len(used) < len(split.numbers):
        kept = tuple(split.numbers[j] for j in used)
    read = Split(
        split.column,
        split.npartitions,
        kept,
        split.keys,
        ignore_index=split.ignore_index,
        drop=split.drop,
    )
    return Stage(exchange.key, read, parts, [ColumnKey(exchange.key, j) for j in used], priority)
