"""A stage while it runs: its tasks, estimates of what they cost, and the bytes they count for.

The figures of a snapshot are updated as they change, so that a snapshot does not visit tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_exo.cluster.resources import Resources
from dask_exo.pipeline.streaming.blocks import Block, Links, StageSpec
from dask_exo.pipeline.streaming.snapshot import StageView

WEIGHT = 0.2  # of the last task in a moving average
SHORT = 0.1  # seconds that a task of several small blocks may take
SMALL = 0.01  # of the memory limit that its outputs may take


@dataclass(eq=False)
class RunningTask:
    """A task that has not ended."""

    stage: int
    inputs: list[Block]
    input_bytes: int
    own_bytes: int  # of inputs that no other stage takes
    more: bool = True  # False once its last output is known
    outputs: int = 0  # so far
    output_bytes: int = 0  # of these
    seconds: float = 0.0  # work that they took


@dataclass
class StageEstimate:
    """Estimates of the tasks of a stage: totals, and moving averages."""

    count: int = 0  # tasks that have ended
    outputs: int = 0  # of all tasks
    nbytes: int = 0  # of these
    read: int = 0  # bytes of inputs of tasks that have ended
    busy_seconds: float = 0.0  # of all tasks
    seconds: float = 0.0  # mean of a task
    input_bytes: float = 0.0  # mean of a task
    output_bytes: float = 0.0  # mean of a task
    block_bytes: int = 0  # of the largest output
    splits: bool | None = None  # a task has given several outputs; None until one has ended
    held: int = 0  # see `StageView`
    device: int = 0

    def add_output(self, block: Block) -> None:
        """Count an output, and record the GPU memory that its task has used."""
        self.outputs += 1
        self.nbytes += block.nbytes
        self.busy_seconds += block.seconds
        if block.held is not None:
            peak, room = block.held
            self.held = max(self.held, peak)
            self.device = min(self.device or room, room)

    def add_task(self, task: RunningTask) -> None:
        """Count a task that has ended."""
        self.count += 1
        self.read += task.input_bytes
        share = max(WEIGHT, 1 / self.count)  # recent tasks count most
        self.seconds += (task.seconds - self.seconds) * share
        self.input_bytes += (task.input_bytes - self.input_bytes) * share
        self.output_bytes += (task.output_bytes - self.output_bytes) * share


class StageState:
    """Tasks of one stage.

    ``target`` is the bytes that an output is assumed to have before one has been seen, and
    ``shares`` says whether other stages take its inputs too.
    """

    stage: StageSpec
    links: Links
    estimate: StageEstimate

    def __init__(
        self, number: int, stage: StageSpec, links: Links, target: int, *, shares: bool
    ) -> None:
        self.stage, self.links, self.estimate = stage, links, StageEstimate()
        self.task_bytes: int = 0  # inputs of its tasks, and the output that each makes
        self.request: Resources = stage.request  # of a task at the moment
        self._number, self._target, self._shares = number, target, shares
        self._tasks: dict[RunningTask, None] = {}
        self._output_bytes = 0  # of running tasks, so far

    @property
    def count(self) -> int:
        """Number of running tasks."""
        return len(self._tasks)

    def start(self, inputs: list[Block]) -> RunningTask:
        """Record the start of a task."""
        nbytes = sum(block.nbytes for block in inputs)
        own_bytes = sum(block.nbytes for block in inputs if block.shared is None)
        running = RunningTask(self._number, inputs, nbytes, own_bytes)
        self._tasks[running] = None
        self.task_bytes += self._holds(running)
        return running

    def add_output(self, running: RunningTask, block: Block) -> None:
        """Record an output of a task."""
        before = self._holds(running)
        running.outputs += 1
        running.output_bytes += block.nbytes
        running.seconds += block.seconds
        running.more = block.more
        self._output_bytes += block.nbytes
        self.task_bytes += self._holds(running) - before
        self.estimate.add_output(block)
        if block.nbytes > self.estimate.block_bytes:
            self.estimate.block_bytes = block.nbytes
            self._count()

    def end_task(self, running: RunningTask) -> None:
        """Record the end of a task."""
        del self._tasks[running]
        self.task_bytes -= self._holds(running)
        self._output_bytes -= running.output_bytes
        self.estimate.add_task(running)
        splits = bool(self.estimate.splits) or running.outputs > 1
        if splits != self.estimate.splits:
            self.estimate.splits = splits
            self._count()

    def clear(self) -> None:
        """Drop all tasks."""
        self._tasks.clear()
        self.task_bytes = self._output_bytes = 0

    def view(self, **queues: Any) -> StageView:
        """Return the snapshot of this stage, with what its queues and actors say."""
        estimate = self.estimate
        return StageView(
            running=self.count,
            block_bytes=self._block_bytes,
            splits=estimate.splits is not False,
            request=self.request,
            limit=self.stage.limit,
            seconds=estimate.seconds if estimate.count else None,
            input_bytes=estimate.input_bytes,
            output_bytes=estimate.output_bytes,
            remaining_bytes=max(0.0, self.count * estimate.output_bytes - self._output_bytes),
            before=self.links.before,
            later=self.links.later,
            shares=self._shares,
            held=estimate.held,
            device=estimate.device,
            **queues,
        )

    def most_bytes(self, limit: int) -> float:
        """Return the bytes of small blocks that a task may take together.

        It has to be short all the same, as other slots may be idle, and its outputs hardly count
        beside the ``limit`` of memory, since room was reserved for smaller ones.
        """
        estimate = self.estimate
        if not estimate.count:
            return 0
        short = SHORT / max(estimate.seconds, 1e-9)
        room = max(estimate.block_bytes, SMALL * limit) / max(estimate.output_bytes, 1)
        return min(self._target, min(short, room) * estimate.input_bytes)

    @property
    def _block_bytes(self) -> int:
        """Expected bytes of an output."""
        return self.estimate.block_bytes or self._target

    def _holds(self, running: RunningTask) -> int:
        if not running.more:
            return 0  # it is about to end
        if self.estimate.splits is False:
            return max(running.own_bytes, self._block_bytes)  # one takes the place of the other
        return running.own_bytes + self._block_bytes

    def _count(self) -> None:
        """Recount the bytes of tasks after the expected size of outputs has changed."""
        self.task_bytes = sum(map(self._holds, self._tasks))
