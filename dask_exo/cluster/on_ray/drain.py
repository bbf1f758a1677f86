"""Nodes that are about to end: the cluster has given notice, as before a spot instance is taken.

Ray starts no tasks on such a node, but leaves its values there. A value that another node has a
copy of survives: Ray makes that copy the main one. All others are computed again when they are
needed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import cycle
from typing import Any

import ray
from ray._private.state import state
from ray.experimental import get_local_object_locations
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dask_exo.cluster.futures import Ref


def leaving() -> frozenset[str]:
    """Return the ids of the nodes that are about to end."""
    return frozenset(state.get_draining_nodes())


def copy_away(refs: Collection[Ref], ending: frozenset[str], others: Sequence[str]) -> list[Ref]:
    """Copy the values that only ``ending`` nodes have to ``others``; return their refs."""
    places = get_local_object_locations(list(refs))
    only_there = [ref for ref in refs if _ends(places.get(ref, {}), ending)]
    for ref, node in zip(only_there, cycle(others), strict=False):
        place = NodeAffinitySchedulingStrategy(node, soft=True)
        _remote_have.options(num_cpus=0, name="copy", scheduling_strategy=place).remote(ref)
    return only_there


def _ends(place: dict[str, Any], ending: frozenset[str]) -> bool:
    nodes = set(place.get("node_ids") or ())
    return bool(nodes) and nodes <= ending


def _have(_: Any) -> None:
    """Do nothing: the node has a copy of the argument now."""


_remote_have: Any = ray.remote(_have)
