"""Examine where dask_exo runs, before it is slow or fails: facts, and a check of each.

`machine` and `gather` find facts, `checks` judges them and sees nothing but facts, `diagnosis`
is what people read.
"""

from dask_exo.cli.doctor.collect import gather
from dask_exo.cli.doctor.facts import Facts, Finding, Machine, Program, Speed
from dask_exo.cli.doctor.render import Diagnosis, diagnose

__all__ = [
    "Diagnosis",
    "Facts",
    "Finding",
    "Machine",
    "Program",
    "Speed",
    "diagnose",
    "examine",
    "gather",
]


def examine() -> Diagnosis:
    """Examine this process, and the Ray cluster that Dask's code would run on.

    The cluster is joined, or a private one is started, as a computation would do it. On each of
    its machines one task looks around, writes a file of 64 MB where values are spilled to, and
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
