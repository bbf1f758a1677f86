"""A stage while it runs: its queue, its tasks, and the bytes that they count for.

The figures of a snapshot are updated as they change, so that a snapshot does not visit tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dask_exo.pipeline.streaming.blocks import Block, Links, StageSpec
from dask_exo.pipeline.streaming.snapshot import StageEstimate, StageView


class SourceQueue:
    """Inputs of a source, with a look-ahead of one.

    Parameters
    ----------
    inputs : iterator of (Block or None)
        None where the next one is not there yet.

    Attributes
    ----------
    next : Block or None
        What a task could take now.
    """

    def __init__(self, inputs: Iterator[Block | None]) -> None:
        self._inputs = inputs
        self.next: Block | None = None
        self._ended = False

    @property
    def exhausted(self) -> bool:
        """Return whether all inputs were taken."""
        return self._ended and self.next is None

    @property
    def pending(self) -> bool:
        """Return whether the next input exists and has not arrived."""
        return not self._ended and self.next is None

    def poll(self) -> Block | None:
        """Poll for the next input; return it when it arrives."""
        if not self.pending:
            return None
        try:
            self.next = next(self._inputs)
        except StopIteration:
            self._ended = True
        return self.next

    def take(self) -> Block:
        """Remove and return the next input."""
        block, self.next = self.next, None
        assert block is not None
        return block

    def close(self) -> None:
        """Drop all inputs."""
        self._inputs, self.next, self._ended = iter(()), None, True


@dataclass(eq=False)
class RunningTask:
    """A task that has not ended.

    Attributes
    ----------
    stage : int
    inputs : list of Block
    taken, own : int
        Bytes of its inputs; and of those that no other stage takes.
    more : bool
        Whether it may give another output.
    outputs, given, seconds
        Number of its outputs so far, their bytes, and the work that they took.
    """

    stage: int
    inputs: list[Block]
    taken: int
    own: int
    more: bool = True
    outputs: int = 0
    given: int = 0
    seconds: float = 0.0

    @property
    def progress(self) -> tuple[int, int]:
        """Rank of the task: nearer to the end of the pipeline, then to its own end."""
        return self.stage, self.outputs


@dataclass
class BlockQueue:
    """Inputs of a stage, and the bytes of those that no other stage takes."""

    blocks: deque[Block] = field(default_factory=deque)
    nbytes: int = 0
    rows: int = 0

    def add(self, block: Block) -> None:
        """Append a block."""
        self.blocks.append(block)
        self.nbytes += 0 if block.shared else block.nbytes
        self.rows += block.rows

    def take(self) -> Block:
        """Remove and return the first block."""
        block = self.blocks.popleft()
        self.nbytes -= 0 if block.shared else block.nbytes
        self.rows -= block.rows
        return block

    def clear(self) -> None:
        """Remove all blocks."""
        self.blocks.clear()
        self.nbytes = self.rows = 0


class StageState:
    """One stage while it runs.

    Parameters
    ----------
    number : int
    stage : StageSpec
    links : Links
    shares : bool
        Whether others take its inputs too.
    target : int
        Bytes that an output is assumed to have before one has been seen.

    Attributes
    ----------
    queue : BlockQueue
        Its inputs.
    buffered : int
        Bytes of its outputs that have not been taken by all.
    known : StageEstimate
    held : int
        Bytes that its tasks count for: inputs, and the output that each makes.
    needs : mapping
        Resources of a task at the moment.
    """

    def __init__(
        self, number: int, stage: StageSpec, links: Links, target: int, *, shares: bool
    ) -> None:
        self.stage, self.queue, self.known = stage, BlockQueue(), StageEstimate()
        self.links, self._shares = links, shares
        self.held = self.buffered = 0
        self.needs = stage.needs
        self._number, self._target = number, target
        self._tasks: dict[RunningTask, None] = {}
        self._given = 0  # bytes that tasks which run have given

    @property
    def count(self) -> int:
        """Number of tasks that run."""
        return len(self._tasks)

    @property
    def block_bytes(self) -> int:
        """Expected bytes of an output."""
        return self.known.block_bytes or self._target

    def queued(self, *, flush: bool) -> int:
        """Return the number of inputs; 0 below a task's minimum of rows, unless at the end."""
        if not flush and self.queue.rows < self.stage.least:
            return 0
        return len(self.queue.blocks)

    def take(self) -> list[Block]:
        """Remove and return the inputs of the next task."""
        inputs, rows = [self.queue.take()], 0
        while self.queue.blocks and (rows := rows + inputs[-1].rows) < self.stage.least:
            inputs.append(self.queue.take())
        return inputs

    def start(self, inputs: list[Block]) -> RunningTask:
        """Record that a task runs."""
        taken = sum(block.nbytes for block in inputs)
        own = sum(block.nbytes for block in inputs if block.shared is None)
        running = RunningTask(self._number, inputs, taken, own)
        self._tasks[running] = None
        self.held += self._holds(running)
        return running

    def add_output(self, running: RunningTask, block: Block) -> None:
        """Record an output of a task."""
        before = self._holds(running)
        running.outputs += 1
        running.given += block.nbytes
        running.seconds += block.seconds
        running.more = block.more
        self._given += block.nbytes
        self.held += self._holds(running) - before
        self.known.add_output(block.seconds, block.nbytes)
        if block.held is not None:
            self.known.add_gpu_memory(*block.held)
        if block.nbytes > self.known.block_bytes:
            self.known.block_bytes = block.nbytes
            self._count()

    def end_task(self, running: RunningTask) -> None:
        """Record the end of a task."""
        del self._tasks[running]
        self.held -= self._holds(running)
        self._given -= running.given
        self.known.add_task(running.seconds, running.taken, running.given)
        splits = bool(self.known.splits) or running.outputs > 1
        if splits != self.known.splits:
            self.known.splits = splits
            self._count()

    def clear(self) -> None:
        """Drop the queue and all tasks."""
        self.queue.clear()
        self._tasks.clear()
        self.held = self.buffered = self._given = 0

    def view(self, queued: int, idle: int, *, full: bool, finished: bool) -> StageView:
        """Return the snapshot of this stage."""
        known = self.known
        return StageView(
            queued,
            self.count,
            self.buffered,
            self.block_bytes,
            known.splits is not False,
            self.needs,
            self.stage.limit,
            known.seconds if known.count else None,
            known.taken,
            known.given,
            max(0.0, self.count * known.given - self._given),
            finished,
            idle,
            full,
            self.links.before,
            self.links.later,
            self._shares,
            known.held,
            known.device,
        )

    def _holds(self, running: RunningTask) -> int:
        if not running.more:
            return 0  # it is about to end
        if self.known.splits is False:
            return max(running.own, self.block_bytes)  # one takes the place of the other
        return running.own + self.block_bytes

    def _count(self) -> None:
        """Recount held bytes after the expected size of outputs has changed."""
        self.held = sum(map(self._holds, self._tasks))
