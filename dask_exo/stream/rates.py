"""How much work of each stage goes with a byte of the source's: what all that sizes is based on."""

from __future__ import annotations

from dask_exo.stream.view import View


def work(view: View) -> list[float] | None:
    """Seconds of work of each stage for a byte that the source gives.

    Returns
    -------
    list of float, optional
        (S,) None as long as a stage has not been measured.
    """
    found, share = [], 1.0
    for k, stage in enumerate(view.stages):
        size = stage.taken if k else stage.given
        if stage.seconds is None or not size:
            return None
        found.append(stage.seconds * share / size)
        share *= stage.given / size
    return found
