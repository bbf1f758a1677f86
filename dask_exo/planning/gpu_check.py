"""Whether there are the GPUs that tasks need since their partitions lie there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dask_exo.cluster.futures import Node
from dask_exo.errors import DeviceError
from dask_exo.planning.annotations import Asked
from dask_exo.planning.plan import Bundle, Plan, Stage


def grant(plan: Plan, nodes: Sequence[Node], *, simulate: bool) -> None:
    """See that there are the GPUs that tasks ask for since their partitions lie there.

    Where GPUs are simulated and the cluster has no slots for them either, they are plain tasks.

    Raises
    ------
    DeviceError
        No node has what one of these tasks asks for.
    """
    units: list[Bundle | Stage] = [bundle for bundle in plan.bundles if bundle.asked.device]
    units += [stage for stage in plan.stages if stage.asked.device]
    if not units or any(node.resources is None for node in nodes):
        return
    share = max(float(unit.asked.needs["num_gpus"]) for unit in units)
    have = [(node.resources or {}).get("GPU", 0) for node in nodes]
    if share <= max(have):
        return
    if not simulate:
        raise DeviceError(
            f"{len(units)} tasks on partitions in GPUs' memory need {share:g} GPU each, and "
            f"the {len(nodes)} nodes have {sum(have):g} GPUs: start Ray with GPUs (exo.num-gpus), "
            f"ask for less (exo.gpu.per-task), bring the partitions back before with "
            f"to_backend('pandas'), or set exo.gpu.simulate to try without one, on numpy"
        )
    for unit in units:
        unit.asked = _without(unit.asked)


def _without(asked: Asked) -> Asked:
    """The same without a GPU."""
    assert asked.asks is not None
    amounts = tuple(one for one in asked.asks.amounts if one[0] != "GPU")
    if not amounts:
        return replace(asked, needs={}, asks=None, device=False)
    asks = asked.asks._replace(amounts=amounts)
    return replace(asked, needs=asks.needs, asks=asks, device=False)
