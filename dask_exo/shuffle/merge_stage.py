"""The merge stage: tasks that merge map outputs into larger blocks for the reducers.

Reference: the byte limit on merges is that of Exoshuffle-CloudSort, section 4.1.5.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.resources import split_evenly
from dask_exo.cluster.waiting import Steps
from dask_exo.shuffle import stragglers
from dask_exo.shuffle.choose import MergeLimits
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.spec import (
    BlockRefs,
    MapOutput,
    Owned,
    ReducerGroup,
    ReducerInput,
    Spec,
    overlap,
    reducer_groups,
    reducer_inputs,
)


class MergeOutput(NamedTuple):
    """Output of a merge: the index of its block in the rows, its readers, and its refs."""

    block: int
    group: ReducerGroup
    refs: BlockRefs


@dataclass(slots=True, eq=False)
class MergeTask:
    """A submitted merge.

    It has its inputs, ``rows``, while speculative attempts may replace them, and the blocks that it
    was ``submitted`` with as long as reducers may have to read them instead.
    """

    outputs: list[MergeOutput]
    submit: Callable[..., list[Ref]] | None  # None if a block is passed through instead
    end: Ref  # its last output
    rows: list[MapOutput] = field(default_factory=list)
    submitted: list[Ref] = field(default_factory=list)
    since: float = 0.0  # time of the submission

    @property
    def blocks(self) -> list[int]:
        """Indices of the blocks that it takes of each row."""
        return sorted({output.block for output in self.outputs})

    def current_args(self) -> list[Ref]:
        """Return the blocks of its rows as they are now."""
        return [row[i] for i in self.blocks for row in self.rows]

    def submitted_by_block(self) -> dict[int, list[Ref]]:
        """Return the blocks that it was submitted with, by index."""
        parts = split_evenly(len(self.submitted), len(self.blocks))
        return {
            i: self.submitted[part.start : part.stop]
            for i, part in zip(self.blocks, parts, strict=True)
        }


class MergeStage:
    """Merges of one shuffle, and the merged blocks that each reducer reads.

    ``width`` neighbouring reducers share merged blocks. A merge takes at most the bytes of its cap,
    unless it takes a single block.
    """

    def __init__(
        self,
        futures: Futures,
        maps: MapStage,
        spec: Spec,
        width: int,
        caps: MergeLimits | None = None,
    ) -> None:
        self._futures, self._maps, self._spec, self._caps = futures, maps, spec, caps
        self._groups = reducer_groups(spec, width)
        self._starts = [group.reducers.start for group in self._groups]
        self._measured = maps.probed
        self.rounds: deque[list[MergeTask]] = deque[
            list[MergeTask]
        ]()  # merges of rounds that may not have ended

    def merge(
        self, rows: Sequence[MapOutput], nodes: Sequence[str] | None = None
    ) -> list[MergeTask]:
        """Merge (T, W) packed blocks on the (W,) ``nodes``, by default those of the reducers.

        Blocks for the same reducers that exceed the limit are merged in several tasks. A block
        that would be merged alone, and that its reducers read as a whole, is passed through.
        """
        tasks = []
        for owned, alike in groupby(rows, key=lambda row: row.owned):
            same = list(alike)
            sizes, cap = self._sizes_and_limit(same)
            for i, reducers in enumerate(owned):
                groups = group_by_bytes([size[i] for size in sizes], cap)
                for group in groups:
                    merged_rows = same[group.start : group.stop]
                    outputs = self._outputs_of(i, reducers)
                    if len(groups) > 1 and self._is_final(merged_rows) and len(outputs) == 1:
                        tasks += self._pass_through(merged_rows[0], *outputs[0])
                        continue
                    for w, on_node in groupby(
                        outputs, key=lambda output: output.group.w if nodes is None else 0
                    ):
                        node = self._spec.nodes[w].id if nodes is None else nodes[i]
                        tasks.append(self._start(merged_rows, list(on_node), node))
        return tasks

    def add_unmerged(self, rows: Sequence[MapOutput]) -> None:
        """Let the reducers read the packed blocks of finished ``rows`` as they are."""
        for owned, alike in groupby(rows, key=lambda row: row.owned):
            same = list(alike)
            for i, reducers in enumerate(owned):
                for _, group, output in self._outputs_of(i, reducers):
                    output.refs = [row[i] for row in same]
                    group.blocks.append(output)

    def merge_here(
        self, fn: Callable[..., Any], rows: Sequence[MapOutput], node: str | None
    ) -> list[MergeTask]:
        """Merge (T, W) packed blocks in one task, by ``fn(merge, slots, *blocks)``.

        ``fn`` takes `Spec.merge`, for each of the W blocks of a row the ranges of reducers that it
        is divided into, and (W · T,) blocks.
        """
        tasks = []
        for owned, alike in groupby(rows, key=lambda row: row.owned):
            same = list(alike)
            sizes, cap = self._sizes_and_limit(same)
            for group in group_by_bytes([sum(size) for size in sizes], cap):
                merged_rows = same[group.start : group.stop]
                outputs = [
                    output
                    for i, owned_range in enumerate(owned)
                    for output in self._outputs_of(i, owned_range)
                ]
                tasks.append(self._start(merged_rows, outputs, node, fn))
        return tasks

    def wait_for(self, merges: Sequence[MergeTask]) -> Steps[None]:
        """Wait until merges that were submitted together have finished.

        Late merges are cancelled: the reducers read the blocks that those were to merge. Merges of
        rows that a speculative attempt has replaced are submitted again.
        """
        submitted = sum(merge.submit is not None for merge in merges)
        if not self._maps.speculates:
            yield [merge.end for merge in merges]
        durations: list[float] = []
        waiting = self.unfinished(merges, durations)
        while waiting:
            yield self._maps.wait_condition([merge.end for merge in waiting])
            waiting = self._cancel_late(self.unfinished(waiting, durations), durations)
        self._maps.merged += submitted

    def wait_for_rounds(self, most: int) -> Steps[None]:
        """Wait until the merges of at most so many rounds have not finished."""
        while len(self.rounds) > most:
            yield from self.wait_for(self.rounds.popleft())

    def unfinished(
        self, merges: Sequence[MergeTask], durations: list[float] | None = None
    ) -> list[MergeTask]:
        """Return the merges that have not finished; add the ``durations`` of the others."""
        if not self._maps.speculates:
            return []
        self._maps.collect_finished()
        self.resubmit_stale(merges)
        finished = set(self._futures.wait([merge.end for merge in merges], timeout=0)[0])
        waiting = []
        for merge in merges:
            if merge.end in finished and not merge.rows:
                merge.submitted, merge.outputs = [], []
                if durations is not None:
                    durations.append(self._futures.now - merge.since)
            else:
                waiting.append(merge)
        return waiting

    def resubmit_stale(self, merges: Iterable[MergeTask]) -> None:
        """Submit merges again whose inputs a speculative attempt has replaced."""
        for merge in merges:
            if merge.rows and (args := merge.current_args()) != merge.submitted:
                self._futures.cancel([merge.end])
                self._submit(merge, args)
            if all(row.final for row in merge.rows):
                merge.rows = []

    @property
    def owned(self) -> Owned:
        """Reducers that share merged blocks."""
        return tuple(group.reducers for group in self._groups)

    def inputs(self, keep_alive: object = None) -> list[ReducerInput]:
        """Return the (R,) inputs of the reducers; ``keep_alive`` lives as long as they do."""
        return reducer_inputs(self._groups, self._spec, keep_alive)

    def _sizes_and_limit(
        self, rows: Sequence[MapOutput]
    ) -> tuple[Sequence[Sequence[float]], int | None]:
        """Return (T, W) bytes of packed blocks, and the maximum of one merge."""
        measured, self._measured = self._measured, False
        if self._caps is None:
            return [[0.0] * len(row) for row in rows], None
        return self._maps.block_sizes(rows), self._caps[0 if measured else 1]

    def _is_final(self, rows: Sequence[MapOutput]) -> bool:
        """Return whether this is a single row that no speculative attempt will replace."""
        return len(rows) == 1 and (rows[0].final or not self._maps.speculates)

    def _pass_through(
        self, row: MapOutput, i: int, group: ReducerGroup, output: BlockRefs
    ) -> list[MergeTask]:
        """Give block ``i`` of a row to its reducers without a merge."""
        output.refs = [row[i]]
        group.blocks.append(output)
        # with speculation, only blocks of finished maps are passed through
        return [] if self._maps.speculates else [MergeTask([], None, row[i])]

    def _outputs_of(self, i: int, reducers: range) -> list[MergeOutput]:
        """Divide block ``i`` of ``reducers`` by the groups of reducers that read it."""
        if not reducers:
            return []
        first = bisect_right(self._starts, reducers.start) - 1
        last = bisect_left(self._starts, reducers.stop)
        return [
            MergeOutput(i, group, BlockRefs(overlap(reducers, group.reducers), []))
            for group in self._groups[first:last]
        ]

    def _start(
        self,
        rows: list[MapOutput],
        outputs: list[MergeOutput],
        node: str | None,
        fn: Callable[..., Any] | None = None,
    ) -> MergeTask:
        call = [self._spec.merge]
        slots: list[Any] = [output.refs.reducers for output in outputs]
        if fn is not None:
            of_block = groupby(outputs, key=lambda output: output.block)
            slots = [[output.refs.reducers for output in group] for _, group in of_block]
            call = [fn, self._spec.merge]
        node = self._spec.places.prefer(node)
        options = self._maps.needs
        stream = partial(self._futures.stream, node=node, options=options)
        submit = partial(stream, len(outputs), *call, slots)
        merge = MergeTask(outputs, submit, None, rows)
        self._submit(merge, merge.current_args())
        self._maps.merges += 1
        speculates = self._maps.speculates
        for _, group, output in outputs:
            final = not speculates and output.reducers == group.reducers
            group.blocks.append(output.refs[0] if final else output)
        if speculates:
            self._maps.reserve_slot(merge)
        else:
            merge.rows, merge.submitted, merge.outputs = [], [], []
        return merge

    def _submit(self, merge: MergeTask, args: list[Ref]) -> None:
        assert merge.submit is not None
        blocks = merge.submit(*args)
        merge.submitted, merge.end, merge.since = args, blocks[-1], self._futures.now
        for (_, _, output), block in zip(merge.outputs, blocks, strict=True):
            output.refs = [block]

    def _cancel_late(
        self, merges: Sequence[MergeTask], durations: Sequence[float]
    ) -> list[MergeTask]:
        """Cancel the late merges; return the others."""
        policy = self._maps.policy
        assert policy is not None
        running = {merge: (merge.since, 1) for merge in merges if not merge.rows}
        late = stragglers.late(running, durations, now=self._futures.now, policy=policy)
        for merge in late:
            self._futures.cancel([merge.end])
            events.emit(events.Recovered("late merge given up"))
            inputs = merge.submitted_by_block()
            for i, _, output in merge.outputs:
                output.refs = inputs[i]
            merge.submitted, merge.outputs = [], []
        return [merge for merge in merges if merge not in late]


def group_by_bytes(sizes: Sequence[float], cap: int | None) -> list[range]:
    """Divide neighbouring blocks of (T,) ``sizes`` into groups of at most ``cap`` bytes.

    A larger block is a group of its own. Without a cap, all blocks are one group.
    """
    if cap is None:
        return [range(len(sizes))] if sizes else []
    groups: list[range] = []
    start, total = 0, 0.0
    for i, size in enumerate(sizes):
        if i > start and total + size > cap:
            groups.append(range(start, i))
            start, total = i, 0.0
        total += size
    return [*groups, range(start, len(sizes))] if sizes else []
