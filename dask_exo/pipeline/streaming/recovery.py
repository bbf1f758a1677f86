"""Tasks of a pipeline as the driver sees them, and their recovery.

Lost tasks run again, and lost inputs are recomputed by their lineage. Ray itself recomputes lost
outputs of tasks, but not those of actors. So each block knows the inputs of its task, and these
know theirs, up to the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from dask_exo import events
from dask_exo.cluster.futures import Futures
from dask_exo.cluster.resources import fits
from dask_exo.errors import Failure, NonDeterminismError, ValueLostError, WorkerLostError
from dask_exo.execution.actor_pool import PooledActor
from dask_exo.pipeline.streaming.actor_pools import StageActorPools
from dask_exo.pipeline.streaming.blocks import Block, Lineage, RejectReason, StageSpec, origin_of
from dask_exo.pipeline.streaming.task import BlockMetadata
from dask_exo.pipeline.streaming.transforms import call_name

MAX_REPLACEMENTS = 3  # of a dead actor for one task


class TaskState(Enum):
    """State of a task; `TRANSITIONS` has the next states of each."""

    NEW = auto()
    WAITS_FOR_INPUT = auto()  # another task recomputes an input
    WAITS_FOR_ACTOR = auto()
    RECALLED = auto()  # taken from its actor until its inputs are stored again
    RUNNING = auto()  # submitted
    HAS_OUTPUT = auto()  # one that the driver has not taken
    DRAINED = auto()  # no output will follow, but its actor is not released yet
    LOST = auto()  # its process died, or an input was lost
    SET_ASIDE = auto()  # lost too often: its inputs become dead letters
    ENDED = auto()


_S = TaskState
_SUBMITTED = {_S.WAITS_FOR_INPUT, _S.WAITS_FOR_ACTOR, _S.RUNNING}  # a submitted task gets one

TRANSITIONS: dict[TaskState, set[TaskState]] = {
    _S.NEW: _SUBMITTED,
    _S.WAITS_FOR_INPUT: _SUBMITTED,
    _S.WAITS_FOR_ACTOR: _SUBMITTED,
    _S.RECALLED: _SUBMITTED,
    # a task that recomputes one block ends with it
    _S.RUNNING: {_S.HAS_OUTPUT, _S.DRAINED, _S.RECALLED, _S.LOST, _S.ENDED},
    _S.HAS_OUTPUT: {_S.RUNNING, _S.DRAINED, _S.LOST},
    _S.DRAINED: {_S.ENDED},
    _S.LOST: _SUBMITTED | {_S.SET_ASIDE},
    _S.SET_ASIDE: {_S.ENDED},
    _S.ENDED: set(),
}


@dataclass(eq=False)
class StreamTask:
    """A task that was started and has not ended."""

    stage: int
    inputs: list[Block]
    taken: int = 0  # outputs that the driver took; a later attempt leaves them out
    digest: int = 0  # of these
    losses: int = 0  # attempts that were lost
    only: Lineage | None = None  # the one output that it recomputes; None to make all outputs
    reader: tuple[StreamTask, int] | None = None  # waits for that output as its input of a number
    maker: StreamTask | None = None  # recomputes an input of this task
    stream: Any = None  # handle of the current attempt
    actor: Any = None  # of the current attempt; None for a stateless stage
    metadata: BlockMetadata | None = None  # of the output that waits to be taken
    dead_letters: list[Block] | None = None  # inputs to report as set aside, last one first
    state: TaskState = TaskState.NEW

    def become(self, state: TaskState) -> None:
        """Change the state."""
        assert state in TRANSITIONS[self.state], (
            f"a task of stage {self.stage} cannot go from {self.state.name} to {state.name}"
        )
        self.state = state

    @property
    def has_begun(self) -> bool:
        """True if the task has made an output, or will make none."""
        return self.taken > 0 or self.state is not TaskState.RUNNING

    @property
    def last(self) -> bool:
        """True if a ready task has ended, or will after its output."""
        return self.metadata is None or not self.metadata.more

    def awaited(self) -> StreamTask:
        """Return this task, or the one that recomputes its input."""
        task = self
        while task.maker is not None:
            task = task.maker
        return task


class TasksInFlight:
    """Submitted tasks, by stream, and by actor in the order in which it runs them."""

    def __init__(self) -> None:
        self.by_stream: dict[Any, StreamTask] = {}
        self.by_actor: dict[Any, list[StreamTask]] = {}

    def add(self, task: StreamTask) -> None:
        """Add a submitted task."""
        self.by_stream[task.stream] = task
        if task.actor is not None:
            self.by_actor.setdefault(task.actor, []).append(task)

    def remove(self, task: StreamTask) -> bool:
        """Remove a task; return whether its actor has become idle."""
        del self.by_stream[task.stream]
        tasks = self.by_actor.get(task.actor)
        if tasks is None:  # the task had no actor, or the actor has died since
            return False
        tasks.remove(task)
        if not tasks:
            del self.by_actor[task.actor]
        return not tasks

    def with_one_task(self, stage: int) -> list[Any]:
        """Return actors that run a single task, which is one of ``stage``."""
        return [
            actor
            for actor, tasks in self.by_actor.items()
            if len(tasks) == 1 and tasks[0].stage == stage
        ]


class Recovery:
    """Restarts lost tasks and recomputes their lost inputs.

    ``skips`` says of each stage whether to set the inputs of a task aside that was lost too often.
    ``submit`` submits a task; ``release`` removes one that has ended, and releases its actor.
    """

    def __init__(  # noqa: PLR0913  one of each
        self,
        futures: Futures,
        stages: Sequence[StageSpec],
        skips: Sequence[bool],
        pools: StageActorPools,
        in_flight: TasksInFlight,
        *,
        submit: Callable[[StreamTask], None],
        release: Callable[[StreamTask], None],
    ) -> None:
        self._futures, self._stages, self._skips = futures, stages, skips
        self._pools, self._in_flight = pools, in_flight
        self._submit, self._release = submit, release
        self._waiting: list[StreamTask] = []  # recompute a block, and wait for an actor
        self._recalled: list[StreamTask] = []  # wait for lost inputs, without an actor

    @property
    def polls(self) -> bool:
        """True if tasks wait for inputs that no event announces."""
        return bool(self._recalled)

    def clear(self) -> None:
        """Forget all tasks that wait."""
        self._waiting.clear()
        self._recalled.clear()

    def recompute(self, block: Block) -> StreamTask:
        """Start a task that recomputes one block, and nothing else."""
        lineage = block.lineage
        assert lineage is not None
        task = StreamTask(block.stage, list(lineage.inputs), taken=lineage.number, only=lineage)
        events.emit(events.CallsRepeated({self._stages[block.stage].name: 1}))
        self._submit(task)
        return task

    def recompute_input(self, task: StreamTask, number: int) -> None:
        """Recompute an input of a task, which waits for it."""
        task.become(TaskState.WAITS_FOR_INPUT)
        task.stream, task.actor = None, None
        task.maker = self.recompute(task.inputs[number])
        task.maker.reader = (task, number)

    def deliver(self, maker: StreamTask, block: Block | None) -> None:
        """Give a recomputed block to the task that waits for it; None if ``maker`` made none."""
        assert maker.reader is not None
        task, number = maker.reader
        lost = task.inputs[number]
        if block is None or block.rejected is not None:
            raise NonDeterminismError(
                f"stage {self._stages[maker.stage].name!r} ran again on {lost.known_origin}, since "
                f"a node was lost, and did not make the block that it made before: let it depend "
                f"on its input only"
            )
        maker.become(TaskState.ENDED)
        self._release(maker)
        task.maker, task.inputs[number] = None, lost._replace(value=block.value)
        self._submit(task)

    def wait_for_actor(self, task: StreamTask) -> None:
        """Submit a task that recomputes a block as soon as an actor is idle."""
        task.become(TaskState.WAITS_FOR_ACTOR)
        self._waiting.append(task)

    def submit_waiting(self) -> None:
        """Give idle actors to tasks that recompute blocks, before other tasks get them."""
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._submit(task)

    def recall(self) -> None:
        """Take tasks from actors that hold the resources to recompute their lost inputs.

        An actor holds its resources also while it waits for the input of a call. If the node of
        that input is gone, and actors hold all resources that are left, no task could ever go on.
        """
        free = self._futures.resources(free=True)
        for actor, tasks in list(self._in_flight.by_actor.items()):
            first = tasks[0]
            requests = [self._stages[max(block.stage, 0)].request for block in first.inputs]
            if first.has_begun or all(fits(free, request) for request in requests):
                continue
            if not self._stored(first):
                self._discard(actor)
                for task in tasks:
                    task.become(TaskState.RECALLED)
                    del self._in_flight.by_stream[task.stream]
                    task.stream = task.actor = None
                self._recalled += tasks

    def submit_recalled(self) -> None:
        """Submit recalled tasks whose inputs are stored again."""
        recalled, self._recalled = self._recalled, []
        for task in recalled:
            if self._stored(task):
                self._submit(task)
            else:
                self._recalled.append(task)

    def restart(self, task: StreamTask, error: WorkerLostError) -> None:
        """Restart a lost task, or set its inputs aside if it was lost too often.

        If its process is alive, and an input was lost, ``error`` is a `ValueLostError`. Raise one
        of the same class if the inputs may not be set aside.
        """
        task.become(TaskState.LOST)
        if isinstance(error, ValueLostError):
            self._release(task)
            task.losses += 1
            task.inputs = [
                block.without_value() if block.can_recompute else block for block in task.inputs
            ]
        else:
            self._remove_dead(task)
        task.actor = None
        name = self._stages[task.stage].name
        if task.losses <= MAX_REPLACEMENTS:
            events.emit(events.CallsRepeated({name: 1}))
            self._submit(task)
            return
        last = too_many_losses(name, task.inputs, task.losses, error)
        if not self._skips[task.stage] or task.only is not None:
            raise last
        task.become(TaskState.SET_ASIDE)
        task.dead_letters = [dead_letter(name, block, last) for block in reversed(task.inputs)]

    def _remove_dead(self, task: StreamTask) -> None:
        """Remove a task whose process has died."""
        del self._in_flight.by_stream[task.stream]
        if task.actor is None:
            task.losses += 1
        elif task.actor in self._in_flight.by_actor:
            # those behind the first one had not begun
            self._in_flight.by_actor[task.actor][0].losses += 1
            self._discard(task.actor)
        self.submit_waiting()

    def _discard(self, actor: PooledActor) -> None:
        del self._in_flight.by_actor[actor]
        self._pools.discard(actor)

    def _stored(self, task: StreamTask) -> bool:
        refs = [block.value for block in task.inputs if not block.small]
        return not refs or not self._futures.wait(refs, timeout=0)[1]


def too_many_losses(
    stage: str, inputs: Sequence[Block], times: int, last: WorkerLostError
) -> WorkerLostError:
    """Return the error of a task that was lost too often."""
    rows = origin_of(inputs)
    if isinstance(last, ValueLostError):
        return ValueLostError(
            f"the input of stage {stage!r}, {rows}, was lost with its node, and its lineage "
            f"is not stored: start the pipeline again. Inputs from files, or from a dataframe "
            f"without a shuffle, are recomputed (last: {last})"
        )
    return WorkerLostError(
        f"the actors of stage {stage!r} died {times} times on the same input, {rows}: it may need "
        f"more memory than there is. Make smaller partitions, or raise num_cpus of the stage, "
        f"so that fewer of its tasks run at once (last: {last})"
    )


def dead_letter(stage: str, block: Block, error: Exception) -> Block:
    """Return an input as a dead letter."""
    rows = block.known_origin
    failure = Failure.of(call_name(stage, stage, rows), error)
    return block._replace(more=True, rejected=RejectReason(stage, stage, rows, failure))
