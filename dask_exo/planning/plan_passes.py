"""Passes over a plan: each returns the plan to run instead, with the same results.

A graph is cut into a plan before a cluster is needed. All of `PASSES` run between that and the
first task; nothing changes a plan afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from dask_exo.cluster.futures import Node
from dask_exo.config import Config
from dask_exo.dask_adapter import concat_partitions
from dask_exo.errors import DeviceError
from dask_exo.events import QueriesCompiled
from dask_exo.execution.checkpoints import PartCheckpoint
from dask_exo.planning.annotations import NO_OPTIONS, TaskOptions
from dask_exo.planning.normalize import Key
from dask_exo.planning.placement import ANY_ENGINE, EngineChoice
from dask_exo.planning.plan import Bundle, Plan, Stage
from dask_exo.planning.resume import Checkpoints


@dataclass(frozen=True)
class PassContext:
    """Facts that passes use besides the plan."""

    config: Config
    checkpoints: Checkpoints
    nodes: Sequence[Node] = ()  # of the cluster; empty if there is none yet
    engine: EngineChoice = ANY_ENGINE
    queries: QueriesCompiled | None = None  # what Polars does
    fuse: bool = True  # the driver need not see the values of tasks that run inside others
    repeatable: bool = False  # it may run again if a task that ran again returned another value


def run_passes(plan: Plan, context: PassContext) -> Plan:
    """Run all passes in their order; raise `DeviceError` if no node has the GPUs of a task."""
    for run in PASSES.values():
        plan = run(plan, context)
    return plan


def _attach_checkpoints(plan: Plan, context: PassContext) -> Plan:
    """Tell tasks and shuffles where to store the values that the next program may read."""
    checkpoints, overhead = context.checkpoints, context.config.checkpoint_overhead

    def attach(bundle: Bundle) -> Bundle:
        key = checkpoints.parts.get(bundle.key)
        if key is None or not bundle.nodes or bundle.options != NO_OPTIONS:
            return bundle
        return replace(bundle, checkpoint=PartCheckpoint(key, overhead))

    seen = (*checkpoints.seen, *([context.queries] if context.queries else []))
    plan = replace(plan, seen=seen, fingerprints=checkpoints.fingerprints)
    if not checkpoints.parts and not checkpoints.shuffles:
        return plan
    stages = []
    for stage in plan.stages:
        parts, outputs = list(map(attach, stage.parts)), checkpoints.shuffles.get(stage.key)
        stages.append(replace(stage, parts=parts, checkpoint=outputs))
    return replace(plan, bundles=list(map(attach, plan.bundles)), stages=stages)


def _check_gpus(plan: Plan, context: PassContext) -> Plan:
    """Check that a node has the GPUs that tasks on GPU partitions request.

    Where GPUs are simulated and the cluster has no slots for them either, these become CPU tasks.
    """
    nodes = context.nodes
    units: list[Bundle | Stage] = [*plan.bundles, *plan.stages]
    units = [unit for unit in units if unit.options.device]
    if not units or not nodes or any(node.resources is None for node in nodes):
        return plan
    share = max(float(unit.options.needs["num_gpus"]) for unit in units)
    gpus = [(node.resources or {}).get("GPU", 0) for node in nodes]
    if share <= max(gpus):
        return plan
    if not context.config.gpu_simulate:
        raise DeviceError(
            f"{len(units)} tasks on partitions in GPUs' memory need {share:g} GPU each, and "
            f"the {len(nodes)} nodes have {sum(gpus):g} GPUs: start Ray with GPUs (exo.num-gpus), "
            f"request less (exo.gpu.per-task), move the partitions to the host before with "
            f"to_backend('pandas'), or set exo.gpu.simulate to try without one, on numpy"
        )
    bundles = [replace(bundle, options=_without_gpu(bundle.options)) for bundle in plan.bundles]
    stages = [replace(stage, options=_without_gpu(stage.options)) for stage in plan.stages]
    return replace(plan, bundles=bundles, stages=stages)


def _without_gpu(options: TaskOptions) -> TaskOptions:
    """Drop the GPU that a task requests only because its partitions are on one."""
    if not options.device:
        return options
    assert options.request is not None
    amounts = tuple(amount for amount in options.request.amounts if amount[0] != "GPU")
    if not amounts:
        return replace(options, needs={}, request=None, device=False)
    request = options.request._replace(amounts=amounts)
    return replace(options, needs=request.needs, request=request, device=False)


TREES_PER_SLOT = 8
MOST_FUSED = 16


def _fuse_trees(plan: Plan, context: PassContext) -> Plan:
    """Run tasks inside the only task that reads them, if enough remain to fill all slots.

    Dask splits a partition for a broadcast join, merges the blocks one by one and concatenates
    them: four tasks, whose values would all go through the object store. A task of a tree reduction
    reads eight others. Where few such trees remain, their tasks run in parallel.
    """
    min_size = TREES_PER_SLOT * sum(node.slots for node in context.nodes)
    group_sizes = Counter(bundle.group for bundle in plan.bundles)
    if not context.fuse or not context.nodes or max(group_sizes.values(), default=0) < min_size:
        return plan
    fusion = _TreeFusion(plan)
    for bundle in sorted(plan.bundles, key=lambda bundle: bundle.priority):
        if group_sizes[bundle.group] >= min_size and bundle.key in fusion.bundles:
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
        values_read = chain(plan.results.values(), *(stage.sources for stage in plan.stages))
        for source in values_read:
            self._readers[source].add(None)

    def fuse(self, key: Key) -> None:
        """Fuse a bundle with those that only it reads, and repeat for the result."""
        outer = self.bundles[key]
        while inner := self._read_only_by(outer):
            size = self._sizes[key] + sum(self._sizes[bundle.key] for bundle in inner)
            if size > MOST_FUSED or not _names_agree([outer, *inner]):
                return
            self._sizes[key] = size
            outer = outer.copy()
            for bundle in inner:
                outer.absorb(bundle)
                del self.bundles[bundle.key]
                for source in bundle.sources:
                    self._readers[source].discard(bundle.key)
                    self._readers[source].add(key)
            self.bundles[key] = outer

    def _read_only_by(self, outer: Bundle) -> list[Bundle]:
        """Find the bundles that only this one reads, and that run in the same kind of place."""
        sources = [source for source in outer.sources if self._readers[source] == {outer.key}]
        bundles = [self.bundles[source] for source in sources if source in self.bundles]
        compatible = [b for b in bundles if b.options == outer.options and not b.options.in_driver]
        return sorted(compatible, key=lambda bundle: bundle.priority)


def _names_agree(bundles: list[Bundle]) -> bool:
    """Return whether each name means one value to all: outputs of one shuffle share a name."""
    source_of: dict[Key, Key] = {}
    inputs = (item for bundle in bundles for item in bundle.inputs.items())
    return all(source_of.setdefault(name, source) == source for name, source in inputs)


PASSES: dict[str, Callable[[Plan, PassContext], Plan]] = {
    "attach checkpoints": _attach_checkpoints,
    "check GPUs": _check_gpus,
    "fuse trees": _fuse_trees,
}
"""All passes over a plan by name, in their order."""


def join_in_driver(work: Plan) -> Plan:
    """Let the driver concatenate frames that it returns: a task would store them once more."""
    here, results = replace(NO_OPTIONS, in_driver=True), set(work.results.values())
    joins = [concat_partitions]
    bundles = [
        replace(bundle, options=here)
        if bundle.key in results and bundle.options == NO_OPTIONS and bundle.functions == joins
        else bundle
        for bundle in work.bundles
    ]
    return replace(work, bundles=bundles)
