"""Shuffles: algorithms submit tasks and wait for them, and never read data."""

from dask_exo.partitions.kernels.kway_merge import merge_runs
from dask_exo.shuffle.algorithms import names, register
from dask_exo.shuffle.api import PartialResult, Program, run, stream

__all__ = ["PartialResult", "Program", "merge_runs", "names", "register", "run", "stream"]
