"""Recovery of a pipeline: lost tasks run again, lost inputs are recomputed by their lineage.

Ray itself recomputes lost outputs of tasks, but not those of actors. So each block knows the inputs
of its task, and these know theirs, up to the source.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from dask_exo import events
from dask_exo.cluster.futures import Futures
from dask_exo.cluster.resources import fits
from dask_exo.errors import Failure, NonDeterminismError, ValueLostError, WorkerLostError
from dask_exo.execution.actor_pool import PooledActor
from dask_exo.pipeline.streaming.actor_pools import StageActorPools
from dask_exo.pipeline.streaming.blocks import (
    Block,
    Origin,
    RejectReason,
    StageSpec,
    origin_of,
)
from dask_exo.pipeline.streaming.task import BlockMetadata
from dask_exo.pipeline.streaming.task_state import StreamTask, TasksInFlight, TaskState
from dask_exo.pipeline.streaming.transforms import call_name

MAX_REPLACEMENTS = 3  # how often a dead actor is replaced for one task


class Recovery:
    """Restarts lost tasks and recomputes their lost inputs.

    Parameters
    ----------
    futures : Futures
    stages : sequence of StageSpec
        (S,)
    skips : sequence of bool
        (S,) Whether the inputs of a task that was lost too often are set aside.
    pools : StageActorPools
    in_flight : TasksInFlight
    submit : callable
        Submits a task.
    release : callable
        Removes a task that has ended, and releases its actor.
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
        self._waiting: list[StreamTask] = []  # recompute something, and wait for an actor
        self._recalled: list[StreamTask] = []  # wait for lost inputs, without an actor

    @property
    def polls(self) -> bool:
        """Return whether tasks wait for inputs that no event announces."""
        return bool(self._recalled)

    def clear(self) -> None:
        """Forget all tasks that wait."""
        self._waiting.clear()
        self._recalled.clear()

    def recompute(self, block: Block) -> StreamTask:
        """Start a task that recomputes one block, and nothing else."""
        lineage = block.lineage
        assert lineage is not None
        task = StreamTask(block.stage, list(lineage.inputs), given=lineage.number, only=lineage)
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
        """Submit the task that waits for a recomputed block.

        Parameters
        ----------
        maker : StreamTask
            The task that recomputed it.
        block : Block, optional
            None if ``maker`` ended without it.

        Raises
        ------
        NonDeterminismError
            The stage does not make this block any more.
        """
        assert maker.reader is not None
        task, number = maker.reader
        lost = task.inputs[number]
        if block is None or block.rejected is not None:
            raise missing_output(self._stages[maker.stage].name, lost)
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
            makers = [self._stages[max(block.stage, 0)].needs for block in first.inputs]
            if first.has_begun or all(fits(free, needs) for needs in makers):
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

        Parameters
        ----------
        task : StreamTask
        error : WorkerLostError
            `ValueLostError` if its process is alive, and an input was lost.

        Raises
        ------
        WorkerLostError
            It was lost too often, and its inputs may not be set aside.
        """
        task.become(TaskState.LOST)
        if isinstance(error, ValueLostError):
            self._release(task)
            task.losses += 1
            task.inputs = [
                block.without_value() if block.can_recompute else block for block in task.inputs
            ]
        else:
            self._bury(task)
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

    def _bury(self, task: StreamTask) -> None:
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


def missing_output(stage: str, block: Block) -> NonDeterminismError:
    """Return the error of a stage that does not make a lost block again."""
    return NonDeterminismError(
        f"stage {stage!r} ran again on {block.known_origin}, since a node was lost, and did not "
        f"make the block that it made before: let it depend on its input only"
    )


def dead_letter(stage: str, block: Block, error: Exception) -> Block:
    """Return an input as a dead letter."""
    where = block.known_origin
    failure = Failure.of(call_name(stage, stage, where), error)
    return block._replace(more=True, rejected=RejectReason(stage, stage, where, failure))


def compare(about: BlockMetadata, seen: int, mode: str, stage: str, origin: Origin) -> None:
    """Check that a task that runs again makes the outputs that it made before.

    Parameters
    ----------
    about : BlockMetadata
        Of the block.
    seen : int
        Digest of the blocks before it, as they came.
    mode : str
        What happens where they are others: ``"error"`` or ``"warn"``.
    stage : str
    origin : Origin
        Of the input of the task.

    Raises
    ------
    NonDeterminismError
        They are others, and this is to be an error.
    """
    if about.before == seen:
        return
    text = (
        f"stage {stage!r} ran again on {origin}, since an actor or a node was lost, and made other "
        f"blocks than before, of which some are used already: let it depend on its input only. If "
        f"the difference does no harm, set exo.fault.nondeterminism to 'warn' or 'ignore'"
    )
    if mode == "error":
        raise NonDeterminismError(text)
    warnings.warn(text, stacklevel=2)
