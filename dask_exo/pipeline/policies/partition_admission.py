"""Admission of one output at a time: a hard limit of memory, and sources at the pace of the rest.

A stage may make one more output as long as one output of each later stage would still fit. So what
is nearest to the end can always get there, and give its room back. Of the stages that have
room, an input and resources the last one goes first, once each has the slots that keep its rate
equal to that of the others: where memory is ample, what comes last would otherwise begin too late.
A stage that waits for room gets what comes free: none before it takes any.

That alone is safe, and slow where memory is short: sources take all slots, fill the memory, and
then stand still in the slots that what they have filled it with needs. So a task that gives several
outputs starts only if these would fit by the time it ends, less what the later stages can take
away meanwhile with the slots that they have left.
"""

from __future__ import annotations

from dask_exo.pipeline.streaming.snapshot import PipelineView, bytes_downstream, work_per_byte


class PartitionAdmission:
    """The default policy."""

    def start(self, view: PipelineView) -> int | None:
        """Return the last stage that can start, of those below their share; see `Policy.start`."""
        waiting = _waiting(view)
        able = [
            i
            for i, stage in enumerate(view.stages)
            if view.startable(i)
            and waiting.isdisjoint(stage.later)
            and view.has_room_to_start(i)
            and (not view.stages[i].splits or _fits(view, i))
        ]
        if len(able) < 2:
            return able[0] if able else None
        return max(able, key=lambda i: (view.stages[i].running < _fair(view, i), i))

    def may_continue(self, view: PipelineView, i: int) -> bool:
        """Return whether there is room; see `Policy.may_continue`."""
        return view.has_room(i)


def _waiting(view: PipelineView) -> set[int]:
    """Return stages that wait for room that will come: none before them may take any."""
    return {
        i
        for i in range(len(view.stages))
        if view.startable(i)
        and not view.has_room_to_start(i)
        and any(view.stages[k].running for k in view.with_downstream(i))
    }


def _fair(view: PipelineView, i: int) -> int:
    """Return the tasks that keep the rate of stage ``i`` equal to that of the others."""
    each = work_per_byte(view)
    if each is None:
        return 0
    shares = [
        view.total.get(name, 0)
        * each[i]
        / sum(one * s.needs.get(name, 0) for one, s in zip(each, view.stages, strict=True))
        for name, need in view.stages[i].needs.items()
        if need and each[i]
    ]
    return int(min(shares, default=0))


def _fits(view: PipelineView, i: int) -> bool:
    """Return whether the outputs of a task of stage ``i`` fit by the time it ends."""
    stage, later = view.stages[i], [view.stages[k] for k in view.stages[i].later]
    if not _leaves_slots(view, i):
        return False
    known = all(s.seconds is not None and s.taken for s in later)
    if not known or stage.seconds is None:
        # until all have been measured: slots are shared equally
        return stage.running < max(1.0, _share(view, i))
    if not stage.running:
        return True
    # what such tasks give in a second stays for as long as the later stages work on it
    each = stage.block_bytes + stage.given / stage.seconds * residence(view, i)
    if (stage.running + 0.5) * each > view.limit:  # to the nearest number of tasks
        return False
    others = sum(s.coming for k, s in enumerate(view.stages) if k != i and not s.before)
    coming = stage.coming + stage.given + others
    return view.used + coming - drain(view, i) * stage.seconds <= view.limit


def residence(view: PipelineView, i: int) -> float:
    """Return the seconds of work on an output of stage ``i``, weighted by its size meanwhile.

    One output of a task takes the place of its input; of several, one is made at a time.
    """
    seconds = 0.0
    for k, come in bytes_downstream(view, i).items():
        stage = view.stages[k]
        assert stage.seconds is not None
        meanwhile = (
            stage.taken + stage.block_bytes if stage.splits else max(stage.taken, stage.given)
        )
        seconds += stage.seconds * come * meanwhile / stage.taken
    return seconds


def drain(view: PipelineView, i: int) -> float:
    """Return the bytes per second that later stages take, if one more task of stage ``i`` runs."""
    slowest, later = float("inf"), bytes_downstream(view, i)
    for name, total in view.total.items():
        seconds = 0.0  # of a slot for each byte
        for k, come in later.items():
            stage = view.stages[k]
            assert stage.seconds is not None
            seconds += stage.seconds * stage.needs.get(name, 0) * come / stage.taken
        held = sum(
            s.running * s.needs.get(name, 0) for k, s in enumerate(view.stages) if k not in later
        )
        left = total - held - view.stages[i].needs.get(name, 0)
        if seconds:
            slowest = min(slowest, max(left, 0) / seconds)
    return slowest


def _share(view: PipelineView, i: int) -> float:
    """Return the slots of stage ``i``, if it and all later stages share them equally."""
    those = [view.stages[k] for k in view.with_downstream(i)]
    shares = [
        view.total.get(name, 0) / need / sum(bool(stage.needs.get(name)) for stage in those)
        for name, need in view.stages[i].needs.items()
        if need
    ]
    return min(shares, default=1.0)


def _leaves_slots(view: PipelineView, i: int) -> bool:
    """Return whether a task of stage ``i`` leaves each later stage resources for one."""
    for name, need in view.stages[i].needs.items():
        idle = (view.stages[k] for k in view.stages[i].later if not view.stages[k].running)
        later = sum(stage.needs.get(name, 0) for stage in idle)
        # an idle actor has the resources
        free = view.free.get(name, 0) + (need if view.stages[i].idle else 0)
        if need and view.total.get(name, 0) >= need + later > free + 1e-9:
            return False
    return True
