"""Fuse trees of tasks, and not only chains.

Dask splits a partition for a broadcast join, merges the blocks one by one and concatenates them:
four tasks, whose values would all go through the object store. A task of a tree reduction reads
eight others. Such a tree runs as one task if its kind is frequent enough to fill all slots; else
its tasks run in parallel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from dask_exo.planning.normalize import Key
from dask_exo.planning.plan import Bundle, Plan

TREES_PER_SLOT = 8
MOST_FUSED = 16


def fuse_trees(plan: Plan, slots: int) -> Plan:
    """Fuse bundles of a plan with those that only they read.

    Parameters
    ----------
    plan : Plan
    slots : int
        Number of tasks that run in parallel.
    """
    frequent = Counter(bundle.group for bundle in plan.bundles)
    if not plan.bundles or max(frequent.values()) < TREES_PER_SLOT * slots:
        return plan
    fusion = _TreeFusion(plan)
    for bundle in sorted(plan.bundles, key=lambda bundle: bundle.priority):
        if frequent[bundle.group] >= TREES_PER_SLOT * slots and bundle.key in fusion.bundles:
            fusion.fuse(bundle.key)
    return replace(plan, bundles=list(fusion.bundles.values()))


class _TreeFusion:
    """The bundles that are left, their readers, and how many bundles each consists of."""

    def __init__(self, plan: Plan) -> None:
        self.bundles = {bundle.key: bundle for bundle in plan.bundles}
        self._sizes: Counter[Key] = Counter(list(self.bundles))
        self._readers: dict[Key, set[Key | None]] = defaultdict(set)  # None: not a bundle
        for bundle in plan.bundles:
            for source in bundle.sources:
                self._readers[source].add(bundle.key)
        for source in plan.results.values():
            self._readers[source].add(None)
        for stage in plan.stages:
            for source in stage.sources:
                self._readers[source].add(None)

    def fuse(self, key: Key) -> None:
        """Fuse a bundle with those that only it reads, then with those that only these read."""
        outer = self.bundles[key]
        while inner := self._read_only_by(outer):
            size = self._sizes[key] + sum(self._sizes[bundle.key] for bundle in inner)
            if size > MOST_FUSED or not _names_agree([outer, *inner]):
                return
            self._sizes[key] = size
            outer = outer.copy()
            for bundle in inner:
                outer.absorb(bundle)
                self._move_readers(bundle, outer)
                del self.bundles[bundle.key]
            self.bundles[key] = outer

    def _read_only_by(self, outer: Bundle) -> list[Bundle]:
        """Find the bundles that only this one reads, and that run in the same kind of place."""
        sources = [source for source in outer.sources if self._readers[source] == {outer.key}]
        bundles = [self.bundles[source] for source in sources if source in self.bundles]
        same = [b for b in bundles if b.options == outer.options and not b.options.here]
        return sorted(same, key=lambda bundle: bundle.priority)

    def _move_readers(self, inner: Bundle, outer: Bundle) -> None:
        for source in inner.sources:
            self._readers[source].discard(inner.key)
            self._readers[source].add(outer.key)


def _names_agree(bundles: list[Bundle]) -> bool:
    """Return whether one name means the same value to all: outputs of one shuffle share theirs."""
    known: dict[Key, Key] = {}
    named = (item for bundle in bundles for item in bundle.inputs.items())
    return all(known.setdefault(name, source) == source for name, source in named)
