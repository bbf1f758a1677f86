"""Policy of batch systems, on the same executor: one stage after the other.

References: thesis section 2.5.
"""

from __future__ import annotations

from dask_exo.pipeline.streaming.snapshot import PipelineView


class StagedPolicy:
    """Policy that starts a stage when the one before has ended; memory is not limited."""

    def start(self, view: PipelineView) -> int | None:
        """Return the first stage that has not ended."""
        for i, stage in enumerate(view.stages):
            if not stage.finished:
                return i if view.startable(i) else None
        return None

    def may_continue(self, view: PipelineView, i: int) -> bool:  # noqa: ARG002
        """Return True."""
        return True
