"""The policies by name."""

from __future__ import annotations

from collections.abc import Callable

from dask_exo.stream.adaptive import Adaptive
from dask_exo.stream.baselines import Staged
from dask_exo.stream.conservative import Conservative
from dask_exo.stream.partition_admission import PartitionAdmission
from dask_exo.stream.view import Policy

POLICIES: dict[str, Callable[[], Policy]] = {
    "partition-admission": PartitionAdmission,
    "adaptive": Adaptive,
    "conservative": Conservative,
    "staged": Staged,
}
