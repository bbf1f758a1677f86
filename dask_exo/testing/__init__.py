"""Public test kit: the waist inline and simulated, and faults on real clusters."""

from dask_exo.testing.chaos import Chaos
from dask_exo.testing.inline import Died, InlineFutures
from dask_exo.testing.simulated.futures import SimFutures
from dask_exo.testing.simulated.generators import SimOutput
from dask_exo.testing.simulated.tasks import (
    Call,
    Channels,
    Cost,
    CostModel,
    DeadlockError,
    NodeDeath,
    ProcessDeath,
    Stragglers,
    TaskRun,
)

__all__ = [
    "Call",
    "Channels",
    "Chaos",
    "Cost",
    "CostModel",
    "DeadlockError",
    "Died",
    "InlineFutures",
    "NodeDeath",
    "ProcessDeath",
    "SimFutures",
    "SimOutput",
    "Stragglers",
    "TaskRun",
]
