"""The running shuffles of one computation: calls of their maps, and checkpoints of outputs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple
from weakref import WeakSet

import cloudpickle
import numpy as np
from tlz import partition_all

from dask_exo import events
from dask_exo.cluster.failpoints import reach
from dask_exo.cluster.futures import Futures, Node, Ref
from dask_exo.cluster.waiting import Steps, Until, Waiting
from dask_exo.config import Config
from dask_exo.execution import messages
from dask_exo.execution.accounting import RunObserver, ShuffleAccounting, stage_keys
from dask_exo.execution.actor_pool import ActorPools, MapActors
from dask_exo.execution.checkpoints import CheckpointingSplit, CheckpointKey, ShuffleCheckpoint
from dask_exo.execution.ready_queue import HeldValues, PendingOutput, ReadyQueue
from dask_exo.execution.submission import build_jobs, raise_remote, serialize_call
from dask_exo.execution.worker import catch_failure, distinct_warnings, load_call, run_map
from dask_exo.planning.partitioners import Partitioner
from dask_exo.planning.plan import OutputKey, Stage
from dask_exo.shuffle.blocks import merge
from dask_exo.shuffle.key_filters import FilterSource, KeyFilters
from dask_exo.shuffle.run_shuffle import Shuffled, limits_of, run_shuffle
from dask_exo.shuffle.spec import Places, Receipt, ReducerInput, Spec
from dask_exo.shuffle.spread import Division, divide, piece_bytes, pieces

MOST_SIZES = 2**24  # that the maps of a shuffle report, one for each partition and reducer
BLOCK_SHARE = 0.8  # of a node's store: a larger object leaves no room for the ones it is made of


@dataclass(slots=True)
class RunningShuffle:
    """A running shuffle: a coroutine, and what it waits for."""

    stage: Stage
    maps: StageMaps
    steps: Steps[Shuffled]
    places: Places
    actors: MapActors | None = None
    waiting: Waiting = field(default_factory=Waiting)
    checkpoint: ShuffleCheckpoint | None = None  # of outputs that their readers write

    def advance(self, now: float) -> Shuffled | None:
        """Resume the coroutine until it has to wait; return its result if it has ended."""
        try:
            while self.waiting.over(now):
                self.waiting = Waiting(next(self.steps))
        except StopIteration as stop:
            result: Shuffled = stop.value
            return result
        return None

    def outputs(
        self, shuffled: Shuffled, side: int = 0, divisions: Sequence[Division] = ()
    ) -> Iterator[tuple[OutputKey, PendingOutput]]:
        """Yield the outputs, which the tasks that read them assemble.

        ``divisions`` are those of the join that reads them, as its ``side``.
        """
        checkpoint, sent, nbytes = self.checkpoint, self.maps.sent, _output_bytes(shuffled)
        split = replace(self.stage.partitioner, limit=shuffled.choice.whole)
        outputs = pieces(shuffled.inputs, side, divisions)
        for key, output in zip(self.stage.columns, outputs, strict=True):
            partitioner = split
            if checkpoint is not None and key.slot in checkpoint.keys:
                checkpoint_key = checkpoint.keys[key.slot]
                partitioner = CheckpointingSplit(count=split.count, inner=split, key=checkpoint_key)
            size = nbytes if sent is None else piece_bytes(output, sent)
            yield key, PendingOutput(key.stage, output, partitioner, size, self.places)


def _output_bytes(shuffled: Shuffled) -> int:
    """Return the approximate bytes of an output."""
    return shuffled.nbytes // max(len(shuffled.inputs), 1)


class StageMaps:
    """Arguments and receipts of the maps of one stage, with blocks of at most ``block`` bytes."""

    def __init__(  # noqa: PLR0913  parts of one run
        self,
        stage: Stage,
        values: HeldValues,
        accounting: ShuffleAccounting,
        config: Config,
        block: int,
        *,
        filters: KeyFilters,
        by_reference: bool,
    ) -> None:
        self._stage, self._values, self._accounting = stage, values, accounting
        self._config, self._block, self._by_reference = config, block, by_reference
        self._filters = filters
        self.may_wait: bool = stage.join is not None and filters.may_filter(stage.join)
        self._filter: tuple[Ref, FilterSource] | None = None
        self.left_out: int = 0
        self.sent: np.ndarray | None = None  # (R,) bytes for each reducer, if they are added up
        sizes = len(stage.parts) * len(stage.columns)
        if stage.join is not None and stage.join.partner and sizes <= MOST_SIZES:
            self.sent = np.zeros(len(stage.columns))
        self._observed = self.sent is not None or events.listening()

    def __len__(self) -> int:
        """Return the number of partitions, M."""
        return len(self._stage.parts)

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Return the arguments of `run_map` for partitions ``start`` to ``stop``."""
        jobs, refs = build_jobs(
            self._stage.parts[start:stop], self._values, check=self._config.checks
        )
        filtered = None
        if self._filter is not None:
            ref, source = self._filter
            filtered = len(refs), source.columns
            refs.append(ref)
        map_code = messages.MapCode(
            self._stage.partitioner, self._block, start, self._observed, filtered
        )
        compares, sampled = self._config.compares, events.listening()
        code = messages.TaskCode(jobs, self._config.settings, compares, sampled, map_code)
        return serialize_call(code, refs, by_reference=self._by_reference), *refs

    def note_receipt(self, receipt: Receipt) -> None:
        """Record what a map call assembled of an earlier shuffle; raise its failure."""
        detail: messages.MapDetail = receipt.detail
        call = detail.call
        raise_remote(call)
        self._accounting.versions.record(call.digest)
        self._accounting.add_assembled(call.assembled)
        work = receipt.seconds, call.checkpoint_seconds
        self._accounting.add_work(self._stage.label, detail.parts, *work)
        name, gpus = self._stage.label, self._stage.parts[detail.start].options.gpus
        seconds, nbytes = receipt.seconds, receipt.nbytes
        tasks = ((f"{name} {detail.start}", seconds, nbytes),)
        events.emit(
            events.TasksFinished(
                name, detail.parts, seconds, nbytes, call.span, tasks, gpus, moved=nbytes
            )
        )
        if detail.sent is not None:
            if self.sent is not None:
                self.sent += detail.sent
            events.emit(events.PartsCut(name, detail.start, detail.parts, len(self), detail.sent))
        self.left_out += detail.left_out

    def measured(self, nbytes: int, rows: int) -> Steps[None]:
        """See `Parts.measured`: a smaller side of the same join comes first, and filters this."""
        if self._stage.join is not None:
            self._filter = yield from self._filters.build(self._stage.join, nbytes, rows)


