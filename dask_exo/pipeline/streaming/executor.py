"""One loop for all policies: blocks arrive in queues, and the policy says which task starts.

A pipeline is a graph of stages. A task of a stage takes some blocks and makes others, one at a
time. The executor has only references to blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from dask_exo import events
from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.cluster.waiting import Watchdog
from dask_exo.pipeline.streaming.blocks import RETRY, Block, StageSpec, links
from dask_exo.pipeline.streaming.queues import Queues, SourceQueue
from dask_exo.pipeline.streaming.recovery import StreamTask
from dask_exo.pipeline.streaming.runner import StreamRunner
from dask_exo.pipeline.streaming.snapshot import (
    PipelineView,
    Policy,
    StageView,
    bottleneck,
    is_deadlocked,
    work_left,
)
from dask_exo.pipeline.streaming.stage_state import RunningTask, StageState

POLL_INTERVAL = 0.05  # seconds between two polls for an input that was not there
PATIENCE = 0.25  # seconds that a stage waits for more small blocks to take together


class Executor:
    """Executor of one pipeline.

    ``inputs`` are those of each source, None if the next one has not arrived yet, and ``counts``
    their numbers, as far as known. No two blocks have the same place. ``limit`` is that of
    `PipelineView.used`, and ``target`` the bytes that an output is assumed to have before one has
    been seen. For stages and sinks, see `links`.
    """

    def __init__(  # noqa: PLR0913  one of each
        self,
        stages: Sequence[StageSpec],
        inputs: Sequence[Iterator[Block | None]],
        runner: StreamRunner,
        policy: Policy,
        *,
        limit: int,
        target: int,
        counts: Sequence[int | None] | None = None,
        sinks: Sequence[Sequence[int]] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._runner, self._policy, self._watchdog = runner, policy, watchdog
        self._limit = limit
        graph = links(stages, sinks)
        self.queues: Queues = Queues(
            graph, list(map(SourceQueue, inputs, counts or [None] * len(inputs)))
        )
        self._states = [
            StageState(i, stage, link, target, shares=any(graph[k].takers > 1 for k in link.before))
            for i, (stage, link) in enumerate(zip(stages, graph, strict=True))
        ]
        self._running: dict[StreamTask, RunningTask] = {}
        self._ready: dict[StreamTask, None] = {}  # tasks with an output that was not taken yet
        self._recomputing: dict[StreamTask, Block] = {}  # tasks that recompute an output
        self._expecting: dict[int, float] = {}  # stage that expects more blocks → until when
        self._had_losses = False  # outputs had to be recomputed: more may follow
        self._last_report = -inf
        self._progress = 0  # tasks that were started, and outputs and ends that were taken
        self.recomputed: list[Block] = []  # see `recompute`
        self.rejects: list[Block] = []  # inputs that were set aside
        self.peak: int = 0  # of `PipelineView.used`
        self.forced: int = 0  # tasks that went on without room, since no other task could

    @property
    def finished(self) -> bool:
        """True if the consumer has taken all outputs."""
        self.queues.poll()
        return self.queues.empty and not (self._running or self._recomputing)

    @property
    def outputs(self) -> int:
        """Number of blocks that the consumer has not taken."""
        return len(self.queues.outputs.blocks)

    def take(self) -> Block:
        """Return an output for the consumer; `Block.sink` is the end at which it came out."""
        return self.queues.take_output()

    def recompute(self, block: Block) -> None:
        """Recompute an output that was lost after it had been taken: see `recomputed`.

        Nothing new starts before that is done, so that there are resources for it.
        """
        self._recomputing[self._runner.recovery.recompute(block)] = block
        self._had_losses = True

    def step(self, timeout: float | None = None) -> None:
        """Start the tasks that the policy selects, wait for an event, and take what is ready.

        Raises
        ------
        StalledError
            There is no progress, and none is possible.
        """
        before = self._progress
        self._start()
        blocked = [task for task in self._ready if not self._may_continue(task)]
        can_continue = len(blocked) < len(self._ready)
        forced = None if can_continue or (self._running and not blocked) else self._force(blocked)
        self._wait(0 if can_continue or forced is not None else timeout)
        self._collect(forced)
        if self._watchdog is not None:
            self._watch(self._watchdog, moved=self._progress != before)

    def cancel(self) -> None:
        """Stop all tasks, and drop all blocks."""
        self._runner.cancel([*self._running, *self._recomputing])
        self._runner.ask(())
        self._running.clear()
        self._recomputing.clear()
        self._ready.clear()
        self.queues.close()
        for state in self._states:
            state.clear()

    def view(self, *, patient: bool = True) -> PipelineView:
        """Return the snapshot by which the policy decides.

        If ``patient``, stages that expect more small blocks have no input yet.
        """
        runner, queues, total = self._runner, self.queues, self._runner.total()
        queues.poll()
        free, used = dict(total), queues.nbytes
        stages: list[StageView] = []
        for i, state in enumerate(self._states):
            state.request = runner.pools.request(i)
            for name, need in state.request.items():
                free[name] = free.get(name, 0) - need * state.count
            used += state.task_bytes
            flush = all(stages[k].finished for k in state.links.before)
            source = queues.sources.get(i)
            if source is not None:
                flush = source.exhausted
            queued = queues.ready(i, state.stage.least, flush=flush)
            busy = any(self._states[k].count or stages[k].queued for k in state.links.before)
            if patient and queued and busy and self._expects_more(i):
                queued = 0
            stages.append(
                state.view(
                    queued=queued,
                    buffered=queues.buffered[i],
                    idle=runner.idle(i),
                    full=runner.at_target(i),
                    finished=flush and not queued and not state.count,
                    taken=0 if source is None else source.taken,
                    inputs=None if source is None else source.count,
                )
            )
        for name, amount in runner.pools.idle_resources().items():
            free[name] = free.get(name, 0) - amount
        self.peak = max(self.peak, used)
        return PipelineView(tuple(stages), used, self._limit, free, total, runner.now())

    # start

    def _start(self) -> None:
        """Start the tasks that the policy selects; end idle actors if these prevent that."""
        self._launch_selected()
        if (
            not self._running
            and self._runner.pools.idle_resources()
            and (self.queues.stages_with_input() or not self._had_losses)
        ):
            self._runner.pools.dismiss_idle()
            self._launch_selected()

    def _launch_selected(self) -> None:
        if self._recomputing:
            return
        view = self.view()
        if self._runner.resize(view):
            view = self.view()
        while (i := self._select(view)) is not None:
            self._launch(i)
            view = self.view()

    def _select(self, view: PipelineView) -> int | None:
        """Return the stage that starts next; if nothing runs, none expects more blocks."""
        i = self._policy.start(view)
        if i is None and not self._running and self._expecting:
            i = self._policy.start(self.view(patient=False))
        return i

    def _launch(self, i: int) -> None:
        state = self._states[i]
        inputs = self.queues.take(i, state.stage.least, self._together(i))
        self._expecting.pop(i, None)
        self._running[self._runner.start(i, inputs)] = state.start(inputs)
        self._progress += 1

    def _together(self, i: int) -> float:
        """Return the bytes of small blocks that a task of stage ``i`` may take together."""
        stage = self._states[i].stage
        if stage.least or stage.apart or self.queues.complete:  # batches, or partitions
            return 0
        return self._states[i].most_bytes(self._limit)

    def _expects_more(self, i: int) -> bool:
        """Return whether stage ``i`` waits a moment for more small blocks."""
        if 2 * self.queues.waiting_bytes(i) >= self._together(i):
            return False
        now = self._runner.now()
        return now < self._expecting.setdefault(i, now + PATIENCE)

    def _may_continue(self, task: StreamTask) -> bool:
        stage = self._running[task].stage
        return task.last or self._policy.may_continue(self.view(), stage)

    def _force(self, blocked: Sequence[StreamTask]) -> StreamTask | None:
        """Let the last stage that can go on without room, if nothing else can.

        Return one of the ``blocked`` tasks, which wait for room, or None.
        """
        view = self.view(patient=False)
        others = [task.awaited().stage for task in self._waiting()]
        if not is_deadlocked(view, [self._running[task].stage for task in blocked], others):
            return None
        if self.outputs and not self._recomputing:  # the consumer has to take something first
            return None
        if others and any(self._runner.pools.idle_resources().values()):
            self._runner.pools.dismiss_idle()
            return None
        drains = [i for i in range(len(self._states)) if view.drains(i)]
        startable = max((i for i in drains if view.startable(i)), default=-1)
        running = self._running
        ready = [task for task in blocked if running[task].stage in drains]
        # the task with the most outputs ends first: others then need not be forced
        first = max(ready, key=lambda t: (running[t].stage, running[t].outputs), default=None)
        if first is not None and running[first].stage >= startable:
            self.forced += 1
            return first
        if startable >= 0:
            self.forced += 1
            self._launch(startable)
        return None

    # wait and collect

    def _wait(self, timeout: float | None) -> None:
        """Wait for outputs, at most until the next poll if nothing announces what is missing."""
        waiting = self._waiting()
        pending = any(source.pending for source in self.queues.sources.values())
        if not waiting or pending:
            timeout = POLL_INTERVAL if timeout is None else min(timeout, POLL_INTERVAL)
        now = self._runner.now()
        left = min((until - now for until in self._expecting.values() if until > now), default=None)
        if left is not None:
            timeout = left if timeout is None else min(timeout, left)
        if waiting or timeout != 0:
            self._ready.update(dict.fromkeys(self._runner.wait(waiting, timeout)))

    def _waiting(self) -> list[StreamTask]:
        """Return tasks without an output that could be taken."""
        return [task for task in (*self._running, *self._recomputing) if task not in self._ready]

    def _collect(self, forced: StreamTask | None) -> None:
        """Take the next output, or the end, of each task that may continue."""
        for task in list(self._ready):
            if task in self._recomputing:
                self._accept_recomputed(task, self._take(task))
            elif task is forced or self._may_continue(task):
                self._accept(task, self._take(task))

    def _take(self, task: StreamTask) -> Block | None:
        block = self._runner.take(task)
        self._progress += 1
        del self._ready[task]
        return block

    def _accept(self, task: StreamTask, block: Block | None) -> None:
        if block is RETRY:
            return
        running = self._running[task]
        state = self._states[running.stage]
        if block is None:
            del self._running[task]
            state.end_task(running)
            self.queues.release(running.inputs)
        elif block.rejected is not None:
            self.rejects.append(block)
        else:
            place, stage = (*running.inputs[0].place, running.outputs), running.stage
            whole = not (block.more or running.outputs) and all(b.parts for b in running.inputs)
            parts = sum(b.parts for b in running.inputs) if whole else 0
            self.queues.add(block._replace(place=place, stage=stage, parts=parts))
            state.add_output(running, block)

    def _accept_recomputed(self, task: StreamTask, block: Block | None) -> None:
        if block is None:
            del self._recomputing[task]
        elif block is not RETRY:
            self.recomputed.append(self._recomputing[task]._replace(value=block.value))

    # report

    def report(self, interval: float = 0.0) -> None:
        """Emit an event for each stage, unless that was done in the last ``interval`` seconds."""
        now = self._runner.now()
        if now - self._last_report < interval:
            return
        self._last_report, view = now, self.view()
        self._runner.ask(work_left(view))
        for i, state in enumerate(self._states):
            estimate = state.estimate
            events.emit(
                events.StageSeen(
                    state.stage.name,
                    view.stages[i].queued,
                    view.stages[i].running,
                    estimate.count,
                    estimate.outputs,
                    estimate.nbytes,
                    estimate.busy_seconds,
                    bottleneck(view, i),
                    state.stage.request.get("GPU", 0.0),
                    max(estimate.read, 0 if state.stage.writes else estimate.nbytes),
                    self._runner.take_stacks(i),
                )
            )

    def bottleneck(self) -> tuple[int, str]:
        """Return the number of tasks, and what the last stage waits for that has its input."""
        view = self.view()
        reasons = [bottleneck(view, i) for i in range(len(self._states))]
        others = [reason for reason in reasons if reason not in ("", "input")]
        waits = others[-1] if others else "input" if "input" in reasons else ""
        return len(self._running), waits

    def _watch(self, watchdog: Watchdog, *, moved: bool) -> None:
        """Tell the watchdog whether there is progress, or none is due."""
        busy = self._running or self._recomputing or self.queues.stages_with_input()
        if moved or self.outputs or not busy:
            watchdog.moved()
        else:
            watchdog.check(self._activity, self._waited_for)

    def _activity(self) -> Activity:
        """Return what the tasks do that the pipeline waits for."""
        waiting = self._waiting()
        if waiting:
            return self._runner.activity(waiting)
        requests = [self._states[i].request for i in self.queues.stages_with_input()]
        activity = self._runner.activity([])
        return replace(activity, tasks=[TaskStatus("pending", request) for request in requests])

    def _waited_for(self) -> list[str]:
        """Return the names of the stages of `_activity`."""
        stages = [task.awaited().stage for task in self._waiting()]
        stages = stages or self.queues.stages_with_input()
        return [f"stage {self._states[i].stage.name!r}" for i in stages]
