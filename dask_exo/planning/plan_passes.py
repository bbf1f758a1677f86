"""Passes over a plan: each returns the plan to run instead, with the same results.

A plan is cut from a graph before a cluster is needed. All of `PASSES` run between that and the
first task, and nothing changes a plan afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dask_exo.cluster.futures import Node
from dask_exo.config import Config
from dask_exo.errors import DeviceError
from dask_exo.execution.checkpoints.outputs import PartCheckpoint
from dask_exo.planning.annotations import NO_OPTIONS, TaskOptions
from dask_exo.planning.plan import Bundle, Plan, Stage
from dask_exo.planning.resume import Checkpoints
from dask_exo.planning.tree_fusion import fuse_trees

__all__ = ["PASSES", "PassContext", "run_passes"]


@dataclass(frozen=True)
class PassContext:
    """Facts that passes use besides the plan.

    Attributes
    ----------
    config : Config
    checkpoints : Checkpoints
        Values that tasks may store for the next program.
    nodes : sequence of Node
        Nodes of the cluster; empty if there is none yet.
    fuse : bool
        Whether the values of tasks inside others may remain unseen by the driver.
    """

    config: Config
    checkpoints: Checkpoints
    nodes: Sequence[Node] = ()
    fuse: bool = True


def run_passes(plan: Plan, context: PassContext) -> Plan:
    """Run all passes in their order.

    Raises
    ------
    DeviceError
        No node has the GPUs that a task requests.
    """
    for run in PASSES.values():
        plan = run(plan, context)
    return plan


def _attach_checkpoints(plan: Plan, context: PassContext) -> Plan:
    """Tell tasks and shuffles where to store the values that the next program may read."""
    checkpoints, overhead = context.checkpoints, context.config.checkpoint_overhead

    def attach(bundle: Bundle) -> Bundle:
        label = checkpoints.parts.get(bundle.key)
        if label is None or not bundle.nodes or bundle.options != NO_OPTIONS:
            return bundle
        return replace(bundle, label=PartCheckpoint(label, overhead))

    plan = replace(plan, seen=checkpoints.seen, fingerprints=checkpoints.fingerprints)
    if not checkpoints.parts and not checkpoints.shuffles:
        return plan
    stages = [
        replace(
            stage,
            parts=[attach(part) for part in stage.parts],
            keeping=checkpoints.shuffles.get(stage.key),
        )
        for stage in plan.stages
    ]
    return replace(plan, bundles=[attach(bundle) for bundle in plan.bundles], stages=stages)


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
    have = [(node.resources or {}).get("GPU", 0) for node in nodes]
    if share <= max(have):
        return plan
    if not context.config.gpu_simulate:
        raise DeviceError(
            f"{len(units)} tasks on partitions in GPUs' memory need {share:g} GPU each, and "
            f"the {len(nodes)} nodes have {sum(have):g} GPUs: start Ray with GPUs (exo.num-gpus), "
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
    assert options.asks is not None
    amounts = tuple(amount for amount in options.asks.amounts if amount[0] != "GPU")
    if not amounts:
        return replace(options, needs={}, asks=None, device=False)
    asks = options.asks._replace(amounts=amounts)
    return replace(options, needs=asks.needs, asks=asks, device=False)


def _fuse_trees(plan: Plan, context: PassContext) -> Plan:
    """Run tasks inside the only task that reads them, if enough remain to fill all slots."""
    if not context.fuse or not context.nodes:
        return plan
    return fuse_trees(plan, sum(node.slots for node in context.nodes))


PASSES: dict[str, Callable[[Plan, PassContext], Plan]] = {
    "attach checkpoints": _attach_checkpoints,
    "check GPUs": _check_gpus,
    "fuse trees": _fuse_trees,
}
"""All passes over a plan by name, in their order."""
