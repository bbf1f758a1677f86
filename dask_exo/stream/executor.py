"""One loop for all policies: what has come goes into queues, and the policy says what starts.

A pipeline is a chain of stages. A task of a stage takes some pieces and gives others, one at a
time; a stage's pieces wait in the queue of the next one. Only references are held here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dask_exo.report.events import StageSeen
from dask_exo.stream.calls import Rejected
from dask_exo.stream.origin import Origin
from dask_exo.stream.view import Estimate, Policy, StageView, View, waits

SOON = 0.05  # seconds until an input that was not there is looked for again


class Piece(NamedTuple):
    """An output of a task.

    Attributes
    ----------
    value : object
        A reference of it.
    nbytes, rows : int
    place : tuple of int
        Where it belongs: number of the source's input, then number of the output in each stage.
    more : bool
        Whether the task may give another one after it.
    seconds : float
        Work that it took.
    origin : Origin
        Rows of the source that it was made of.
    rejected : Rejected, optional
        Why it is no output, but an input that was set aside.
    """

    value: Any
    nbytes: int
    rows: int
    place: tuple[int, ...] = ()
    more: bool = False
    seconds: float = 0.0
    origin: Origin = Origin(())
    rejected: Rejected | None = None


class Stage(NamedTuple):
    """What a stage asks for.

    Attributes
    ----------
    name : str
    needs : mapping
        Resources of one task.
    least : int
        Rows to give to one task at least, by giving it several pieces.
    limit : int, optional
        Tasks side by side at most.
    least_workers : int
        Workers that are started before there is anything to do.
    """

    name: str
    needs: Mapping[str, float]
    least: int = 0
    limit: int | None = None
    least_workers: int = 0


AGAIN = Piece(None, 0, 0, more=True)
"""What `Runner.take` returns for a task that had to start anew."""


class Runner(Protocol):
    """Where the tasks run."""

    def now(self) -> float:
        """Seconds, from some moment on."""
        ...

    def total(self) -> Mapping[str, float]:
        """Resources that there are."""
        ...

    def start(self, stage: int, inputs: Sequence[Piece]) -> Any:
        """Start a task; return what stands for it."""
        ...

    def wait(self, tasks: Sequence[Any], timeout: float | None) -> list[Any]:
        """Wait until some of ``tasks`` have made an output or ended; return those."""
        ...

    def last(self, task: Any) -> bool:
        """Whether a task of those that `wait` returned has ended, or will after its output."""
        ...

    def take(self, task: Any) -> Piece | None:
        """The next output of a task that has one, and let it go on; None if it has ended."""
        ...

    def idle(self, stage: int) -> int:
        """Workers that are kept for a stage and have nothing to do."""
        ...

    def held(self) -> Mapping[str, float]:
        """Resources of all workers that have nothing to do."""
        ...

    def release(self) -> None:
        """Let go of all workers that have nothing to do."""
        ...

    def cancel(self, tasks: Sequence[Any]) -> None:
        """Stop them, and let go of all workers."""
        ...


@dataclass
class Running:
    """A task that has not ended."""

    stage: int
    inputs: list[Piece]
    more: bool = True
    outputs: int = 0
    given: int = 0
    seconds: float = 0.0

    @property
    def taken(self) -> int:
        """Bytes of its inputs."""
        return sum(piece.nbytes for piece in self.inputs)


@dataclass
class Queue:
    """Inputs of a stage."""

    pieces: deque[Piece] = field(default_factory=deque)
    nbytes: int = 0

    def add(self, piece: Piece) -> None:
        """Append one."""
        self.pieces.append(piece)
        self.nbytes += piece.nbytes


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

    Attributes
    ----------
    peak : int
        The most that `View.used` has been.
    forced : int
        How often something had to go on without room, since nothing else could.
    rejects : list of Piece
        Inputs that were set aside.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        inputs: Iterator[Piece | None],
        runner: Runner,
        policy: Policy,
        *,
        limit: int,
        target: int,
    ) -> None:
        self._stages, self._runner, self._policy = list(stages), runner, policy
        self._limit, self._target = limit, target
        self._inputs = inputs
        self._next: Piece | None = None
        self._exhausted = False
        self._queues = [Queue() for _ in [*stages, None]]  # the last one is of the consumer
        self._running: dict[Any, Running] = {}
        self._ready: dict[Any, None] = {}  # tasks with an output that nobody has taken
        self._known = [Estimate() for _ in stages]
        self.peak = self.forced = 0
        self.rejects: list[Piece] = []
        self._begun: set[int] = set()  # inputs of the source that `completed` has not told of

    @property
    def finished(self) -> bool:
        """Whether all has come out, and been taken."""
        queued = any(queue.pieces for queue in self._queues)
        self._pull()
        return not (queued or self._running) and self._exhausted

    @property
    def outputs(self) -> int:
        """Pieces that the consumer has not taken."""
        return len(self._queues[-1].pieces)

    def take(self) -> Piece:
        """Give an output to the consumer."""
        queue = self._queues[-1]
        piece = queue.pieces.popleft()
        queue.nbytes -= piece.nbytes
        return piece

    def completed(self) -> list[int]:
        """Inputs of the source of which all outputs have been taken, since this was asked last."""
        pieces = [piece for running in self._running.values() for piece in running.inputs]
        pieces += [piece for queue in self._queues for piece in queue.pieces]
        pieces += [self._next] if self._next is not None else []
        done = self._begun - {piece.place[0] for piece in pieces}
        self._begun -= done
        return sorted(done)

    def step(self, timeout: float | None = None) -> None:
        """Start what the policy wants, wait for something to happen, and note it."""
        self._start()
        if not self._running and self._runner.held():
            self._runner.release()  # what they hold may be what the others wait for
            self._start()
        open_ = any(map(self._may_go_on, self._ready))
        forced = None
        if not open_ and len(self._ready) == len(self._running):
            forced = self._force()
        if self._next is None and not self._exhausted:
            timeout = SOON if timeout is None else min(timeout, SOON)
        waiting = [task for task in self._running if task not in self._ready]
        if waiting or not self._ready:
            ready = self._runner.wait(waiting, 0 if open_ or forced is not None else timeout)
            self._ready.update(dict.fromkeys(ready))
        for task in list(self._ready):
            if task is forced or self._may_go_on(task):
                self._accept(task)

    def seen(self) -> list[StageSeen]:
        """How each stage is."""
        view = self.view()
        return [
            StageSeen(
                stage.name,
                view.stages[i].queued,
                view.stages[i].running,
                known.count,
                known.outputs,
                known.nbytes,
                known.worked,
                waits(view, i),
            )
            for i, (stage, known) in enumerate(zip(self._stages, self._known, strict=True))
        ]

    def cancel(self) -> None:
        """Stop all tasks, and let go of everything."""
        self._runner.cancel(list(self._running))
        self._running.clear()
        self._ready.clear()
        for queue in self._queues:
            queue.pieces.clear()
        self._inputs, self._next, self._exhausted = iter(()), None, True

    def view(self) -> View:
        """What the policy sees."""
        total = self._runner.total()
        free = dict(total)
        counts = [0] * len(self._stages)
        used = sum(queue.nbytes for queue in self._queues)
        coming = [0.0] * len(self._stages)
        for running in self._running.values():
            counts[running.stage] += 1
            coming[running.stage] += max(0.0, self._known[running.stage].given - running.given)
            used += self._held(running)
        for count, stage in zip(counts, self._stages, strict=True):
            for name, need in stage.needs.items():
                free[name] = free.get(name, 0) - need * count
        for name, amount in self._runner.held().items():
            free[name] = free.get(name, 0) - amount
        self.peak = max(self.peak, used)
        done, stages = self._exhausted, []
        for i, stage in enumerate(self._stages):
            known, queued = self._known[i], self._tasks_queued(i, flush=done)
            done = done and not queued and not counts[i]
            stages.append(
                StageView(
                    queued,
                    counts[i],
                    self._queues[i + 1].nbytes,
                    self._piece(i),
                    known.splits is not False,
                    stage.needs,
                    stage.limit,
                    known.seconds if known.count else None,
                    known.taken,
                    known.given,
                    coming[i],
                    done,
                    self._runner.idle(i),
                )
            )
        return View(tuple(stages), used, self._limit, free, total, self._runner.now())

    def _held(self, running: Running) -> int:
        """Bytes that count for a task: its inputs, and the output that it makes."""
        if not running.more:
            return 0  # it is about to end
        promised = self._piece(running.stage)
        if self._known[running.stage].splits is False:
            return max(running.taken, promised)  # one takes the place of the other
        return running.taken + promised

    def _piece(self, i: int) -> int:
        return self._known[i].piece or self._target

    def _tasks_queued(self, i: int, *, flush: bool) -> int:
        """Whether there is enough for a task of stage ``i``; all there is, at the end."""
        if i == 0:
            self._pull()
            return int(self._next is not None)
        pieces = self._queues[i].pieces
        if not pieces or flush or not self._stages[i].least:
            return len(pieces)
        return len(pieces) if sum(p.rows for p in pieces) >= self._stages[i].least else 0

    def _pull(self) -> None:
        """Look for the next input of the source."""
        if self._next is None and not self._exhausted:
            try:
                self._next = next(self._inputs)
                if self._next is not None:
                    self._begun.add(self._next.place[0])
            except StopIteration:
                self._exhausted = True

    def _start(self) -> None:
        while (i := self._policy.start(self.view())) is not None:
            self._launch(i)

    def _launch(self, i: int) -> None:
        if i == 0:
            assert self._next is not None
            inputs, self._next = [self._next], None
        else:
            queue, inputs, rows = self._queues[i], [], 0
            while queue.pieces and (not inputs or rows < self._stages[i].least):
                piece = queue.pieces.popleft()
                queue.nbytes -= piece.nbytes
                rows += piece.rows
                inputs.append(piece)
        task = self._runner.start(i, inputs)
        self._running[task] = Running(i, inputs)

    def _may_go_on(self, task: Any) -> bool:
        stage = self._running[task].stage
        return self._runner.last(task) or self._policy.go_on(self.view(), stage)

    def _force(self) -> Any:
        """Let something go on although there is no room, as nothing else can: the last stage."""
        if self._queues[-1].pieces:  # the consumer has to take something first
            return None
        view = self.view()
        able = [i for i in range(len(self._stages)) if view.startable(i)]
        ready = max(self._ready, key=lambda task: self._running[task].stage, default=None)
        if not able and ready is None:
            return None
        self.forced += 1
        if ready is not None and self._running[ready].stage >= max(able, default=-1):
            return ready
        self._launch(max(able))
        return None

    def _accept(self, task: Any) -> None:
        """Take the output of a task, or its end."""
        piece = self._runner.take(task)
        del self._ready[task]
        if piece is AGAIN:
            return
        if piece is not None and piece.rejected is not None:
            self.rejects.append(piece)
            return
        running = self._running[task]
        known = self._known[running.stage]
        if piece is not None:
            place = (*running.inputs[0].place, running.outputs)
            running.outputs += 1
            running.given += piece.nbytes
            running.seconds += piece.seconds
            running.more = piece.more
            known.piece = max(known.piece, piece.nbytes)
            known.outputs += 1
            known.nbytes += piece.nbytes
            known.worked += piece.seconds
            self._queues[running.stage + 1].add(piece._replace(place=place))
            return
        del self._running[task]
        known.learn(running.seconds, running.taken, running.given)
        known.splits = bool(known.splits) or running.outputs > 1
