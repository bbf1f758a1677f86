"""What stream systems do, on the same executor: fixed parallelism, to compare policies with.

References: thesis section 2.5: stream systems with an operator for each slot.
"""

from __future__ import annotations

from collections.abc import Sequence

from dask_exo.pipeline.streaming.snapshot import PipelineView


class Static:
    """So many tasks of each stage, as configured; a stage that has no room waits.

    Parameters
    ----------
    slots : sequence of int
        (S,)
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._slots = tuple(slots)

    def start(self, view: PipelineView) -> int | None:
        """The last stage that can, within its slots."""
        for i in reversed(range(len(view.stages))):
            if view.startable(i) and view.stages[i].running < self._slots[i] and view.has_room(i):
                return i
        return None

    def may_continue(self, view: PipelineView, i: int) -> bool:
        """Whether there is room."""
        return view.has_room(i)
