"""Examine where dask_exo runs, before it is slow or fails: facts, and a check of each.

`machine` and `collect` find facts, `checks` judges them, `render` prints the findings.
"""

from dask_exo.cli.doctor.collect import gather
from dask_exo.cli.doctor.facts import Facts, Finding, Machine, ProgramFacts, Speed
from dask_exo.cli.doctor.render import Diagnosis, diagnose

__all__ = [
    "Diagnosis",
    "Facts",
    "Finding",
    "Machine",
    "ProgramFacts",
    "Speed",
    "diagnose",
    "examine",
    "gather",
]


def examine() -> Diagnosis:
    """Examine this process, and the Ray cluster that Dask's code would run on.

    The cluster is joined, or a private one is started, as a computation would do it. On each of
    its machines one task collects facts, writes a file of 64 MB to the spill directory, and
    reads it back.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> from dask_exo.cli.doctor import examine
    >>> print(examine())  # doctest: +SKIP
    """
    return diagnose(gather())
