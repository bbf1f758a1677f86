"""Joins of shuffled sides: shuffles that only a join reads, and that may filter each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from dask_exo.dask_adapter import CoreExpr, Projection, elementwise
from dask_exo.partitions.kernels import key_filter
from dask_exo.planning.expressions import ExoShuffle, MergePartitions
from dask_exo.shuffle.key_filters import FilterSource, JoinSide


def join_keys(expr: CoreExpr) -> tuple[list[Any], list[Any]] | None:
    """Return the columns of both sides that a join compares; None for another expression."""
    if type(expr) is not MergePartitions or expr.left_index or expr.right_index:
        return None
    left, right = (on if isinstance(on, list) else [on] for on in (expr.left_on, expr.right_on))
    known = set(left) <= set(expr.left.columns) and set(right) <= set(expr.right.columns)
    return (left, right) if known else None


_FILTERED = {"left": ("inner", "right", "leftsemi"), "right": ("inner", "left", "leftsemi")}
"""Joins that drop rows of a side which find no partner in the other one."""


def link_joins(expr: CoreExpr) -> dict[str, CoreExpr]:
    """Tell shuffles which others may filter their rows, since only a join reads them.

    Return the shuffles to replace, by name.
    """
    nodes = {node._name: node for node in expr.walk()}.values()
    readers = Counter(name for node in nodes for name in {n._name for n in node.dependencies()})
    linked: dict[str, CoreExpr] = {}
    sources: dict[str, list[tuple[str, Any, Any]]] = defaultdict(list)
    for join in nodes:
        keys = join_keys(join)
        if keys is None or any(map(_has_categories, join.dependencies())):
            continue  # the categories of a result depend on all values
        sides = ("left", join.left, keys[0]), ("right", join.right, keys[1])
        for (name, side, on), (_, other, other_on) in (sides, sides[::-1]):
            larger = side
            while type(larger) is Projection and readers[larger._name] == 1:
                larger = larger.frame
            private = isinstance(larger, ExoShuffle) and readers[larger._name] == 1
            if not private or join.how not in _FILTERED[name]:
                continue
            for smaller, labels in _shuffled_keys(other, other_on):
                pairs = [
                    (key, column)
                    for key, column in zip(labels, on, strict=True)
                    if key_filter.can_filter(smaller._meta[key].dtype, larger._meta[column].dtype)
                ]
                if pairs and smaller._name != larger._name:
                    linked |= {larger._name: larger, smaller._name: smaller}
                    columns, others = zip(*pairs, strict=True)
                    sources[larger._name].append((smaller._name, columns, others))
    # fingerprints of a program contain these numbers, which are the same in the next one
    numbers = {name: str(i) for i, name in enumerate(linked)}
    replacements: dict[str, CoreExpr] = {}
    for name, shuffle in linked.items():
        filters = [FilterSource(numbers[source], *keys) for source, *keys in sources[name]]
        replacements[name] = shuffle.substitute_parameters(
            {"join": JoinSide(numbers[name], tuple(filters))}
        )
    return replacements


def _has_categories(expr: CoreExpr) -> bool:
    return len(expr._meta.select_dtypes("category").columns) > 0


def _shuffled_keys(expr: CoreExpr, on: list[Any]) -> Iterator[tuple[ExoShuffle, list[Any]]]:
    """Yield shuffles below an expression which have all values of its columns ``on``."""
    keys = join_keys(expr)
    if isinstance(expr, ExoShuffle):
        yield expr, on
    elif type(expr) in (Projection, elementwise.Filter) and set(on) <= set(expr.frame.columns):
        yield from _shuffled_keys(expr.frame, on)
    elif keys is not None:
        same = {a for a, b in zip(*keys, strict=True) if a == b}  # one column of the result
        sides = [(expr.left, expr.right)] * (expr.how in ("inner", "left", "leftsemi"))
        sides += [(expr.right, expr.left)] * (expr.how in ("inner", "right"))
        for side, other in sides:
            if set(on) <= set(side.columns) - (set(other.columns) - same):
                yield from _shuffled_keys(side, on)
