"""Admission of one output at a time: a hard limit of memory, and sources at the pace of the rest.

A stage may make one more output as long as one output of each later stage would still fit. So what
is nearest to the end can always get there, and give its room back. Of the stages that have
room, an input and resources the last one goes first; the source gets what the others leave.

That alone is safe, and slow where memory is short: sources take all slots, fill the memory, and
then stand still in the slots that what they have filled it with needs. So a task that gives several
outputs starts only if these would fit by the time it ends, less what the later stages can take
away meanwhile with the slots that they have left.
"""

from __future__ import annotations

from dask_exo.stream.view import View

OVER = 1.1  # of the limit, that sources may need by the means of what has been measured


class PartitionAdmission:
    """The default policy; see `Policy`."""

    def start(self, view: View) -> int | None:
        """The last stage that can; see `Policy.start`."""
        for i in reversed(range(len(view.stages))):
            if (
                view.startable(i)
                and view.room_to_start(i)
                and (not view.stages[i].splits or _fits(view, i))
            ):
                return i
        return None

    def go_on(self, view: View, i: int) -> bool:
        """Whether there is room; see `Policy.go_on`."""
        return view.room(i)


def _fits(view: View, i: int) -> bool:
    """Whether what a task of stage ``i`` gives fits by the time it ends."""
    stage, later = view.stages[i], view.stages[i + 1 :]
    if not _leaves_slots(view, i):
        return False
    known = all(s.seconds is not None and s.taken for s in later)
    if not known or stage.seconds is None:
        # until all have been measured: slots are shared equally
        return stage.running < max(1.0, _share(view, i))
    if not stage.running:
        return True
    # what such tasks give in a second stays for as long as the later stages work on it
    each = stage.piece + stage.given / stage.seconds * residence(view, i)
    if (stage.running + 1) * each > OVER * view.limit:
        return False
    coming = stage.coming + stage.given
    return view.used + coming - drain(view, i) * stage.seconds <= view.limit


def residence(view: View, i: int) -> float:
    """Seconds that an output of stage ``i`` is worked on, weighted by how large it is meanwhile."""
    seconds, share = 0.0, 1.0
    for stage in view.stages[i + 1 :]:
        assert stage.seconds is not None
        larger = max(1.0, stage.given / stage.taken)
        seconds += stage.seconds * share * larger
        share *= stage.given / stage.taken
    return seconds


def drain(view: View, i: int) -> float:
    """Bytes per second of outputs of stage ``i`` that later ones take, if one more of it runs."""
    slowest = float("inf")
    for name, total in view.total.items():
        seconds, share = 0.0, 1.0  # of a slot for each byte
        for stage in view.stages[i + 1 :]:
            assert stage.seconds is not None
            seconds += stage.seconds * stage.needs.get(name, 0) * share / stage.taken
            share *= stage.given / stage.taken
        held = sum(s.running * s.needs.get(name, 0) for s in view.stages[: i + 1])
        left = total - held - view.stages[i].needs.get(name, 0)
        if seconds:
            slowest = min(slowest, max(left, 0) / seconds)
    return slowest


def _share(view: View, i: int) -> float:
    """Tasks of stage ``i`` for which there are slots, if it and all later stages share them."""
    shares = [
        view.total.get(name, 0) / need / sum(bool(s.needs.get(name)) for s in view.stages[i:])
        for name, need in view.stages[i].needs.items()
        if need
    ]
    return min(shares, default=1.0)


def _leaves_slots(view: View, i: int) -> bool:
    """Whether a task that may have to wait for room leaves each later stage resources for one."""
    for name, need in view.stages[i].needs.items():
        later = sum(s.needs.get(name, 0) for s in view.stages[i + 1 :] if not s.running)
        # a worker that waits for the task has what it needs
        free = view.free.get(name, 0) + (need if view.stages[i].idle else 0)
        if need and view.total.get(name, 0) >= need + later > free + 1e-9:
            return False
    return True
