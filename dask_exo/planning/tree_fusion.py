"""Fuse more than chains: a task runs what it alone reads, where that leaves enough to do for all.

Dask splits a partition for a broadcast join, merges the pieces one by one and puts them together:
four tasks, whose values would all go through the object store. A task of a tree reads eight others.
Each such piece runs as one task if its kind is so frequent that all slots stay busy; else the
tasks inside it had better run side by side.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle, Plan

PER_SLOT = 8  # pieces of a kind that there must be for each slot
MOST = 16  # bundles that become one


def enclose(plan: Plan, slots: int) -> None:
    """Fuse bundles of a plan.

    Parameters
    ----------
    plan : Plan
        Changed in place.
    slots : int
        Tasks that run side by side.
    """
    frequent = Counter(bundle.group for bundle in plan.bundles)
    if not plan.bundles or max(frequent.values()) < PER_SLOT * slots:
        return
    fusing = _Fusing(plan)
    for bundle in sorted(plan.bundles, key=lambda bundle: bundle.priority):
        if frequent[bundle.group] >= PER_SLOT * slots and bundle.key in fusing.bundles:
            fusing.enclose(bundle)
    plan.bundles[:] = fusing.bundles.values()


class _Fusing:
    """The bundles that are left, who reads what, and how many have become one."""

    def __init__(self, plan: Plan) -> None:
        self.bundles = {bundle.key: bundle for bundle in plan.bundles}
        self._weights: Counter[Key] = Counter(list(self.bundles))
        self._readers: dict[Key, set[Key | None]] = defaultdict(set)  # None: not a bundle
        for bundle in plan.bundles:
            for source in bundle.sources:
                self._readers[source].add(bundle.key)
        for source in plan.results.values():
            self._readers[source].add(None)
        for stage in plan.stages:
            for source in stage.sources:
                self._readers[source].add(None)

    def enclose(self, bundle: Bundle) -> None:
        """Take in what only this bundle reads, and then what only those read."""
        while inner := self._enclosed(bundle):
            weight = self._weights[bundle.key] + sum(self._weights[one.key] for one in inner)
            if weight > MOST or not _agree([bundle, *inner]):
                return
            self._weights[bundle.key] = weight
            for one in inner:
                self._absorb(bundle, one)

    def _enclosed(self, bundle: Bundle) -> list[Bundle]:
        """Bundles that only this one reads."""
        found = []
        for source in bundle.sources:
            one = self.bundles.get(source)
            if one is None or self._readers[source] != {bundle.key}:
                continue
            if one.asked == bundle.asked and not one.asked.here:
                found.append(one)
        return sorted(found, key=lambda one: one.priority)

    def _absorb(self, bundle: Bundle, inner: Bundle) -> None:
        bundle.absorb(inner)
        for source in inner.sources:
            self._readers[source].discard(inner.key)
            self._readers[source].add(bundle.key)
        del self.bundles[inner.key]


def _agree(bundles: list[Bundle]) -> bool:
    """Whether one name means the same value to all: outputs of one shuffle share theirs."""
    known: dict[Key, Key] = {}
    named = (item for bundle in bundles for item in bundle.inputs.items())
    return all(known.setdefault(name, source) == source for name, source in named)
