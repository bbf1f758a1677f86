"""Queues of blocks between the stages of a pipeline, and the bytes that wait in them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from dask_exo.pipeline.streaming.blocks import Block, ConsumerCounts, Links


class SourceQueue:
    """Inputs of a source, of which only the next one is fetched; None means not there yet.

    ``count`` is their number, if known.
    """

    count: int | None
    taken: int

    def __init__(self, inputs: Iterator[Block | None], count: int | None = None) -> None:
        self._inputs, self.count, self.taken = inputs, count, 0
        self.next: Block | None = None
        self._ended = False

    @property
    def exhausted(self) -> bool:
        """True if all inputs were taken."""
        return self._ended and self.next is None

    @property
    def pending(self) -> bool:
        """True if the next input exists and has not arrived."""
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
        self.taken += 1
        return block

    def close(self) -> None:
        """Drop all inputs."""
        self._inputs, self.next, self._ended = iter(()), None, True


@dataclass
class BlockQueue:
    """Inputs of a stage, and the bytes of those that no other stage takes."""

    blocks: deque[Block] = field(default_factory=deque)
    nbytes: int = 0
    waiting: int = 0  # bytes of all
    rows: int = 0

    def add(self, block: Block) -> None:
        """Append a block."""
        self.blocks.append(block)
        self.nbytes += 0 if block.shared else block.nbytes
        self.waiting += block.nbytes
        self.rows += block.rows

    def take(self, k: int = 0) -> Block:
        """Remove and return a block."""
        block = self.blocks[k]
        del self.blocks[k]
        self.nbytes -= 0 if block.shared else block.nbytes
        self.waiting -= block.nbytes
        self.rows -= block.rows
        return block

    def next_after(self, block: Block, most: float) -> int | None:
        """Return the index of the block that follows another one, if it has few enough bytes."""
        if most <= 0 or not block.parts:
            return None
        place = (block.place[0] + block.parts, *block.place[1:])
        return next(
            (
                k
                for k, b in enumerate(self.blocks)
                if b.place == place and b.parts and b.nbytes <= most
            ),
            None,
        )


class Queues:
    """Queues of all sources, stages and sinks.

    A block with several consumers waits in the queue of each, and its bytes count once until the
    last one has released it. ``complete`` is called with the number of each input of a source when
    all its outputs have been taken.
    """

    def __init__(self, links: Sequence[Links], sources: Sequence[SourceQueue]) -> None:
        self._links = links
        stages = [i for i, link in enumerate(links) if not link.before]
        self.sources: dict[int, SourceQueue] = dict(zip(stages, sources, strict=True))
        self.complete: Callable[[int], object] | None = None
        self.clear()

    def clear(self) -> None:
        """Drop all blocks."""
        self.outputs: BlockQueue = (
            BlockQueue()
        )  # those that the consumer of the pipeline has not taken
        self.buffered: list[int] = [
            0 for _ in self._links
        ]  # bytes that some consumer has not taken
        self._stages = [BlockQueue() for _ in self._links]
        self._shared_bytes = 0  # of blocks with several consumers
        self._remaining: Counter[int] = Counter()  # blocks of each input of a source

    def close(self) -> None:
        """Drop all blocks, and all inputs of sources."""
        self.clear()
        for source in self.sources.values():
            source.close()

    @property
    def nbytes(self) -> int:
        """Bytes that wait, and those of shared blocks that are in use."""
        inputs = sum(queue.nbytes for queue in self._stages)
        return self.outputs.nbytes + self._shared_bytes + inputs

    @property
    def empty(self) -> bool:
        """True if no block waits, and none will come of a source."""
        sources = all(source.exhausted for source in self.sources.values())
        return sources and not (self.outputs.blocks or any(q.blocks for q in self._stages))

    def poll(self) -> None:
        """Poll each source for its next input."""
        for source in self.sources.values():
            block = source.poll()
            if block is not None:
                self._remaining[block.place[0]] += 1

    def ready(self, i: int, least: int, *, flush: bool) -> int:
        """Return the number of inputs of stage ``i``; 0 below ``least`` rows unless ``flush``."""
        source = self.sources.get(i)
        if source is not None:
            return int(source.next is not None)
        queue = self._stages[i]
        return len(queue.blocks) if flush or queue.rows >= least else 0

    def waiting_bytes(self, i: int) -> int:
        """Return the bytes of the blocks that wait for stage ``i``."""
        return self._stages[i].waiting

    def stages_with_input(self) -> list[int]:
        """Return stages that have inputs, sources first."""
        sources = [i for i, source in self.sources.items() if source.next is not None]
        return sources + [i for i, queue in enumerate(self._stages) if queue.blocks]

    def take(self, i: int, least: int, nbytes: float = 0) -> list[Block]:
        """Remove and return inputs of stage ``i`` for one task, of ``least`` rows if possible.

        Small blocks that follow each other in the order of the source are taken together, up to
        ``nbytes``.
        """
        if i in self.sources:
            inputs = [self.sources[i].take()]
        else:
            queue = self._stages[i]
            inputs, rows = [queue.take()], 0
            while queue.blocks and (rows := rows + inputs[-1].rows) < least:
                inputs.append(queue.take())
            room = 0 if least else nbytes - inputs[0].nbytes
            while (k := queue.next_after(inputs[-1], room)) is not None:
                inputs.append(queue.take(k))
                room -= inputs[-1].nbytes
        for block in inputs:
            self._record_taken(block)
        return inputs

    def take_output(self) -> Block:
        """Remove and return an output of the pipeline."""
        block = self.outputs.take()
        self._record_taken(block)
        self.release([block])
        return block._replace(shared=None)

    def add(self, block: Block) -> None:
        """Put an output into the queues of all its consumers."""
        link = self._links[block.stage]
        self.buffered[block.stage] += block.nbytes
        self._remaining[block.place[0]] += link.takers
        if link.takers > 1:
            block = block._replace(shared=ConsumerCounts(link.takers, link.takers))
            self._shared_bytes += block.nbytes
        for sink, suffix in link.sinks:
            self.outputs.add(block._replace(sink=sink, place=(*block.place, *suffix)))
        for k, suffix in link.after:
            parts = 0 if suffix else block.parts
            self._stages[k].add(block._replace(place=(*block.place, *suffix), parts=parts))

    def release(self, blocks: Sequence[Block]) -> None:
        """Record that a consumer has released blocks; report inputs that are complete."""
        for block in blocks:
            if block.shared is not None:
                block.shared.using -= 1
                self._shared_bytes -= 0 if block.shared.using else block.nbytes
            i = block.place[0]
            self._remaining[i] -= 1
            if not self._remaining[i]:
                del self._remaining[i]
                if self.complete is not None:
                    self.complete(i)

    def _record_taken(self, block: Block) -> None:
        """Record that a consumer has taken a block, which it will release."""
        shared = block.shared
        if shared is not None:
            shared.waiting -= 1
        if block.stage >= 0 and (shared is None or not shared.waiting):
            self.buffered[block.stage] -= block.nbytes
