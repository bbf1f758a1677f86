"""Merged blocks on their way to the reducers that read them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from dask_exo import events
from dask_exo.cluster.futures import Futures, Ref, Steps, evenly
from dask_exo.shuffle import stragglers
from dask_exo.shuffle.map_stage import MapStage
from dask_exo.shuffle.merge_limits import MergeLimits, group_by_bytes
from dask_exo.shuffle.spec import (
    BlockRefs,
    MapOutput,
    ReducerGroup,
    ReducerInput,
    Spec,
    group_by_refs,
    overlap,
    reducer_groups,
)


@dataclass(slots=True, eq=False)
class MergeTask:
    """A merge that was submitted.

    Attributes
    ----------
    outputs : list of (int, ReducerGroup, BlockRefs)
        What it makes: of which block of the rows, and for whom.
    submit : callable
        Submits it, given what it takes.
    end : Ref
        When it is there, the merge is done.
    rows : list of MapOutput
        What it takes, while rows may still be replaced.
    submitted : list of Ref
        Their blocks when it was submitted, as long as they may have to replace what it makes.
    since : float
        When that was.
    """

    outputs: list[tuple[int, ReducerGroup, BlockRefs]]
    submit: Callable[..., list[Ref]]
    end: Ref
    rows: list[MapOutput]
    submitted: list[Ref]
    since: float

    @property
    def blocks(self) -> list[int]:
        """Which blocks of each row it takes."""
        return sorted({i for i, _, _ in self.outputs})

    def current_args(self) -> list[Ref]:
        """What it takes, by now."""
        return [row[i] for i in self.blocks for row in self.rows]

    def taken(self) -> dict[int, list[Ref]]:
        """What it has taken, by block."""
        parts = evenly(len(self.submitted), len(self.blocks))
        return {
            i: self.submitted[part.start : part.stop]
            for i, part in zip(self.blocks, parts, strict=True)
        }


class MergeStage:
    """Which merged blocks each reducer reads.

    Parameters
    ----------
    futures : Futures
    maps : MapStage
        What makes the rows that are merged.
    spec : Spec
    width : int
        Neighbouring reducers that share merged blocks.
    caps : tuple of int, optional
        Bytes that one merge takes at most, unless they are one block: of the maps that were
        measured, and of the others.
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
        self._groups = [
            ReducerGroup(w, reducers, [])
            for w, mine in enumerate(spec.owned)
            for reducers in reducer_groups(mine, width)
        ]
        self._starts = [group.reducers.start for group in self._groups]
        self._measured = maps.probed

    def merge(
        self, rows: Sequence[MapOutput], nodes: Sequence[str] | None = None
    ) -> list[MergeTask]:
        """Merge (T, W) packed blocks; take note of what is made.

        Where blocks for the same reducers exceed the cap, there are several merges of them. A block
        that would be merged with no other one, for readers who all read the whole of it, goes to
        them as it is.

        Parameters
        ----------
        rows : (T, W)
        nodes : (W,), optional
            Where to merge each of the W; by default on the nodes of their reducers.

        Returns
        -------
        list of MergeTask
        """
        started = []
        for owned, same in groupby(rows, key=lambda row: row.owned):
            together = list(same)
            sizes, cap = self._sizes_and_limit(together)
            for i, reducers in enumerate(owned):
                groups = group_by_bytes([size[i] for size in sizes], cap)
                for group in groups:
                    some = together[group.start : group.stop]
                    outputs = self._outputs_of(i, reducers)
                    if len(groups) > 1 and self._is_final(some) and len(outputs) == 1:
                        started += self._pass_through(some[0], *outputs[0])
                        continue
                    for w, mine in groupby(outputs, key=lambda p: p[1].w if nodes is None else 0):
                        node = self._spec.nodes[w].id if nodes is None else nodes[i]
                        started.append(self._start(some, list(mine), node))
        return started

    def merge_here(
        self, fn: Callable[..., Any], rows: Sequence[MapOutput], node: str | None
    ) -> list[MergeTask]:
        """Merge (T, W) packed blocks for all in one task, by ``fn(merge, slots, *blocks)``.

        It takes `Spec.merge`, lists of the ranges that are made of each of the W blocks of a row,
        and (W · T,) blocks.
        """
        started = []
        for owned, same in groupby(rows, key=lambda row: row.owned):
            together = list(same)
            sizes, cap = self._sizes_and_limit(together)
            for group in group_by_bytes([sum(size) for size in sizes], cap):
                some = together[group.start : group.stop]
                outputs = [
                    output for i, mine in enumerate(owned) for output in self._outputs_of(i, mine)
                ]
                started.append(self._start(some, outputs, node, fn))
        return started

    def wait_for(self, merges: Sequence[MergeTask]) -> Steps[None]:
        """Wait until merges that were started together are done.

        Those that are late are given up: the reducers read the blocks that they were to merge.
        Merges of rows that a copy has replaced are started again.
        """
        submitted = sum(merge.submit is not _nothing for merge in merges)
        yield from self._wait_for(merges)
        self._maps.merged += submitted

    def _wait_for(self, merges: Sequence[MergeTask]) -> Steps[None]:
        if not self._maps.speculates:
            yield [merge.end for merge in merges]
            return
        durations: list[float] = []
        waiting = self.unfinished(merges, durations)
        while waiting:
            yield self._maps.wait_condition([merge.end for merge in waiting])
            waiting = self._give_up(self.unfinished(waiting, durations), durations)

    def unfinished(
        self, merges: Sequence[MergeTask], durations: list[float] | None = None
    ) -> list[MergeTask]:
        """Those that are not done, or may have to start again; add the ``durations`` of others."""
        if not self._maps.speculates:
            return []
        self._maps.collect_finished()
        self.resubmit_stale(merges)
        done = set(self._futures.wait([merge.end for merge in merges], timeout=0)[0])
        waiting = []
        for merge in merges:
            if merge.end in done and not merge.rows:
                merge.submitted, merge.outputs = [], []
                if durations is not None:
                    durations.append(self._futures.now - merge.since)
            else:
                waiting.append(merge)
        return waiting

    def resubmit_stale(self, merges: Iterable[MergeTask]) -> None:
        """Start those merges again that have taken blocks which a copy has replaced."""
        for merge in merges:
            if merge.rows and (args := merge.current_args()) != merge.submitted:
                self._futures.cancel([merge.end])
                self._submit(merge, args)
            if all(row.final for row in merge.rows):
                merge.rows = []

    def inputs(self, kept: object = None) -> list[ReducerInput]:
        """What each reducer reads.

        Parameters
        ----------
        kept : object, optional
            Refs that shall live as long as the columns do.

        Returns
        -------
        list of ReducerInput : (R,)
        """
        return [
            ReducerInput(refs, slot, self._spec.place(group.w), kept)
            for group in self._groups
            for slots, refs in group_by_refs(group.reducers, group.blocks)
            for slot in slots
        ]

    def _sizes_and_limit(
        self, rows: Sequence[MapOutput]
    ) -> tuple[Sequence[Sequence[float]], int | None]:
        """(T, W) bytes of packed blocks, and how many of them one merge takes."""
        measured, self._measured = self._measured, False
        if self._caps is None:
            return [[0.0] * len(row) for row in rows], None
        return self._maps.block_sizes(rows), self._caps[0 if measured else 1]

    def _is_final(self, rows: Sequence[MapOutput]) -> bool:
        """Whether this is one row, and no copy will replace it."""
        return len(rows) == 1 and (rows[0].final or not self._maps.speculates)

    def _pass_through(
        self, row: MapOutput, i: int, group: ReducerGroup, output: BlockRefs
    ) -> list[MergeTask]:
        """Give block ``i`` of a row to its readers as it is; who waits for it waits for its map."""
        output.refs = [row[i]]
        group.blocks.append(output)
        # where copies may replace rows, only those are handed on that are there
        return [] if self._maps.speculates else [MergeTask([], _nothing, row[i], [], [], 0.0)]

    def _outputs_of(self, i: int, reducers: range) -> list[tuple[int, ReducerGroup, BlockRefs]]:
        """Make a piece of block ``i``, with ``reducers``, for each pile that those are in."""
        if not reducers:
            return []
        first = bisect_right(self._starts, reducers.start) - 1
        last = bisect_left(self._starts, reducers.stop)
        return [
            (i, group, BlockRefs(overlap(reducers, group.reducers), []))
            for group in self._groups[first:last]
        ]

    def _start(
        self,
        rows: list[MapOutput],
        outputs: list[tuple[int, ReducerGroup, BlockRefs]],
        node: str | None,
        fn: Callable[..., Any] | None = None,
    ) -> MergeTask:
        slots: list[Any] = [output.reducers for _, _, output in outputs]
        if fn is not None:
            of_block = groupby(outputs, key=lambda output: output[0])
            slots = [[output.reducers for _, _, output in mine] for _, mine in of_block]

        call = [self._spec.merge] if fn is None else [fn, self._spec.merge]
        submit = partial(self._futures.stream, len(outputs), *call, slots, node=node)
        merge = MergeTask(outputs, submit, None, rows, [], 0.0)
        self._submit(merge, merge.current_args())
        self._maps.merges += 1
        speculates = self._maps.speculates
        for _, group, output in outputs:
            stays = not speculates and output.reducers == group.reducers
            group.blocks.append(output.refs[0] if stays else output)
        if speculates:
            self._maps.reserve_slot(merge)
        else:
            merge.rows, merge.submitted, merge.outputs = [], [], []
        return merge

    def _submit(self, merge: MergeTask, args: list[Ref]) -> None:
        blocks = merge.submit(*args)
        merge.submitted, merge.end, merge.since = args, blocks[-1], self._futures.now
        for (_, _, output), block in zip(merge.outputs, blocks, strict=True):
            output.refs = [block]

    def _give_up(self, merges: Sequence[MergeTask], durations: Sequence[float]) -> list[MergeTask]:
        """Stop those that are late; return the others."""
        policy = self._maps.policy
        assert policy is not None
        running = {merge: (merge.since, 1) for merge in merges if not merge.rows}
        late = stragglers.late(running, durations, now=self._futures.now, policy=policy)
        for merge in late:
            self._futures.cancel([merge.end])
            events.emit(events.Recovered("late merge given up"))
            taken = merge.taken()
            for i, _, output in merge.outputs:
                output.refs = taken[i]
            merge.submitted, merge.outputs = [], []
        return [merge for merge in merges if merge not in late]


def _nothing(*blocks: Ref) -> list[Ref]:  # noqa: ARG001  as a merge is submitted
    """Make nothing."""
    return []
