"""How much work of each stage goes with a byte of a source: what all that sizes is based on."""

from __future__ import annotations

from dask_exo.pipeline.streaming.snapshot import View


def work(view: View) -> list[float] | None:
    """Seconds of work of each stage for a byte that each source gives.

    Returns
    -------
    list of float, optional
        (S,) None as long as a stage has not been measured.
    """
    found: list[float] = []
    given: list[float] = []  # bytes
    for stage in view.stages:
        size = stage.taken if stage.before else stage.given
        if stage.seconds is None or not size:
            return None
        come = sum(given[k] for k in stage.before) if stage.before else 1.0
        found.append(stage.seconds * come / size)
        given.append(stage.given * come / size)
    return found


def onward(view: View, i: int) -> dict[int, float]:
    """Bytes that each later stage takes of a byte that stage ``i`` gives; of those measured."""
    given, found = {i: 1.0}, {}
    for k in view.stages[i].later:
        stage = view.stages[k]
        come = sum(given.get(b, 0.0) for b in stage.before)
        if stage.seconds is not None and stage.taken:
            found[k], given[k] = come, come * stage.given / stage.taken
        else:
            given[k] = come
    return found
