"""Shuffles as programs: an algorithm submits tasks and waits, and never looks at data."""

from dask_exo.frame.runs import merge_runs
from dask_exo.shuffle.algorithms import names, register
from dask_exo.shuffle.program import Program, Seen, run, stream

__all__ = ["Program", "Seen", "merge_runs", "names", "register", "run", "stream"]
