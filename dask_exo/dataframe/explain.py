"""The plan of a computation, before it runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from dask.base import get_scheduler, is_dask_collection
from dask.utils import format_bytes, key_split, parse_bytes

from dask_exo.cluster.futures import Futures
from dask_exo.config import Config
from dask_exo.dask_adapter import collections_to_expr
from dask_exo.errors import InputError
from dask_exo.events import CheckpointSeen, QueriesCompiled
from dask_exo.planning.plan import GroupSummary, summarize
from dask_exo.planning.skew_resistant import SkewResistant
from dask_exo.report.render import Box, svg
from dask_exo.scheduler import Scheduler, plan_of
from dask_exo.shuffle.algorithms import choose_algorithm
from dask_exo.shuffle.choose import Choice, Shape, ShuffleCost
from dask_exo.shuffle.run_shuffle import limits_of


@dataclass(frozen=True)
class ShuffleEstimate:
    """One shuffle of a computation.

    Attributes
    ----------
    key, name : str
        Key of its group, and a readable name.
    parts, reducers : int
        M and R.
    sizes : list
        For each given size: the `Shape`, the `Choice`, and the `ShuffleCost` of each algorithm.
    """

    key: str
    name: str
    parts: int
    reducers: int
    sizes: list[tuple[Shape, Choice, dict[str, ShuffleCost]]]


@dataclass(frozen=True)
class Explanation:
    """Tasks and shuffles of a computation.

    Attributes
    ----------
    tasks : dict
        Tasks of each group (name → count) after fusion.
    shuffles : list of ShuffleEstimate
    heavy_hitters : list of str
        How each skew-resistant operation spreads heavy hitters.
    groups : list of GroupSummary
        Tasks of each collection, in topological order.
    edges : list of (str, str)
        Keys of groups: the second reads values of the first.
    checkpoints : list of CheckpointSeen
        Collections with checkpoints, and how many partitions are stored.
    nodes, slots, store : int
        Machines of the cluster, concurrent tasks, and bytes of object store.
    engine : str
        Whether it runs on threads or on Ray, and why; empty if ``futures`` were given.
    compiled : str
        How many parts run as queries of Polars, and what keeps others from it; empty if none could.
    """

    tasks: dict[str, int]
    shuffles: list[ShuffleEstimate]
    heavy_hitters: list[str]
    groups: list[GroupSummary]
    edges: list[tuple[str, str]]
    checkpoints: list[CheckpointSeen]
    nodes: int
    slots: int
    store: int
    engine: str = ""
    compiled: str = ""

    def __str__(self) -> str:
        """Return the totals, the groups of tasks, and the estimates of each shuffle, as text."""
        count = sum(self.tasks.values())
        cluster = f"{self.nodes} node(s) with {self.slots} slots"
        memory = f"{format_bytes(self.store)} of object store"
        totals = f"{count:,} tasks, shuffles: {len(self.shuffles)}"
        lines = [f"{totals}, on {cluster} and {memory}"]
        lines += [f"  {line}" for line in (self.engine, self.compiled) if line]
        lines += [f"  {number:>7,}  {name}" for name, number in self.tasks.items()]
        with_requests = [group for group in self.groups if group.needs]
        lines += [f"  each task of {group.name} needs {group.needs}" for group in with_requests]
        lines += ["", *self.heavy_hitters] if self.heavy_hitters else []
        lines += ["", *map(_checkpoint_line, self.checkpoints)] if self.checkpoints else []
        for shuffle in self.shuffles:
            lines += [
                "",
                f"shuffle {shuffle.name}: {shuffle.parts:,} parts into {shuffle.reducers:,}",
            ]
            for size in shuffle.sizes:
                lines += _lines(*size)
        return "\n".join(lines)

    __repr__ = __str__

    def svg(self) -> str:
        """Draw the graph as an ``<svg>`` element, with a box for each collection and shuffle."""
        return svg({group.key: self._box(group) for group in self.groups}, self.edges)

    def to_json(self) -> str:
        """Return JSON, with sizes in bytes and times in seconds.

        The object has ``nodes``, ``slots``, ``store``, ``groups``, ``edges``, ``shuffles`` and
        ``heavy_hitters``. A shuffle has, for each size, the bytes that it moves, the algorithm, the
        reason, and the cost of each algorithm.
        """
        shuffles = [
            {
                "name": shuffle.name,
                "parts": shuffle.parts,
                "reducers": shuffle.reducers,
                "sizes": [
                    {
                        "nbytes": shape.nbytes,
                        "algorithm": choice.algorithm,
                        "reason": choice.reason,
                        "costs": {name: asdict(cost) for name, cost in costs.items()},
                    }
                    for shape, choice, costs in shuffle.sizes
                ],
            }
            for shuffle in self.shuffles
        ]
        totals = {name: getattr(self, name) for name in ("nodes", "slots", "store", "edges")}
        groups = [asdict(group) for group in self.groups]
        return json.dumps(
            {**totals, "groups": groups, "shuffles": shuffles, "heavy_hitters": self.heavy_hitters}
        )

    def _repr_html_(self) -> str:
        """Show picture and text in a notebook."""
        return f"{self.svg()}<pre>{escape(str(self))}</pre>"

    def _box(self, group: GroupSummary) -> Box:
        if group.kind == "shuffle":
            (sizes,) = [shuffle.sizes for shuffle in self.shuffles if shuffle.key == group.key]
            algorithms = " or ".join(dict.fromkeys(choice.algorithm for _, choice, _ in sizes))
            lines = (f"shuffle {group.name}", f"{group.parts:,} → {group.tasks:,}: {algorithms}")
        else:
            lines = (group.name, f"{group.tasks:,} tasks")
        return Box(group.kind, (*lines, f"needs {group.needs}") if group.needs else lines)


def explain(
    *collections: Any, nbytes: int | str | None = None, futures: Futures | None = None
) -> Explanation:
    """Explain how Dask collections would be computed: tasks, shuffles, algorithms and costs.

    Nothing is computed. A shuffle chooses its algorithm after measuring its first maps. Here the
    choice is shown for the given size, or for one that fits into memory and one that does not.

    Parameters
    ----------
    *collections
        Dask dataframes, arrays, bags, delayed values.
    nbytes : int or str, optional
        Bytes that each shuffle moves (``"3TB"``).
    futures : Futures, optional
        The cluster; by default the one that Dask would use, which is started if necessary.

    Raises
    ------
    InputError
        An argument is not a Dask collection, or not a size; before a cluster is started.

    Examples
    --------
    >>> import pandas as pd
    >>> import dask.dataframe as dd
    >>> from dask_exo.testing import InlineFutures
    >>> ddf = dd.from_pandas(pd.DataFrame({"k": range(100)}), npartitions=50)
    >>> plan = explain(ddf.shuffle("k"), nbytes="80GB", futures=InlineFutures())
    >>> plan.shuffles[0].sizes[0][1].algorithm
    'push'
    >>> plan.svg()[:5], len(plan.groups)
    ('<svg ', 2)
    """
    _check(collections)
    size = None if nbytes is None else _size(nbytes)
    config = Config.current()
    expr = collections_to_expr(collections).optimize()
    plan = plan_of(expr, config)
    current = get_scheduler()
    scheduler = current if isinstance(current, Scheduler) and not futures else Scheduler(futures)
    futures, engine = scheduler.where(expr, plan, config)
    nodes = futures.nodes()
    slots, store = sum(n.slots for n in nodes), sum(n.store for n in nodes)
    limits = limits_of(config)
    fits = limits.memory_fraction * store
    sizes = [int(fits), int(3 * fits)] if size is None else [size]
    shuffles = []
    for stage in plan.stages:
        parts, reducers = len(stage.parts), len(stage.columns)
        shapes = [Shape(size, parts, reducers, len(nodes), slots, store) for size in sizes]
        estimates = [(shape, *choose_algorithm(shape, limits)) for shape in shapes]
        key, name = str(stage.key), stage.name
        shuffles.append(ShuffleEstimate(key, name, parts, reducers, estimates))
    tasks = dict(Counter(key_split(bundle.key) for bundle in plan.bundles))
    plans = [node.plan for node in expr.walk() if isinstance(node, SkewResistant)]
    hitters = list(dict.fromkeys(plans))
    groups, edges = summarize(plan)
    checkpoints = [each for each in plan.seen if isinstance(each, CheckpointSeen)]
    return Explanation(
        *(tasks, shuffles, hitters, groups, edges, checkpoints, len(nodes), slots, store),
        engine=str(engine),
        compiled="; ".join(
            _queries_line(each) for each in plan.seen if type(each) is QueriesCompiled
        ),
    )


def _check(collections: tuple[Any, ...]) -> None:
    if not collections:
        raise InputError("explain needs a Dask collection: give it what you would compute")
    for collection in collections:
        if not is_dask_collection(collection):
            raise InputError(
                f"explain takes Dask collections and not {type(collection).__name__!r}: give it "
                f"what you would call compute() on"
            )


def _size(nbytes: int | str) -> int:
    try:
        return int(parse_bytes(nbytes))
    except ValueError as error:
        raise InputError(
            f"nbytes={nbytes!r} is not a size: write a number of bytes, or for example '3TB'"
        ) from error


def _queries_line(seen: QueriesCompiled) -> str:
    left = ", ".join(f"{reason} ({count})" for reason, count in seen.reasons.items())
    share = f"Polars does {seen.operations} of {seen.blockwise} blockwise operations"
    return f"{share}, in queries: {seen.queries}" + (f"; pandas: {left}" if left else "")


def _checkpoint_line(seen: CheckpointSeen) -> str:
    if seen.refused:
        return f"checkpoint {seen.group}: not stored, since {seen.refused}"
    return f"checkpoint {seen.group}: {seen.found:,} of {seen.values:,} partitions are stored"


def _lines(shape: Shape, choice: Choice, costs: dict[str, ShuffleCost]) -> list[str]:
    input_size = format_bytes(shape.nbytes // max(shape.parts, 1))
    output_size = format_bytes(shape.nbytes // max(shape.reducers, 1))
    each = f"{input_size} a part, {output_size} an output"
    lines = [
        f"  of {format_bytes(shape.nbytes)} ({each})",
        f"  {choice.algorithm}, since {choice.reason}",
        "               objects    metadata     spilled    restored        sent    estimate",
    ]
    for name, cost in costs.items():
        sizes = (cost.metadata, cost.spilled, cost.restored, cost.sent)
        figures = "".join(f"{format_bytes(size):>12}" for size in sizes)
        marker = "▸" if name == choice.algorithm else " "
        lines.append(f"  {marker} {name:<10}{cost.objects:>10,}{figures}{cost.seconds:>10,.1f} s")
    return lines
