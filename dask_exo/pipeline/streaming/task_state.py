"""Tasks of a pipeline as the driver sees them, their states, and the actors that serve them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from dask_exo.pipeline.streaming.blocks import Block, Lineage
from dask_exo.pipeline.streaming.task import BlockMetadata


class TaskState(Enum):
    """State of a task; `TRANSITIONS` says what may follow."""

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


_SUBMITTED = frozenset(
    {TaskState.WAITS_FOR_INPUT, TaskState.WAITS_FOR_ACTOR, TaskState.RUNNING}
)  # a task that is submitted gets one of these

TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    TaskState.NEW: _SUBMITTED,
    TaskState.WAITS_FOR_INPUT: _SUBMITTED,
    TaskState.WAITS_FOR_ACTOR: _SUBMITTED,
    TaskState.RECALLED: _SUBMITTED,
    TaskState.RUNNING: frozenset(
        {
            TaskState.HAS_OUTPUT,
            TaskState.DRAINED,
            TaskState.RECALLED,
            TaskState.LOST,
            TaskState.ENDED,  # a recomputed block was all that it had to make
        }
    ),
    TaskState.HAS_OUTPUT: frozenset({TaskState.RUNNING, TaskState.DRAINED, TaskState.LOST}),
    TaskState.DRAINED: frozenset({TaskState.ENDED}),
    TaskState.LOST: _SUBMITTED | {TaskState.SET_ASIDE},
    TaskState.SET_ASIDE: frozenset({TaskState.ENDED}),
    TaskState.ENDED: frozenset(),
}


@dataclass(eq=False)
class StreamTask:
    """A task that was started and has not ended.

    Attributes
    ----------
    stage : int
    inputs : list of Block
    given : int
        Number of outputs that were taken; a later attempt leaves them out.
    digest : int
        Digest of all outputs that were taken.
    losses : int
        Number of attempts that were lost.
    only : Lineage, optional
        The one output that the task recomputes; None for a task that makes all outputs.
    reader : (StreamTask, int), optional
        The task that waits for the recomputed output, and the number of that input.
    maker : StreamTask, optional
        The task that recomputes an input of this one.
    stream, actor : object
        Handles of the current attempt; a task of a stateless stage has no actor.
    metadata : BlockMetadata, optional
        Metadata of the output that waits to be taken.
    dead_letters : list of Block
        Inputs to report as set aside, last one first.
    """

    stage: int
    inputs: list[Block]
    given: int = 0
    digest: int = 0
    losses: int = 0
    only: Lineage | None = None
    reader: tuple[StreamTask, int] | None = None
    maker: StreamTask | None = None
    stream: Any = None
    actor: Any = None
    metadata: BlockMetadata | None = None
    dead_letters: list[Block] | None = None
    state: TaskState = TaskState.NEW

    def become(self, state: TaskState) -> None:
        """Change the state.

        Examples
        --------
        >>> task = StreamTask(0, [])
        >>> task.become(TaskState.RUNNING)
        >>> task.become(TaskState.NEW)
        Traceback (most recent call last):
        ...
        AssertionError: a task of stage 0 cannot go from RUNNING to NEW
        """
        assert state in TRANSITIONS[self.state], (
            f"a task of stage {self.stage} cannot go from {self.state.name} to {state.name}"
        )
        self.state = state

    @property
    def has_begun(self) -> bool:
        """Return whether the task has made an output, or will make none."""
        return self.given > 0 or self.state is not TaskState.RUNNING

    def awaited(self) -> StreamTask:
        """Return this task, or the one that recomputes its input."""
        task = self
        while task.maker is not None:
            task = task.maker
        return task


class TasksInFlight:
    """Submitted tasks, by stream and by actor.

    Attributes
    ----------
    by_stream : dict
    by_actor : dict of lists of StreamTask
        In the order in which an actor runs them.
    """

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

    def short(self, stage: int) -> list[Any]:
        """Return actors that run a single task, which is one of ``stage``."""
        return [
            actor
            for actor, tasks in self.by_actor.items()
            if len(tasks) == 1 and tasks[0].stage == stage
        ]
