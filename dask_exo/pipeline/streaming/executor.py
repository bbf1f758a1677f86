"""One loop for all policies: blocks arrive in queues, and the policy says which task starts.

A pipeline is a graph of stages. A task of a stage takes some blocks and makes others, one at a
time. Each of these waits in the queues of all stages that take it, and counts once until the last
one has released it. The executor holds only references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dask_exo.cluster.task_status import Activity, TaskStatus
from dask_exo.cluster.waiting import Watchdog
from dask_exo.events import StageSeen
from dask_exo.pipeline.streaming.blocks import (
    AGAIN,
    Block,
    ConsumerCounts,
    Links,
    Runner,
    StageSpec,
    links,
)
from dask_exo.pipeline.streaming.snapshot import PipelineView, Policy, bottleneck, is_deadlocked
from dask_exo.pipeline.streaming.stage_state import BlockQueue, RunningTask, SourceQueue, StageState

SOON = 0.05  # seconds until an input that was not there is looked for again


class Executor:
    """Executor of one pipeline.

    Parameters
    ----------
    stages : sequence of StageSpec
        (S,) each after those whose outputs it takes.
    inputs : sequence of iterator of (Block or None)
        Of each source; None where the next one is not there yet. No two blocks have the same place.
    runner : Runner
    policy : Policy
    limit : int
        Bytes; see `PipelineView.used`.
    target : int
        Bytes that an output is assumed to have before one has been seen.
    sinks : sequence of sequence of int, optional
        See `links`.
    watchdog : Watchdog, optional
        Diagnoses stalls.

    Attributes
    ----------
    peak : int
        Peak of `PipelineView.used`.
    forced : int
        How often a task went on without room, since no other could.
    rejects : list of Block
        Inputs that were set aside.
    recomputed : list of Block
        Outputs that were recomputed; see `recompute`.
    complete : callable, optional
        Called with the number of each input of a source when all its outputs have been taken.
    """

    def __init__(  # noqa: PLR0913  one of each
        self,
        stages: Sequence[StageSpec],
        inputs: Sequence[Iterator[Block | None]],
        runner: Runner,
        policy: Policy,
        *,
        limit: int,
        target: int,
        sinks: Sequence[Sequence[int]] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._runner, self._policy, self._watchdog = runner, policy, watchdog
        self._moves = 0  # tasks that were started, and outputs and ends that were taken
        self._limit = limit
        self._links = links(stages, sinks)
        sources = [i for i, link in enumerate(self._links) if not link.before]
        self._sources = {i: SourceQueue(some) for i, some in zip(sources, inputs, strict=True)}
        self._states = [
            StageState(i, stage, link, target, shares=self._shared_before(link))
            for i, (stage, link) in enumerate(zip(stages, self._links, strict=True))
        ]
        self._shared = 0  # bytes of blocks that several take
        self._done = BlockQueue()  # of the consumer
        self._running: dict[Any, RunningTask] = {}
        self._ready: dict[Any, None] = {}  # tasks with an output that was not taken yet
        self._recomputing: dict[Any, Block] = {}  # tasks that make outputs again
        self._had_losses = False  # whether outputs had to be recomputed: more may follow
        self.recomputed: list[Block] = []
        self.peak = self.forced = 0
        self.rejects: list[Block] = []
        self.complete: Callable[[int], object] | None = None
        self._out: Counter[int] = Counter()  # blocks of each input of a source that are there

    @property
    def finished(self) -> bool:
        """Return whether all blocks have come out, and were taken."""
        self._poll_sources()
        queued = self._done.blocks or any(state.queue.blocks for state in self._states)
        over = all(source.exhausted for source in self._sources.values())
        return over and not (queued or self._running or self._recomputing)

    @property
    def outputs(self) -> int:
        """Number of blocks that the consumer has not taken."""
        return len(self._done.blocks)

    def take(self) -> Block:
        """Return an output for the consumer; `Block.sink` is the end at which it came out."""
        block = self._done.take()
        self._record_taken(block)
        self._release(block)
        return block._replace(shared=None)

    def recompute(self, block: Block) -> None:
        """Recompute an output that was lost after it had been taken: see `recomputed`.

        Nothing new starts before that is done, so that there are resources for it.
        """
        self._recomputing[self._runner.recompute(block)] = block
        self._had_losses = True

    def step(self, timeout: float | None = None) -> None:
        """Start the tasks that the policy selects, wait for an event, and take what is ready.

        Raises
        ------
        StalledError
            There is no progress, and none is possible.
        """
        before = self._moves
        self._start()
        if (
            not self._running
            and self._runner.idle_resources()
            and (self._next_ones() or not self._had_losses)
        ):
            self._runner.dismiss_idle()  # what they hold may be what the others wait for
            self._start()
        shut = [task for task in self._ready if not self._may_go_on(task)]
        open_ = len(shut) < len(self._ready)
        forced = self._force(shut) if not open_ and (shut or not self._running) else None
        waiting = self._waiting()
        if open_ or forced is not None:
            timeout = 0
        elif not waiting or any(source.pending for source in self._sources.values()):
            # for the next input, for the consumer, or for resources
            timeout = SOON if timeout is None else min(timeout, SOON)
        if waiting or timeout != 0:
            self._ready.update(dict.fromkeys(self._runner.wait(waiting, timeout)))
        for task in [task for task in self._recomputing if task in self._ready]:
            self._take_recomputed(task)
        for task in list(self._ready):
            if task is forced or self._may_go_on(task):
                self._accept(task)
        if self._watchdog is not None:
            self._watch(self._watchdog, moved=self._moves != before)

    def stage_events(self) -> list[StageSeen]:
        """Return the state of each stage, as events."""
        view = self.view()
        return [
            StageSeen(
                state.stage.name,
                view.stages[i].queued,
                view.stages[i].running,
                state.known.count,
                state.known.outputs,
                state.known.nbytes,
                state.known.worked,
                bottleneck(view, i),
                state.stage.needs.get("GPU", 0.0),
            )
            for i, state in enumerate(self._states)
        ]

    def bottleneck(self) -> tuple[int, str]:
        """Return the number of tasks, and the bottleneck of the last stage that has one."""
        view = self.view()
        reasons = [bottleneck(view, i) for i in range(len(self._states))]
        return len(self._running), next((one for one in reversed(reasons) if one), "input")

    def cancel(self) -> None:
        """Stop all tasks, and drop all blocks."""
        self._runner.cancel([*self._running, *self._recomputing])
        self._running.clear()
        self._recomputing.clear()
        self._ready.clear()
        self._done.clear()
        self._out.clear()
        self._shared = 0
        for state in self._states:
            state.clear()
        for source in self._sources.values():
            source.close()

    def view(self) -> PipelineView:
        """Return the snapshot by which the policy decides."""
        total = self._runner.total()
        self._poll_sources()
        free, used, stages = dict(total), self._done.nbytes + self._shared, []
        done: list[bool] = []
        for i, state in enumerate(self._states):
            state.needs = self._runner.needs(i)
            for name, need in state.needs.items():
                free[name] = free.get(name, 0) - need * state.count
            used += state.queue.nbytes + state.held
            source = self._sources.get(i)
            if source is not None:
                flush, queued = source.exhausted, int(source.next is not None)
            else:
                flush = all(done[k] for k in state.links.before)
                queued = state.queued(flush=flush)
            done.append(flush and not queued and not state.count)
            idle, full = self._runner.idle(i), self._runner.at_target(i)
            stages.append(state.view(queued, idle, full=full, finished=done[-1]))
        for name, amount in self._runner.idle_resources().items():
            free[name] = free.get(name, 0) - amount
        self.peak = max(self.peak, used)
        return PipelineView(tuple(stages), used, self._limit, free, total, self._runner.now())

    def _shared_before(self, link: Links) -> bool:
        """Return whether other stages take the inputs of a stage, too."""
        return any(self._links[k].takers > 1 for k in link.before)

    def _poll_sources(self) -> None:
        """Poll each source for its next input."""
        for source in self._sources.values():
            block = source.poll()
            if block is not None:
                self._out[block.place[0]] += 1

    def _start(self) -> None:
        if self._recomputing:
            return
        view = self.view()
        if self._runner.resize(view):
            view = self.view()
        while (i := self._policy.start(view)) is not None:
            self._launch(i)
            view = self.view()

    def _launch(self, i: int) -> None:
        state = self._states[i]
        self._moves += 1
        inputs = [self._sources[i].take()] if i in self._sources else state.take()
        for block in inputs:
            self._record_taken(block)
        self._running[self._runner.start(i, inputs)] = state.start(inputs)

    def _may_go_on(self, task: Any) -> bool:
        stage = self._running[task].stage
        return self._runner.last(task) or self._policy.may_continue(self.view(), stage)

    def _force(self, shut: Sequence[Any]) -> Any:
        """Let the last stage that can go on without room, if nothing else can.

        Parameters
        ----------
        shut : sequence
            Tasks that wait for room.

        Returns
        -------
        object
            One of them, or None.
        """
        view = self.view()
        others = list(map(self._runner.stage, self._waiting()))
        if not is_deadlocked(view, [self._running[task].stage for task in shut], others):
            return None
        if self._done.blocks and not self._recomputing:  # the consumer has to take something first
            return None
        if others and any(self._runner.idle_resources().values()):
            self._runner.dismiss_idle()
            return None
        drains = [i for i in range(len(self._states)) if view.drains(i)]
        able = max((i for i in drains if view.startable(i)), default=-1)
        ready = [task for task in shut if self._running[task].stage in drains]
        # one that has given the most will soon have ended: others then need not be forced
        first = max(ready, key=lambda task: self._running[task].progress, default=None)
        if first is not None and self._running[first].stage >= able:
            self.forced += 1
            return first
        if able >= 0:
            self.forced += 1
            self._launch(able)
        return None

    def _accept(self, task: Any) -> None:
        """Take the output of a task, or its end."""
        block = self._runner.take(task)
        self._moves += 1
        del self._ready[task]
        if block is AGAIN:
            return
        if block is not None and block.rejected is not None:
            self.rejects.append(block)
            return
        running = self._running[task]
        state = self._states[running.stage]
        if block is None:
            del self._running[task]
            state.end_task(running)
            self._release(*running.inputs)
            return
        place = (*running.inputs[0].place, running.outputs)
        self._route(block._replace(place=place, stage=running.stage))
        state.add_output(running, block)

    def _take_recomputed(self, task: Any) -> None:
        """Take a recomputed output, or the end of its task."""
        block = self._runner.take(task)
        self._moves += 1
        del self._ready[task]
        if block is None:
            del self._recomputing[task]
        elif block is not AGAIN:
            self.recomputed.append(self._recomputing[task]._replace(value=block.value))

    def _route(self, block: Block) -> None:
        """Put an output into the queues of all that take it."""
        state = self._states[block.stage]
        link = state.links
        state.buffered += block.nbytes
        self._out[block.place[0]] += link.takers
        if link.takers > 1:
            block = block._replace(shared=ConsumerCounts(link.takers, link.takers))
            self._shared += block.nbytes
        for sink, which in link.sinks:
            self._done.add(block._replace(sink=sink, place=(*block.place, *which)))
        for k, which in link.after:
            self._states[k].queue.add(block._replace(place=(*block.place, *which)))

    def _record_taken(self, block: Block) -> None:
        """Record that a consumer has taken a block, and will release it."""
        shared = block.shared
        if shared is not None:
            shared.waiting -= 1
        if block.stage >= 0 and (shared is None or not shared.waiting):
            self._states[block.stage].buffered -= block.nbytes

    def _release(self, *blocks: Block) -> None:
        """Record that consumers have released blocks; report inputs that are complete."""
        for block in blocks:
            if block.shared is not None:
                block.shared.using -= 1
                self._shared -= 0 if block.shared.using else block.nbytes
            i = block.place[0]
            self._out[i] -= 1
            if not self._out[i]:
                del self._out[i]
                if self.complete is not None:
                    self.complete(i)

    def _watch(self, watchdog: Watchdog, *, moved: bool) -> None:
        """Tell the watchdog whether there is progress, or none is due."""
        if (
            moved
            or self._done.blocks
            or not (self._next_ones() or self._running or self._recomputing)
        ):
            watchdog.moved()
        else:
            watchdog.check(self._activity, self._waited_for)

    def _activity(self) -> Activity:
        """Return what the tasks do that the pipeline waits for."""
        waiting = self._waiting()
        if waiting:
            return self._runner.activity(waiting)
        seen = self._runner.activity([])
        needed = [TaskStatus("pending", state.needs) for state in self._next_ones()]
        return replace(seen, tasks=needed)

    def _waited_for(self) -> list[str]:
        """Return the names of the stages of `_activity`."""
        waiting = map(self._runner.stage, self._waiting())
        states = [self._states[i] for i in waiting] or self._next_ones()
        return [f"stage {state.stage.name!r}" for state in states]

    def _waiting(self) -> list[Any]:
        """Return tasks without an output that could be taken."""
        return [task for task in (*self._running, *self._recomputing) if task not in self._ready]

    def _next_ones(self) -> list[StageState]:
        """Return stages that have inputs."""
        first = [self._states[i] for i, source in self._sources.items() if source.next is not None]
        return first + [state for state in self._states if state.queue.blocks]