class RunningShuffles:
    """Running shuffles of a computation: starts and resumes them, and queues their outputs."""

    def __init__(  # noqa: PLR0913, PLR0917  parts of one run
        self,
        futures: Futures,
        stages: Sequence[Stage],
        pools: ActorPools,
        queue: ReadyQueue,
        values: HeldValues,
        accounting: ShuffleAccounting,
        config: Config,
        watcher: RunObserver,
    ) -> None:
        self._futures, self._pools = futures, pools
        self._queue, self._values = queue, values
        self._accounting, self._config, self._watcher = accounting, config, watcher
        self._shuffles: list[RunningShuffle] = []
        self._share = 1.0
        self._all_places = WeakSet[Places]()  # of shuffles that run, or whose outputs are pending
        # a side of a join, and its result, by the name of the side that it waits for
        self._waiting: dict[str, tuple[RunningShuffle, Shuffled]] = {}
        self._places = {stage.key: i for i, stage in enumerate(stages)}
        by_name = {stage.join.name: stage for stage in stages if stage.join is not None}
        self._pending = dict(by_name)  # sides that have not ended
        self._filters = KeyFilters(
            futures,
            [stage.join for stage in stages if stage.join is not None],
            lambda name: queue.is_removed(by_name[name]),
        )

    @property
    def calls(self) -> int:
        """Number of refs that the shuffles wait for."""
        return sum(len(s.waiting.refs) for s in self._shuffles)

    @property
    def refs(self) -> set[Ref]:
        """Refs that the shuffles wait for."""
        return {ref for s in self._shuffles for ref in s.waiting.refs}

    @property
    def resumable(self) -> list[RunningShuffle]:
        """Shuffles whose condition is met."""
        now = self._futures.now if self._shuffles else 0.0
        return [s for s in self._shuffles if s.waiting.over(now)]

    @property
    def active(self) -> bool:
        """True unless all shuffles wait for others."""
        return bool(self.refs or self.resumable)

    @property
    def timeouts(self) -> list[float | None]:
        """Seconds after which each shuffle is resumed in any case."""
        return [s.waiting.timeout(self._futures.now) for s in self._shuffles]

    def __len__(self) -> int:
        """Return the number of running shuffles."""
        return len(self._shuffles)

    def next_stages(self, *, room: bool) -> list[Stage]:
        """Return the shuffles to start: the sides of joins, else the next one if there is room.

        So readers of the first shuffle come before the maps of the second one.
        """
        joins = [stage for stage in self._queue.stages if stage.join is not None]
        if joins or not self._queue.stages or (self._shuffles and not room):
            return joins
        return [min(self._queue.stages, key=lambda stage: self._places[stage.key])]

    @property
    def share(self) -> float:
        """Part of the slots that maps may use."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        self._share = share
        for places in self._all_places:
            places.share = share

    def resize(self, nodes: Sequence[Node]) -> None:
        """Use other nodes: for maps, merges and reducers that have not started."""
        for places in self._all_places:
            places.update(nodes)

    def begin(self, stages: Sequence[Stage]) -> None:
        """Start shuffles whose inputs exist; they submit nothing before `advance`."""
        for stage in stages:
            self._queue.stages.remove(stage)
            self._watcher.started(stage_keys(stage))
            self._shuffles.append(self._start(stage))

    def _start(self, stage: Stage) -> RunningShuffle:
        config = self._config
        if not config.shuffle_integrity:
            stage = replace(stage, partitioner=replace(stage.partitioner, checked=False))
        actors = None
        if stage.options.pool is not None:
            actors = MapActors(self._futures, self._pools, stage.options.pool)
        nodes = tuple(self._futures.nodes())
        workers = None if actors is None else actors.split
        spec = Spec(len(stage.columns), nodes, run_map, merge, workers=workers)
        block = int(BLOCK_SHARE * min(node.store for node in nodes))
        maps = StageMaps(
            stage,
            self._values,
            self._accounting,
            config,
            block,
            filters=self._filters,
            by_reference=self._futures.shares_memory,
        )
        steps = run_shuffle(self._futures, maps, spec, limits_of(config), stage.label)
        shuffle = RunningShuffle(stage, maps, steps, spec.places, actors)
        spec.places.share = self._share
        self._all_places.add(spec.places)
        if stage.checkpoint is not None:
            window = spec.slots * config.tasks_per_slot
            shuffle.steps = self._checkpointed(shuffle, steps, stage.checkpoint, window)
        return shuffle

    def _checkpointed(
        self,
        shuffle: RunningShuffle,
        steps: Steps[Shuffled],
        checkpoint: ShuffleCheckpoint,
        window: int,
    ) -> Steps[Shuffled]:
        """Run a shuffle, then write checkpoints of the outputs if that is worth its cost."""
        shuffled, stage = (yield from steps), shuffle.stage
        if not self._accounting.should_checkpoint(stage, shuffled.nbytes):
            return shuffled
        if shuffle.actors is not None:  # only the reader of an output has its device
            shuffle.checkpoint = checkpoint
            return shuffled
        yield from checkpoint_outputs(
            self._futures,
            list(zip(stage.columns, shuffled.inputs, strict=True)),
            checkpoint,
            (replace(stage.partitioner, limit=shuffled.choice.whole), self._config.settings),
            nbytes=_output_bytes(shuffled),
            window=window,
        )
        return shuffled

    def advance(self) -> None:
        """Resume each shuffle whose condition is met."""
        self._release_alone()
        for shuffle in self.resumable:
            stage = shuffle.stage
            try:
                shuffled = shuffle.advance(self._futures.now)
            except Exception as error:  # noqa: BLE001  the queue raises it, or a consumer takes it
                self._remove(shuffle)
                self._fail(shuffle, error)
                continue
            if shuffled is not None:
                reach("between", stage.name)
                self._remove(shuffle)
                self._filters.finish(stage.join, shuffled)
                self._accounting.add_sent(stage, shuffled.tally)
                self._queue.unfinished -= 1
                self._watcher.finished(stage.key, stage_keys(stage), None)
                self._release(shuffle, shuffled)

    def _release(self, shuffle: RunningShuffle, shuffled: Shuffled) -> None:
        """Queue the outputs of a shuffle; those of both sides of a join when both have ended."""
        join, sides = shuffle.stage.join, [(shuffle, shuffled)]
        if join is not None and join.partner is not None:
            self._pending.pop(join.name, None)
            if join.name in self._waiting:
                sides.append(self._waiting.pop(join.name))
            elif not self._is_lost(join.partner):
                self._waiting[join.partner] = shuffle, shuffled
                return
        divisions = _divisions([side for side, _ in sides])
        for number, (side, result) in enumerate(sides):
            outputs = list(side.outputs(result, number, divisions))
            if divisions:
                largest = max(output.nbytes for _, output in outputs)
                events.emit(events.ReducersDivided(side.stage.label, len(divisions), largest))
            for key, output in outputs:
                self._queue.fulfil(key, output)

    def _release_alone(self) -> None:
        """Queue the outputs of sides of joins whose partners will not start."""
        for name in [name for name in self._waiting if self._is_lost(name)]:
            self._release(*self._waiting.pop(name))

    def _is_lost(self, name: str) -> bool:
        """Return whether a side of a join has failed, or will never start."""
        return name not in self._pending or self._queue.is_removed(self._pending[name])

    def finished(self, refs: Collection[Ref]) -> None:
        """Tell the shuffles which refs are done."""
        for shuffle in self._shuffles:
            shuffle.waiting.finished(refs)
            if shuffle.actors is not None:
                shuffle.actors.release_finished()

    def name(self, ref: Ref) -> str:
        """Return the name of the shuffle that waits for a ref, or an empty string."""
        names = (f"shuffle {s.stage.name}" for s in self._shuffles if ref in s.waiting.refs)
        return next(names, "")

    def stop(self) -> None:
        """End all shuffles."""
        self._waiting.clear()
        for shuffle in self._shuffles:
            shuffle.steps.close()
        self._shuffles.clear()

    def _remove(self, shuffle: RunningShuffle) -> None:
        self._shuffles.remove(shuffle)
        if shuffle.actors is not None:
            shuffle.actors.close()

    def _fail(self, shuffle: RunningShuffle, error: Exception) -> None:
        """Fail the outputs of a shuffle that raised an exception."""
        join = shuffle.stage.join
        self._filters.finish(join, None)
        self._pending.pop("" if join is None else join.name, None)
        error.add_note(f"dask_exo: in shuffle {shuffle.stage.name} ({shuffle.stage.key[0]})")
        traceback.clear_frames(error.__traceback__)  # its frames hold blocks
        self._futures.cancel(shuffle.waiting.refs)
        self._queue.unfinished -= 1
        for part in shuffle.stage.parts:
            self._queue.exempt(part)
        for column in shuffle.stage.columns:
            self._queue.fail(column, error)


def _divisions(sides: Sequence[RunningShuffle]) -> list[Division]:
    """Divide the large reducers of a join, if both sides are known."""
    numbers = [list(side.stage.partitioner.numbers) for side in sides]
    sent = [side.maps.sent for side in sides if side.maps.sent is not None]
    if len(sent) < 2 or numbers[0] != numbers[1]:
        return []
    return divide(np.stack(sent), [side.stage.join.dealt for side in sides if side.stage.join])


TASK_BYTES = 32 * 2**20  # bytes of outputs that one task writes


class Output(NamedTuple):
    """An output that a task writes: its block in each argument, its number, and its checkpoint."""

    slot: int
    place: int
    checkpoint: CheckpointKey


def checkpoint_outputs(
    futures: Futures,
    columns: Sequence[tuple[OutputKey, ReducerInput]],
    checkpoint: ShuffleCheckpoint,
    content: tuple[Partitioner, Any],
    *,
    nbytes: int,
    window: int,
) -> Steps[None]:
    """Assemble the outputs of a shuffle and write their checkpoints, before other tasks read them.

    If readers wrote the checkpoints one by one, a program that died meanwhile would leave only some
    outputs, and the next program would have to recompute all maps for the others.

    Each of ``columns`` has the input of one output of about ``nbytes``. ``content`` is the
    partitioner that assembles it, and ``dask.config`` of the tasks, of which ``window`` may be in
    flight.
    """
    data = cloudpickle.dumps(content)
    in_flight: list[Ref] = []
    for column, outputs in _group_outputs(
        columns, checkpoint, max(1, TASK_BYTES // max(nbytes, 1))
    ):
        if len(in_flight) >= window:
            yield Until(any=list(in_flight))
            in_flight = _unfinished(futures, in_flight)
        in_flight.append(
            futures.submit(_write_outputs, data, outputs, *column.refs, node=column.node)
        )
    while in_flight:
        yield Until(any=list(in_flight))
        in_flight = _unfinished(futures, in_flight)


def _group_outputs(
    columns: Sequence[tuple[OutputKey, ReducerInput]], checkpoint: ShuffleCheckpoint, limit: int
) -> Iterator[tuple[ReducerInput, list[Output]]]:
    """Group the outputs by task: neighbours whose blocks are stored in the same objects."""
    outputs = [
        (column, Output(column.slot, place, checkpoint.keys[key.slot]))
        for place, (key, column) in enumerate(columns)
        if key.slot in checkpoint.keys
    ]
    for _, group in groupby(outputs, key=lambda pair: id(pair[0].refs)):
        for batch in partition_all(limit, group):
            yield batch[0][0], [output for _, output in batch]


def _unfinished(futures: Futures, in_flight: list[Ref]) -> list[Ref]:
    """Return the unfinished tasks; raise the error of one that failed."""
    done, pending = futures.wait(in_flight, timeout=0)
    for receipt in futures.get(done):
        raise_remote(receipt)
    return list(pending)


def _write_outputs(data: bytes, outputs: Sequence[Output], *packed: Any) -> messages.JobReceipt:
    """Write the checkpoints of some outputs."""
    split, settings = load_call(data, packed)
    start = time.perf_counter()

    def write() -> None:
        for output in outputs:
            value, _ = split.assemble(packed, output.slot, output.place)
            output.checkpoint.write(value)

    with messages.driver_settings(settings), messages.recorded_warnings() as records:
        _, failure = catch_failure(outputs[0].checkpoint.group, write)
    return messages.JobReceipt(
        time.perf_counter() - start, warnings=distinct_warnings(records), failure=failure
    )
