"""Shuffles as programs: an algorithm submits tasks and waits, and never looks at data."""

from dask_exo.shuffle.algorithms import names, register
from dask_exo.shuffle.program import Program, Seen, run, stream

__all__ = ["Program", "Seen", "names", "register", "run", "stream"]
