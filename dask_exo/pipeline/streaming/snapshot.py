"""Snapshots of a pipeline, by which policies decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from dask_exo.cluster.resources import fits
from dask_exo.execution.autoscaler import WorkLeft


class StageView(NamedTuple):
    """Snapshot of one stage."""

    queued: int  # inputs that wait for a task
    running: int  # tasks
    buffered: int  # bytes of its outputs that were not taken yet
    block_bytes: int  # expected of an output: those of the largest so far, or the target
    splits: bool  # a task may give several outputs, and so wait between them for room
    request: Mapping[str, float]  # resources of one task
    limit: int | None = None  # tasks at once
    seconds: float | None = None  # mean duration of a task, without waiting; None: not measured
    input_bytes: float = 0.0  # mean of a task
    output_bytes: float = 0.0  # mean of a task
    remaining_bytes: float = 0.0  # expected of further outputs of running tasks
    finished: bool = False  # all inputs have come and all tasks have ended
    idle: int = 0  # actors
    full: bool = False  # it has as many actors as it should have
    before: tuple[int, ...] = ()  # stages whose outputs it takes; none of a source
    later: tuple[int, ...] = ()  # all stages downstream
    shares: bool = False  # others take its inputs too, so its outputs do not take their place
    held: int = 0  # peak bytes of GPU memory of one of its tasks, if known
    device: int = 0  # bytes of memory of a GPU, if known
    taken: int = 0  # inputs of a source so far
    inputs: int | None = None  # of a source in all, if known

    @property
    def progress(self) -> float:
        """Share of the inputs of a source that tasks have taken; their number if unknown."""
        return self.taken / (self.inputs or 1)


class PipelineView(NamedTuple):
    """Snapshot of a pipeline.

    ``used`` counts buffered outputs, inputs of running tasks (each once, however many stages take
    it), and one output of each running task that will make more.
    """

    stages: tuple[StageView, ...]  # (S,) each after those whose outputs it takes
    used: int  # bytes
    limit: int  # of ``used``
    free: Mapping[str, float]  # resources
    total: Mapping[str, float]
    now: float = 0.0  # seconds

    def with_downstream(self, i: int) -> tuple[int, ...]:
        """Return stage ``i`` and all stages downstream of it."""
        return (i, *self.stages[i].later)

    def startable(self, i: int) -> bool:
        """Return whether a task of stage ``i`` has an input and resources."""
        stage = self.stages[i]
        if not stage.queued or (stage.limit is not None and stage.running >= stage.limit):
            return False
        if stage.idle:
            return True
        return not stage.full and fits(self.free, stage.request)

    def growth(self, i: int) -> int:
        """Return the bytes that a task of stage ``i`` needs beside those of its input.

        The only output of a task takes the place of its input. A task with several outputs holds
        its input until the last of them. If it has a slot that later stages need, there must be
        room for all outputs.
        """
        stage = self.stages[i]
        if stage.splits and self.starves_downstream(i):
            return max(stage.block_bytes, int(stage.output_bytes))
        if stage.splits or stage.shares or not stage.before:
            return stage.block_bytes
        return max(0, stage.block_bytes - int(stage.input_bytes))

    def starves_downstream(self, i: int) -> bool:
        """Return whether stage ``i`` and all later ones do not fit the cluster together."""
        stages = [self.stages[k] for k in self.with_downstream(i)]
        return any(
            need and self.total.get(name, 0) < sum(s.request.get(name, 0) for s in stages)
            for name, need in self.stages[i].request.items()
        )

    def has_room(self, i: int) -> bool:
        """Return whether one more output of stage ``i`` leaves room for one of each later stage.

        If that holds for every output, the latest one can always pass all stages and leave, so
        that nothing waits for room forever.
        """
        return self._fits(self._needed(i))

    def has_room_to_start(self, i: int) -> bool:
        """Return whether a task of stage ``i`` can start and continue after its first output."""
        first = self.stages[i].block_bytes if self.stages[i].splits else 0
        return self._fits(first + self._needed(i))

    def _needed(self, i: int) -> int:
        """Return the bytes of an output of stage ``i`` and of starting each later stage."""
        later = (self.stages[j] for j in self.stages[i].later)
        first = sum(s.block_bytes for s in later if s.splits and s.seconds is not None)
        return first + sum(map(self.growth, self.with_downstream(i)))

    def drains(self, i: int) -> bool:
        """Return whether stage ``i`` and each later one fit the cluster, in use or not."""
        return all(fits(self.total, self.stages[k].request) for k in self.with_downstream(i))

    def _fits(self, nbytes: int) -> bool:
        return not nbytes or self.used + nbytes <= self.limit


def bottleneck(view: PipelineView, i: int) -> str:
    """Return what holds stage ``i`` back, "" if nothing does; resources but CPUs by their name."""
    stage = view.stages[i]
    if stage.finished:
        return ""
    if not stage.queued:
        return "input"
    if not view.startable(i):
        if stage.limit is not None and stage.running >= stage.limit:
            return "concurrency"
        lacking = [n for n, need in stage.request.items() if not fits(view.free, {n: need})]
        return "an actor" if stage.full or not lacking else lacking[0].replace("CPU", "slots")
    if not view.has_room_to_start(i):
        return "memory"
    measured = all(view.stages[k].seconds is not None for k in view.with_downstream(i))
    return "" if measured else "the first measurement"


def is_deadlocked(view: PipelineView, blocked: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether no task can end.

    After the loss of a node, more tasks may have started than there are resources. Those that wait
    for room, of the stages ``blocked``, then hold what the tasks of ``others`` need to begin.
    """
    reserved = Counter[str]()
    for i in blocked:
        reserved.update(view.stages[i].request)
    return not any(
        all(
            reserved[name] + need <= view.total.get(name, 0) + 1e-9
            for name, need in request.items()
        )
        for request in (view.stages[i].request for i in set(others))
    )


