"""Whether a task of a pipeline that ran again has given the same pieces as before."""

from __future__ import annotations

import warnings

from dask_exo.errors import NonDeterminismError
from dask_exo.pipeline.streaming.provenance import Origin
from dask_exo.pipeline.streaming.task import About


def compare(about: About, seen: int, mode: str, stage: str, origin: Origin) -> None:
    """Compare what a task says it gave before a piece with what has come of it.

    Parameters
    ----------
    about : About
        Of the piece.
    seen : int
        Digest of the pieces before it, as they came.
    mode : str
        What happens where they are others: ``"error"`` or ``"warn"``.
    stage : str
    origin : Origin
        Of the input of the task.

    Raises
    ------
    NonDeterminismError
        They are others, and this is to be an error.
    """
    if about.before == seen:
        return
    text = (
        f"stage {stage!r} ran again on {origin}, since a worker or a node was lost, and gave other "
        f"pieces than before, of which some are used already: let it depend on its input only. If "
        f"the difference does no harm, set exo.fault.nondeterminism to 'warn' or 'ignore'"
    )
    if mode == "error":
        raise NonDeterminismError(text)
    warnings.warn(text, stacklevel=2)
