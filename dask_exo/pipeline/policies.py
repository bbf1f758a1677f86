"""Policies: pure decisions about which stage of a pipeline runs its next task."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from dask_exo.pipeline.streaming.snapshot import (
    PipelineView,
    Policy,
    bytes_downstream,
    work_per_byte,
)


class PartitionAdmission(Policy):
    """The default: a hard limit of memory, and sources at the pace of the rest.

    A stage may make one more output as long as one output of each later stage would still fit. So
    the block nearest to the end can always get there, and releases its memory. Of the stages that
    have memory, an input and resources, the last one starts first, once each has the slots that
    keep its rate equal to that of the others. Of several sources the one starts that is behind:
    their outputs are mixed, and all end at the same time. While a stage waits for memory, no stage
    before it takes any.

    That alone is safe, but slow if memory is short: sources would take all slots, fill the memory,
    and block the stages that drain it. So a task that gives several outputs starts only if these
    fit by the time it ends, less what later stages drain meanwhile with the slots that are left.
    """

    def start(self, view: PipelineView) -> int | None:
        """Return the last stage that can start, of those below their share; see `Policy.start`."""
        waiting = _waiting(view)
        candidates = [
            i
            for i, stage in enumerate(view.stages)
            if view.startable(i)
            and waiting.isdisjoint(stage.later)
            and view.has_room_to_start(i)
            and (not stage.splits or _fits(view, i))
        ]
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        return max(candidates, key=lambda i: _urgency(view, i))


def _urgency(view: PipelineView, i: int) -> tuple[bool, bool, float, int]:
    """Return the key by which the stage that starts next is the largest."""
    stage = view.stages[i]
    return stage.running < _fair(view, i), bool(stage.before), -stage.progress, i


def _waiting(view: PipelineView) -> set[int]:
    """Return stages that wait for memory that running tasks will release."""
    return {
        i
        for i in range(len(view.stages))
        if view.startable(i)
        and not view.has_room_to_start(i)
        and any(view.stages[k].running for k in view.with_downstream(i))
    }


def _fair(view: PipelineView, i: int) -> int:
    """Return the number of tasks that keeps the rate of stage ``i`` equal to that of the others."""
    work = work_per_byte(view)
    if work is None:
        return 0
    shares = [
        view.total.get(name, 0)
        * work[i]
        / sum(w * s.request.get(name, 0) for w, s in zip(work, view.stages, strict=True))
        for name, need in view.stages[i].request.items()
        if need and work[i]
    ]
    return int(min(shares, default=0))


def _fits(view: PipelineView, i: int) -> bool:
    """Return whether the outputs of a task of stage ``i`` fit by the time it ends."""
    stage, later = view.stages[i], [view.stages[k] for k in view.stages[i].later]
    if not _leaves_slots(view, i):
        return False
    if stage.seconds is None or not all(s.seconds is not None and s.input_bytes for s in later):
        # until all have been measured: slots are shared equally
        return stage.running < max(1.0, _share(view, i))
    if not stage.running:
        return True
    if not _sustains(view, i):
        return False
    others = sum(s.remaining_bytes for k, s in enumerate(view.stages) if k != i and not s.before)
    remaining = stage.remaining_bytes + stage.output_bytes + others
    return view.used + remaining - drain(view, i) * stage.seconds <= view.limit


def _sustains(view: PipelineView, i: int) -> bool:
    """Return whether the memory is enough for one more task of stage ``i`` and all its outputs.

    By Little's law: the output of a second stays for as long as the later stages work on it.
    """
    stage = view.stages[i]
    assert stage.seconds is not None
    task_bytes = stage.block_bytes + stage.output_bytes / stage.seconds * residence(view, i)
    return (stage.running + 0.5) * task_bytes <= view.limit  # to the nearest number of tasks


def residence(view: PipelineView, i: int) -> float:
    """Return the seconds of work on an output of stage ``i``, weighted by its size meanwhile.

    The only output of a task takes the place of its input; of several, one is made at a time.
    """
    seconds = 0.0
    for k, arriving in bytes_downstream(view, i).items():
        stage = view.stages[k]
        assert stage.seconds is not None
        both = stage.input_bytes + stage.block_bytes
        nbytes = both if stage.splits else max(stage.input_bytes, stage.output_bytes)
        seconds += stage.seconds * arriving * nbytes / stage.input_bytes
    return seconds


def drain(view: PipelineView, i: int) -> float:
    """Return the bytes per second that later stages take, if one more task of stage ``i`` runs."""
    slowest, later = inf, bytes_downstream(view, i)
    for name, total in view.total.items():
        seconds = 0.0  # of a slot for each byte
        for k, arriving in later.items():
            stage = view.stages[k]
            assert stage.seconds is not None
            seconds += stage.seconds * stage.request.get(name, 0) * arriving / stage.input_bytes
        used = sum(
            s.running * s.request.get(name, 0) for k, s in enumerate(view.stages) if k not in later
        )
        left = total - used - view.stages[i].request.get(name, 0)
        if seconds:
            slowest = min(slowest, max(left, 0) / seconds)
    return slowest


def _share(view: PipelineView, i: int) -> float:
    """Return the slots of stage ``i``, if it and all later stages share them equally."""
    stages = [view.stages[k] for k in view.with_downstream(i)]
    shares = [
        view.total.get(name, 0) / need / sum(bool(stage.request.get(name)) for stage in stages)
        for name, need in view.stages[i].request.items()
        if need
    ]
    return min(shares, default=1.0)


def _leaves_slots(view: PipelineView, i: int) -> bool:
    """Return whether a task of stage ``i`` leaves each later stage resources for one."""
    for name, need in view.stages[i].request.items():
        idle = (view.stages[k] for k in view.stages[i].later if not view.stages[k].running)
        later = sum(stage.request.get(name, 0) for stage in idle)
        # an idle actor has the resources
        free = view.free.get(name, 0) + (need if view.stages[i].idle else 0)
        if need and view.total.get(name, 0) >= need + later > free + 1e-9:
            return False
    return True


REPLENISH_INTERVAL = 0.1  # seconds after which `Adaptive` adds to its budget


class Adaptive(Policy):
    """Adaptive scheduler of the thesis: sources spend a budget of bytes.

    Once a second the budget grows by the bytes that later stages can take, by their measured
    durations and sizes. Of all other stages the one runs whose outputs are taken fastest.

    References: thesis section 2.4.3, algorithms 1 and 2. As in its worked example, and unlike the
    listings, the source is not part of the sum and not of the choice; the budget is at most the
    limit; a stage that was not measured yet is probed by one task. The limit is hard, so a source
    does not start where its running tasks and their outputs take it: they would wait with an output
    each, and leave no room for one on its way to the end.
    """

    def __init__(self) -> None:
        self._budget: float | None = None
        self._last_replenished = 0.0

    def start(self, view: PipelineView) -> int | None:
        """Return a source if the budget allows, else the stage with the least buffered outputs."""
        self._replenish(view)
        assert self._budget is not None
        sources = [i for i, s in enumerate(view.stages) if not s.before and view.startable(i)]
        behind = min(sources, key=lambda i: view.stages[i].progress, default=None)
        if behind is not None:
            source = view.stages[behind]
            cost = max(source.output_bytes, source.block_bytes)
            probing = source.seconds is None and source.running > 0
            fits = view.has_room_to_start(behind) or view.used == 0
            if source.splits and source.running and source.seconds is not None:
                fits = fits and _sustains(view, behind)
            if self._budget >= cost and fits and not probing:
                self._budget -= cost
                return behind
        candidates = [
            i
            for i, stage in enumerate(view.stages)
            if stage.before and view.startable(i) and (view.has_room(i) or not stage.running)
        ]
        return min(candidates, key=lambda i: view.stages[i].buffered, default=None)

    def _replenish(self, view: PipelineView) -> None:
        if self._budget is None:
            self._budget, self._last_replenished = view.limit, view.now
        elapsed = view.now - self._last_replenished
        if elapsed < REPLENISH_INTERVAL:
            return
        self._last_replenished = view.now
        for i, source in enumerate(view.stages):
            if not source.before:
                size = max(source.output_bytes, source.block_bytes)
                gain = elapsed * size / max(_pace(view, i, size), 1e-9)
                self._budget = min(view.limit, self._budget + gain)


def _pace(view: PipelineView, i: int, size: float) -> float:
    """Return the seconds that the stages after a source need for ``size`` bytes of its output."""
    total = 0.0
    for k, arriving in bytes_downstream(view, i).items():
        stage = view.stages[k]
        free = (view.free.get(name, 0) / need for name, need in stage.request.items() if need)
        slots = max(1.0, stage.running + int(min(free, default=1.0)))
        total += (stage.seconds or 0.0) * arriving * size / stage.input_bytes / slots
    return total


class Conservative(Policy):
    """Start a task only if all its outputs fit: a hard limit, and idle slots.

    References: thesis section 2.4.3.2, "conservative policy"; the ablation of figure 2.11.
    """

    def start(self, view: PipelineView) -> int | None:
        """Return the stage with the least buffered outputs of those whose outputs fit."""
        candidates = [
            i
            for i, stage in enumerate(view.stages)
            if view.startable(i)
            and view.used
            + max(stage.output_bytes, stage.block_bytes)
            + sum(view.stages[k].block_bytes for k in stage.later)
            <= view.limit
        ]
        return min(candidates, key=lambda i: view.stages[i].buffered, default=None)

    def may_continue(self, view: PipelineView, i: int) -> bool:  # noqa: ARG002
        """Return True: the room is reserved."""
        return True


class StagedPolicy(Policy):
    """One stage after the other, as batch systems do; memory is not limited.

    References: thesis section 2.5.
    """

    def start(self, view: PipelineView) -> int | None:
        """Return the first stage that has not ended."""
        for i, stage in enumerate(view.stages):
            if not stage.finished:
                return i if view.startable(i) else None
        return None

    def may_continue(self, view: PipelineView, i: int) -> bool:  # noqa: ARG002
        """Return True."""
        return True


POLICIES: dict[str, Callable[[], Policy]] = {
    "partition-admission": PartitionAdmission,
    "adaptive": Adaptive,
    "conservative": Conservative,
    "staged": StagedPolicy,
}
