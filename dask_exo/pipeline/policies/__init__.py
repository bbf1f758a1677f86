"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from dask_exo.pipeline.policies.adaptive import Adaptive
from dask_exo.pipeline.policies.conservative import Conservative
from dask_exo.pipeline.policies.partition_admission import PartitionAdmission
from dask_exo.pipeline.policies.staged import StagedPolicy
from dask_exo.pipeline.streaming.snapshot import Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "partition-admission": PartitionAdmission,
    "adaptive": Adaptive,
    "conservative": Conservative,
    "staged": StagedPolicy,
}
