"""Adaptive scheduler of the thesis, in the reading that works.

The source is started by a budget of bytes alone, which is replenished once a second by what the
stages after it can take in, as their measured durations and sizes say. Of all other stages the one
runs whose outputs are taken fastest.

References: thesis section 2.4.3, algorithms 1 and 2. As the worked example there has it, and
unlike the listings, the source is not part of the sum and not of the choice; the budget is at most
the limit; a stage that was not measured yet is probed by one task.
"""

from __future__ import annotations

from dask_exo.pipeline.streaming.snapshot import PipelineView, bytes_downstream

EVERY = 1.0  # seconds between two looks at the budget


class Adaptive:
    """Policy with a budget of bytes for sources, kept between calls."""

    def __init__(self) -> None:
        self._budget: float | None = None
        self._looked = 0.0

    def start(self, view: PipelineView) -> int | None:
        """Return a source if the budget allows, else the stage with the least buffered outputs."""
        self._replenish(view)
        assert self._budget is not None
        for i, source in enumerate(view.stages):
            cost = max(source.given, source.block_bytes)
            probing = source.seconds is None and source.running > 0
            fits = view.used + cost <= view.limit or view.used == 0
            affordable = self._budget >= cost and fits and not probing
            if not source.before and view.startable(i) and affordable:
                self._budget -= cost
                return i
        able = [
            i
            for i, stage in enumerate(view.stages)
            if stage.before and view.startable(i) and (view.has_room(i) or not stage.running)
        ]
        return min(able, key=lambda i: view.stages[i].buffered, default=None)

    def may_continue(self, view: PipelineView, i: int) -> bool:
        """Return whether there is room."""
        return view.has_room(i)

    def _replenish(self, view: PipelineView) -> None:
        if self._budget is None:
            self._budget, self._looked = view.limit, view.now
        passed = view.now - self._looked
        if passed < EVERY:
            return
        self._looked = view.now
        for i, source in enumerate(view.stages):
            if not source.before:
                size = max(source.given, source.block_bytes)
                more = passed * size / max(pace(view, i, size), 1e-9)
                self._budget = min(view.limit, (self._budget or 0.0) + more)


def pace(view: PipelineView, i: int, size: float) -> float:
    """Return the seconds that the stages after a source need for ``size`` bytes of its output."""
    total = 0.0
    for k, come in bytes_downstream(view, i).items():
        stage = view.stages[k]
        # slots that are not held by other stages
        slots = min(
            (view.free.get(name, 0) / need for name, need in stage.needs.items() if need),
            default=1.0,
        )
        slots = max(1.0, stage.running + int(slots))
        total += (stage.seconds or 0.0) * come * size / stage.taken / slots
    return total
