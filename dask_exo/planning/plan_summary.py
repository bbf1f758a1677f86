"""Summary of a plan: its collections and shuffles, and which of them read which."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from dask.utils import key_split

from dask_exo.planning.annotations import TaskOptions
from dask_exo.planning.plan import Bundle, OutputKey, Plan


@dataclass(frozen=True)
class GroupSummary:
    """The tasks of one collection, or one shuffle.

    Attributes
    ----------
    key : str
        Unique in the plan.
    name : str
        Short name for people.
    kind : {"tasks", "shuffle"}
    parts : int
        M of a shuffle; else 0.
    tasks : int
        How many there are after fusion; R of a shuffle.
    needs : str
        Resource request of each task (of a shuffle: of each input); empty for one slot.
    """

    key: str
    name: str
    kind: str
    parts: int
    tasks: int
    needs: str


def summarize(plan: Plan) -> tuple[list[GroupSummary], list[tuple[str, str]]]:
    """Group the units of a plan by collection.

    Returns
    -------
    groups : list of GroupSummary
        Each after those that it reads, as far as there is such an order.
    edges : list of (str, str)
        Keys of groups: the second reads values of the first.
    """
    belongs = {bundle.key: bundle.group for bundle in plan.bundles}
    members: dict[str, list[Bundle]] = {}
    for bundle in plan.bundles:
        members.setdefault(bundle.group, []).append(bundle)
    found: dict[str, GroupSummary] = {}
    first: dict[str, int] = {}
    edges: Counter[tuple[str, str]] = Counter()
    for key, bundles in members.items():
        name = key_split(bundles[0].key)
        found[key] = GroupSummary(key, name, "tasks", 0, len(bundles), _needs(bundles))
        first[key] = min(bundle.priority for bundle in bundles)
        edges.update((_group(s, belongs), key) for bundle in bundles for s in bundle.sources)
    for stage in plan.stages:
        key, sizes = str(stage.key), (len(stage.parts), len(stage.columns))
        found[key] = GroupSummary(key, stage.name, "shuffle", *sizes, _needs(stage.parts))
        first[key] = stage.priority
        edges.update((_group(source, belongs), key) for source in stage.sources)
    groups = sorted(found.values(), key=lambda group: first[group.key])
    known = [(a, b) for a, b in edges if a in found and a != b]
    return _ordered(groups, known), known


def _group(source: Any, belongs: dict[Any, str]) -> str:
    """Return the key of the group that computes a value; empty if it is given."""
    if isinstance(source, OutputKey):
        return str(source.stage)
    return belongs.get(source, "")


def _needs(bundles: list[Bundle]) -> str:
    """Return the distinct resource requests of bundles."""
    return "; ".join(dict.fromkeys(text for b in bundles if (text := _text(b.options))))


def _text(options: TaskOptions) -> str:
    if options.asks is None:
        return ", ".join(f"{name}={value}" for name, value in options.needs.items())
    if not options.asks.on_actors:
        return str(options.asks)
    least, most = options.asks.min_actors, options.asks.max_actors
    many = "as many as fit" if most is None else f"{least or 1} to {most}"
    return f"{options.asks}, on actors ({many})"


def _ordered(groups: list[GroupSummary], edges: list[tuple[str, str]]) -> list[GroupSummary]:
    """Sort groups after those that they read; groups that read each other keep their order."""
    left = {group.key: group for group in groups}
    ordered: list[GroupSummary] = []
    while left:
        blocked = {end for start, end in edges if start in left and end in left}
        free = [key for key in left if key not in blocked] or [next(iter(left))]
        ordered += [left.pop(key) for key in free]
    return ordered
