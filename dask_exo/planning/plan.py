"""A plan: the bundles of tasks and the shuffle stages that run, and a summary of them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dask.core import toposort
from dask.utils import key_split
from tlz import groupby

from dask_exo.cluster.resources import Amounts, amounts_of
from dask_exo.dask_adapter import Alias, GraphNode, Task
from dask_exo.events import Event
from dask_exo.execution.checkpoints import PartCheckpoint, ShuffleCheckpoint
from dask_exo.execution.persisted import Promise
from dask_exo.planning.annotations import NO_OPTIONS, TaskOptions
from dask_exo.planning.graph_passes import inner_tasks
from dask_exo.planning.normalize import Key, group_of
from dask_exo.planning.partitioners import Partitioner
from dask_exo.shuffle.key_filters import JoinSide


class OutputKey(NamedTuple):
    """Name of one output of a shuffle, before it is assembled."""

    stage: Key
    slot: int


@dataclass(slots=True)
class Bundle:
    """A convex subgraph with one output that runs as one task.

    ``nodes`` have dependencies first; they are empty if the value is an input as it is. A node's
    own ``key`` may differ from its key in the graph. ``inputs`` maps the name of a value in the
    nodes to the key of the unit that computes it.
    """

    key: Key  # of the output
    nodes: list[tuple[Key, GraphNode]] = field(default_factory=list)
    inputs: dict[Key, Key] = field(default_factory=dict)
    literals: dict[Key, Any] = field(default_factory=dict)  # small values, sent with the code
    priority: int = 0  # lower runs first
    options: TaskOptions = NO_OPTIONS
    checkpoint: PartCheckpoint | None = None  # of its value, if it is an input of a shuffle

    @property
    def group(self) -> str:
        """Name of its collection, whose bundles have similar durations and sizes."""
        return group_of(self.key)

    @property
    def sources(self) -> set[Key]:
        """Keys of the values that it reads."""
        return set(self.inputs.values())

    @property
    def functions(self) -> list[Any]:
        """The function of each node; None for a node that calls none."""
        return [getattr(node, "func", None) for _, node in self.nodes]

    @property
    def getitem(self) -> bool:
        """True if it only picks an item out of a value."""
        return self.functions == [operator.getitem]

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
    """One shuffle: M inputs, and one output for each reducer that is read."""

    key: Key
    partitioner: Partitioner  # selects the outputs that are read
    parts: list[Bundle]  # (M,)
    columns: list[OutputKey]  # (R,)
    priority: int
    options: TaskOptions = NO_OPTIONS  # of the maps, which compute the inputs and divide them
    checkpoint: ShuffleCheckpoint | None = None  # of its outputs, if they may be stored

    @property
    def join(self) -> JoinSide | None:
        """See `Partitioner.join`; None for a shuffle that is not filtered, and filters none."""
        if self.checkpoint is not None or self.options.pool is not None:
            return None
        return self.partitioner.join

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

    ``results`` maps a key in the graph to that of the unit, literal or promise that has its value.
    """

    bundles: list[Bundle]
    stages: list[Stage]
    literals: dict[Key, Any]  # values that are in the graph itself
    promises: dict[Key, Promise]  # values of other computations, finished or running
    results: dict[Key, Key]
    seen: tuple[Event, ...] = ()  # by passes, for reports
    fingerprints: Mapping[Key, str] = field(default_factory=dict)  # of results

    @property
    def for_driver(self) -> set[Key]:
        """Keys of values that the driver reads: results, and inputs of bundles that run there."""
        here = (bundle.sources for bundle in self.bundles if bundle.options.in_driver)
        return set(self.results.values()).union(*here)


def labels(bundles: Iterable[Bundle]) -> dict[str, str]:
    """Return for each group the names of the functions that its bundles run, in their order.

    If some run more functions than others, it is only the name of the last one.
    """
    first: dict[str, Bundle] = {}
    differ: set[str] = set()
    for bundle in bundles:
        group = bundle.group
        if len(first.setdefault(group, bundle).nodes) != len(bundle.nodes):
            differ.add(group)
    return {
        group: label_of([] if group in differ else b.nodes, b.key) for group, b in first.items()
    }