class Policy(Protocol):
    """Decision about which stage runs next; knows neither cluster nor clock."""

    def start(self, view: PipelineView) -> int | None:
        """Return the stage whose next task should start; None to wait."""
        ...

    def may_continue(self, view: PipelineView, i: int) -> bool:
        """Return whether a task of stage ``i`` may make its next output; by default with room."""
        return view.has_room(i)


def work_per_byte(view: PipelineView) -> list[float] | None:
    """Return the seconds of work of each stage (S,) for a byte of sources that end together.

    Where the number of inputs of a source is unknown, for a byte of each. None until all stages
    have been measured.
    """
    work: list[float] = []
    outputs: list[float] = []  # bytes
    sources = [stage for stage in view.stages if not stage.before]
    known = all(stage.inputs for stage in sources)
    total = sum((stage.inputs or 0) * stage.output_bytes for stage in sources)
    for stage in view.stages:
        size = stage.input_bytes if stage.before else stage.output_bytes
        if stage.seconds is None or not size:
            return None
        share = (stage.inputs or 0) * stage.output_bytes / total if known else 1.0
        arriving = sum(outputs[k] for k in stage.before) if stage.before else share
        work.append(stage.seconds * arriving / size)
        outputs.append(stage.output_bytes * arriving / size)
    return work


def work_left(view: PipelineView) -> list[WorkLeft]:
    """Return the tasks that stages have left: one for each input that waits for them or will come.

    Inputs of a source whose number is unknown are not counted before they have come.
    """
    left: list[int] = []
    for stage in view.stages:
        coming = sum(left[k] for k in stage.before)
        if not stage.before and stage.inputs is not None:
            coming = max(0, stage.inputs - stage.taken - stage.queued)
        left.append(stage.queued + stage.running + coming)
    return [
        WorkLeft(tuple(sorted(stage.request.items())), count, 1, stage.seconds or 0.0, stage.limit)
        for stage, count in zip(view.stages, left, strict=True)
    ]


def bytes_downstream(view: PipelineView, i: int) -> dict[int, float]:
    """Return the bytes that measured later stages take of a byte that stage ``i`` gives."""
    outputs, result = {i: 1.0}, {}
    for k in view.stages[i].later:
        stage = view.stages[k]
        arriving = sum(outputs.get(b, 0.0) for b in stage.before)
        outputs[k] = arriving
        if stage.seconds is not None and stage.input_bytes:
            result[k] = arriving
            outputs[k] = arriving * stage.output_bytes / stage.input_bytes
    return result
