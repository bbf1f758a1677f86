"""Policy that starts a task when there is room for all its outputs.

References: thesis section 2.4.3.2, "conservative policy"; the ablation of figure 2.11.
"""

from __future__ import annotations

from dask_exo.pipeline.streaming.snapshot import PipelineView


class Conservative:
    """Policy with a hard limit, and idle slots."""

    def start(self, view: PipelineView) -> int | None:
        """Return the stage with the least buffered outputs of those whose outputs fit."""
        able = [
            i
            for i, stage in enumerate(view.stages)
            if view.startable(i)
            and view.used + max(stage.given, stage.block_bytes) + _later(view, i) <= view.limit
        ]
        return min(able, key=lambda i: view.stages[i].buffered, default=None)

    def may_continue(self, view: PipelineView, i: int) -> bool:  # noqa: ARG002
        """Return True: the room is reserved."""
        return True


def _later(view: PipelineView, i: int) -> float:
    return sum(view.stages[k].block_bytes for k in view.stages[i].later)
