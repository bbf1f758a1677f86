"""One loop for all policies: what has come goes into queues, and the policy says what starts.

A pipeline is a chain of stages. A task of a stage takes some pieces and gives others, one at a
time; a stage's pieces wait in the queue of the next one. Only references are held here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dask_exo.activity import Activity, Doing
from dask_exo.report.events import StageSeen
from dask_exo.stall import Watchdog
from dask_exo.stream.pieces import AGAIN, Piece, Runner, Stage
from dask_exo.stream.state import Queue, Running, StageState
from dask_exo.stream.view import Policy, View, stands_still, waits

SOON = 0.05  # seconds until an input that was not there is looked for again


class Executor:
    """Runs one pipeline.

    Parameters
    ----------
    stages : sequence of Stage
        (S,) the first one is the source.
    inputs : iterator of (Piece or None)
        Of the source; None where the next one is not there yet.
    runner : Runner
    policy : Policy
    limit : int
        Bytes; see `View.used`.
    target : int
        Bytes that an output is assumed to have before one has been seen.
    watchdog : Watchdog, optional
        Looks into it when nothing happens for too long.

    Attributes
    ----------
    peak : int
        The most that `View.used` has been.
    forced : int
        How often something had to go on without room, since nothing else could.
    rejects : list of Piece
        Inputs that were set aside.
    """

    def __init__(  # noqa: PLR0913  what runs, where, and within what
        self,
        stages: Sequence[Stage],
        inputs: Iterator[Piece | None],
        runner: Runner,
        policy: Policy,
        *,
        limit: int,
        target: int,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._runner, self._policy, self._watchdog = runner, policy, watchdog
        self._moves = 0  # tasks that were started, and outputs and ends that were taken
        self._limit = limit
        self._inputs = inputs
        self._next: Piece | None = None
        self._exhausted = False
        self._states = [StageState(i, stage, target) for i, stage in enumerate(stages)]
        self._done = Queue()  # of the consumer
        self._running: dict[Any, Running] = {}
        self._ready: dict[Any, None] = {}  # tasks with an output that nobody has taken
        self.peak = self.forced = 0
        self.rejects: list[Piece] = []
        self._begun: set[int] = set()  # inputs of the source that `completed` has not told of

    @property
    def finished(self) -> bool:
        """Whether all has come out, and been taken."""
        queued = self._done.pieces or any(state.queue.pieces for state in self._states)
        return self._pull() is None and self._exhausted and not (queued or self._running)

    @property
    def outputs(self) -> int:
        """Pieces that the consumer has not taken."""
        return len(self._done.pieces)

    def take(self) -> Piece:
        """Give an output to the consumer."""
        return self._done.take()

    def completed(self) -> list[int]:
        """Inputs of the source of which all outputs have been taken, since this was asked last."""
        pieces = [piece for running in self._running.values() for piece in running.inputs]
        queues = [self._done, *(state.queue for state in self._states)]
        pieces += [piece for queue in queues for piece in queue.pieces]
        pieces += [self._next] if self._next is not None else []
        done = self._begun - {piece.place[0] for piece in pieces}
        self._begun -= done
        return sorted(done)

    def step(self, timeout: float | None = None) -> None:
        """Start what the policy wants, wait for something to happen, and note it.

        Raises
        ------
        StalledError
            Nothing has happened for long, and nothing can.
        """
        before = self._moves
        self._start()
        if not self._running and self._runner.held():
            self._runner.release()  # what they hold may be what the others wait for
            self._start()
        shut = [task for task in self._ready if not self._may_go_on(task)]
        open_ = len(shut) < len(self._ready)
        forced = self._force(shut) if not open_ and (shut or not self._running) else None
        waiting = [task for task in self._running if task not in self._ready]
        if open_ or forced is not None:
            timeout = 0
        elif not waiting or (self._next is None and not self._exhausted):
            # for the next input, for the consumer, or for resources
            timeout = SOON if timeout is None else min(timeout, SOON)
        if waiting or timeout != 0:
            self._ready.update(dict.fromkeys(self._runner.wait(waiting, timeout)))
        for task in list(self._ready):
            if task is forced or self._may_go_on(task):
                self._accept(task)
        if self._watchdog is not None:
            self._watch(self._watchdog, moved=self._moves != before)

    def seen(self) -> list[StageSeen]:
        """How each stage is."""
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
                waits(view, i),
            )
            for i, state in enumerate(self._states)
        ]

    def cancel(self) -> None:
        """Stop all tasks, and let go of everything."""
        self._runner.cancel(list(self._running))
        self._running.clear()
        self._ready.clear()
        self._done.clear()
        for state in self._states:
            state.clear()
        self._inputs, self._next, self._exhausted = iter(()), None, True

    def view(self) -> View:
        """What the policy sees."""
        total = self._runner.total()
        free, used, stages = dict(total), self._done.nbytes, []
        done = self._pull() is None and self._exhausted
        for i, state in enumerate(self._states):
            for name, need in state.stage.needs.items():
                free[name] = free.get(name, 0) - need * state.count
            used += state.queue.nbytes + state.held
            queued = state.queued(flush=done) if i else int(self._next is not None)
            done = done and not queued and not state.count
            idle = self._runner.idle(i)
            stages.append(state.view(queued, self._buffered(i), idle, finished=done))
        for name, amount in self._runner.held().items():
            free[name] = free.get(name, 0) - amount
        self.peak = max(self.peak, used)
        return View(tuple(stages), used, self._limit, free, total, self._runner.now())

    def _buffered(self, i: int) -> int:
        """Bytes of the outputs of stage ``i`` that nobody has taken."""
        return self._after(i).nbytes

    def _after(self, i: int) -> Queue:
        """Where the outputs of stage ``i`` go."""
        return self._done if i + 1 == len(self._states) else self._states[i + 1].queue

    def _pull(self) -> Piece | None:
        """Look for the next input of the source."""
        if self._next is None and not self._exhausted:
            try:
                self._next = next(self._inputs)
                if self._next is not None:
                    self._begun.add(self._next.place[0])
            except StopIteration:
                self._exhausted = True
        return self._next

    def _start(self) -> None:
        while (i := self._policy.start(self.view())) is not None:
            self._launch(i)

    def _launch(self, i: int) -> None:
        state = self._states[i]
        self._moves += 1
        if i == 0:
            assert self._next is not None
            inputs, self._next = [self._next], None
        else:
            inputs = state.take()
        self._running[self._runner.start(i, inputs)] = state.start(inputs)

    def _may_go_on(self, task: Any) -> bool:
        stage = self._running[task].stage
        return self._runner.last(task) or self._policy.go_on(self.view(), stage)

    def _force(self, shut: Sequence[Any]) -> Any:
        """Let something go on although there is no room, if nothing else can: the last stage.

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
        others = [run.stage for task, run in self._running.items() if task not in self._ready]
        if not stands_still(view, [self._running[task].stage for task in shut], others):
            return None
        if self._done.pieces:  # the consumer has to take something first
            return None
        if others and any(self._runner.held().values()):
            self._runner.release()
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
        piece = self._runner.take(task)
        self._moves += 1
        del self._ready[task]
        if piece is AGAIN:
            return
        if piece is not None and piece.rejected is not None:
            self.rejects.append(piece)
            return
        running = self._running[task]
        state = self._states[running.stage]
        if piece is None:
            del self._running[task]
            state.ended(running)
            return
        place = (*running.inputs[0].place, running.outputs)
        self._after(running.stage).add(piece._replace(place=place))
        state.gave(running, piece)

    def _watch(self, watchdog: Watchdog, *, moved: bool) -> None:
        """Tell whether something has happened, or the consumer or the source has to do it."""
        queued = [s for s in self._states if s.queue.pieces] or self._next is not None
        if moved or self._done.pieces or not (queued or self._running):
            watchdog.moved()
        else:
            watchdog.check(self._activity, self._waited_for)

    def _activity(self) -> Activity:
        """What is done for that which is waited for."""
        waiting = [task for task in self._running if task not in self._ready]
        if waiting:
            return self._runner.activity(waiting)
        seen = self._runner.activity([])
        needed = [Doing("waits", state.stage.needs) for state in self._next_ones()]
        return replace(seen, tasks=needed)

    def _waited_for(self) -> list[str]:
        """Stages of `_activity`."""
        waiting = [run for task, run in self._running.items() if task not in self._ready]
        states = [self._states[run.stage] for run in waiting] or self._next_ones()
        return [f"stage {state.stage.name!r}" for state in states]

    def _next_ones(self) -> list[StageState]:
        """Stages that have inputs."""
        first = [self._states[0]] if self._next is not None else []
        return first + [state for state in self._states if state.queue.pieces]