def requests_of(plan: Plan, *, simulate: bool) -> list[Amounts]:
    """Return all different requests of tasks, without GPUs that are simulated if there is none."""
    units: list[Bundle | Stage] = [*plan.bundles, *plan.stages]
    real = [unit.options for unit in units if not (simulate and unit.options.device)]
    return list(dict.fromkeys(amounts_of(options.needs) for options in real))


def label_of(nodes: Iterable[tuple[Key, GraphNode]], key: Key) -> str:
    """Return the names of the functions that a bundle runs; that of its key if it has none."""
    names = [*dict.fromkeys(_names(nodes))] or [key_split(key)]
    return "+".join([*names[:3], "...", *names[-2:]] if len(names) > 6 else names)


def _names(nodes: Iterable[tuple[Key, GraphNode]]) -> Iterator[str]:
    for key, node in nodes:
        inner, name = inner_tasks(node), key_split(key)
        if inner:
            needs = {k: n.dependencies & inner.keys() for k, n in inner.items()}
            yield from _names((k, inner[k]) for k in toposort(inner, needs))
        elif isinstance(node, Task) and name != "operation":  # Dask's word for any expression
            yield name


@dataclass(frozen=True)
class GroupSummary:
    """The tasks of one collection, or one shuffle."""

    key: str  # unique in the plan
    name: str  # short, for people
    kind: str  # "tasks" or "shuffle"
    parts: int  # M of a shuffle; else 0
    tasks: int  # after fusion; R of a shuffle
    needs: str  # resource request of each task, or of each input of a shuffle; empty for one slot


def summarize(plan: Plan) -> tuple[list[GroupSummary], list[tuple[str, str]]]:
    """Group the units of a plan by collection; return the groups and the edges between them.

    Each group is after those that it reads, as far as there is such an order. An edge has the keys
    of two groups: the second reads values of the first.
    """
    members: dict[str, list[Bundle]] = groupby(operator.attrgetter("group"), plan.bundles)
    group_of_value = {bundle.key: bundle.group for bundle in plan.bundles}
    for stage in plan.stages:
        group_of_value |= dict.fromkeys(stage.columns, str(stage.key))
    ranked: list[tuple[int, GroupSummary]] = []
    reads: list[tuple[Key, str]] = []
    for key, bundles in members.items():
        name, rank = key_split(bundles[0].key), min(bundle.priority for bundle in bundles)
        summary = GroupSummary(key, name, "tasks", 0, len(bundles), _needs(bundles))
        ranked.append((rank, summary))
        reads += [(source, key) for bundle in bundles for source in bundle.sources]
    for stage in plan.stages:
        key, sizes = str(stage.key), (len(stage.parts), len(stage.columns))
        summary = GroupSummary(key, stage.name, "shuffle", *sizes, _needs(stage.parts))
        ranked.append((stage.priority, summary))
        reads += [(source, key) for source in stage.sources]
    groups = [summary for _, summary in sorted(ranked, key=operator.itemgetter(0))]
    edges = dict.fromkeys((group_of_value.get(source), key) for source, key in reads)
    group_edges = [(start, end) for start, end in edges if start is not None and start != end]
    return _ordered(groups, group_edges), group_edges


def _needs(bundles: list[Bundle]) -> str:
    """Return the distinct resource requests of bundles."""
    return "; ".join(dict.fromkeys(request for b in bundles if (request := _text(b.options))))


def _text(options: TaskOptions) -> str:
    if options.request is None:
        return ", ".join(f"{name}={value}" for name, value in options.needs.items())
    if not options.request.on_actors:
        return str(options.request)
    least, most = options.request.min_actors, options.request.max_actors
    many = "as many as fit" if most is None else f"{least or 1} to {most}"
    return f"{options.request}, on actors ({many})"


def _ordered(groups: list[GroupSummary], edges: list[tuple[str, str]]) -> list[GroupSummary]:
    """Sort each group after those that it reads; groups that read each other keep their order."""
    remaining = {group.key: group for group in groups}
    ordered: list[GroupSummary] = []
    while remaining:
        blocked = {end for start, end in edges if start in remaining and end in remaining}
        unblocked = [key for key in remaining if key not in blocked] or [next(iter(remaining))]
        ordered += [remaining.pop(key) for key in unblocked]
    return ordered
