"""The running shuffles of one computation: calls of their maps, and checkpoints of outputs."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import cloudpickle
import dask.config
from tlz import partition_all

from dask_exo import events
from dask_exo.cluster.failpoints import reach
from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps, Until, Waiting
from dask_exo.config import Config
from dask_exo.execution import messages
from dask_exo.execution.accounting import RunObserver, ShuffleAccounting, stage_keys
from dask_exo.execution.actor_pool import ActorPools, MapActors
from dask_exo.execution.checkpoints import CheckpointingSplit, CheckpointKey, ShuffleCheckpoint
from dask_exo.execution.ready_queue import HeldValues, PendingOutput, ReadyQueue
from dask_exo.execution.submission import build_jobs, raise_remote, serialize_call
from dask_exo.execution.worker import catch_failure, distinct, load_call, run_map
from dask_exo.planning.partitioners import Partitioner
from dask_exo.planning.plan import OutputKey, Stage
from dask_exo.shuffle.blocks import merge
from dask_exo.shuffle.run_shuffle import Shuffled, limits_of, run_shuffle
from dask_exo.shuffle.spec import Receipt, ReducerInput, Spec

BLOCK_SHARE = 0.8  # of a node's store: a larger object leaves no room for the ones it is made of


@dataclass(slots=True)
class RunningShuffle:
    """A running shuffle: a coroutine, and what it waits for."""

    stage: Stage
    steps: Steps[Shuffled]
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

    def outputs(self, shuffled: Shuffled) -> Iterator[tuple[OutputKey, PendingOutput]]:
        """Yield the outputs, which the tasks that read them assemble."""
        nbytes, split, checkpoint = _each(shuffled), _split(self.stage, shuffled), self.checkpoint
        # the split knows only the outputs that are read, by their places among those
        for place, (key, column) in enumerate(
            zip(self.stage.columns, shuffled.inputs, strict=True)
        ):
            partitioner = split
            if checkpoint is not None and key.slot in checkpoint.keys:
                checkpoint_key = checkpoint.keys[key.slot]
                partitioner = CheckpointingSplit(count=split.count, inner=split, key=checkpoint_key)
            yield key, PendingOutput(OutputKey(key.stage, place), column, partitioner, nbytes)


def _split(stage: Stage, shuffled: Shuffled) -> Partitioner:
    """Return the partitioner that assembles the outputs."""
    split, whole = stage.partitioner, shuffled.choice.whole
    return split if whole is None else split.with_merge_limit(whole)


def _each(shuffled: Shuffled) -> int:
    """Return the approximate bytes of an output."""
    return shuffled.nbytes // max(len(shuffled.inputs), 1)


class StageMaps:
    """Arguments and receipts of the maps of one stage, with blocks of at most ``block`` bytes."""

    def __init__(
        self,
        stage: Stage,
        values: HeldValues,
        accounting: ShuffleAccounting,
        config: Config,
        block: int,
    ) -> None:
        self._stage, self._values, self._accounting = stage, values, accounting
        self._config, self._block = config, block
        self._observed = events.listening()

    def __len__(self) -> int:
        """Return the number of partitions, M."""
        return len(self._stage.parts)

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Return the arguments of `run_map` for partitions ``start`` to ``stop``."""
        jobs, refs = build_jobs(self._stage.parts[start:stop], self._values)
        mapped = messages.MapCode(self._stage.partitioner, self._block, start, self._observed)
        settings, compares = self._config.settings, self._config.compares
        return serialize_call(messages.TaskCode(jobs, settings, compares, mapped), refs), *refs

    def note_receipt(self, receipt: Receipt) -> None:
        """Add up what a map call assembled of an earlier shuffle; raise its failure."""
        detail: messages.MapDetail = receipt.detail
        call = detail.call
        raise_remote(call)
        self._accounting.versions.record(call.digest)
        self._accounting.add_assembled(call.assembled)
        self._accounting.add_work(receipt.seconds, call.checkpoint_seconds)
        name, gpus = self._stage.label, self._stage.parts[detail.start].options.gpus
        seconds, nbytes = receipt.seconds, receipt.nbytes
        each = ((f"{name} {detail.start}", seconds, nbytes),)
        events.emit(
            events.TasksFinished(name, detail.parts, seconds, nbytes, call.span, each, gpus)
        )
        if detail.sent is not None:
            events.emit(events.PartsCut(name, detail.start, detail.parts, len(self), detail.sent))


class RunningShuffles:
    """Shuffles of a run: they are started, resumed when ready, and their outputs queued."""

    def __init__(  # noqa: PLR0913, PLR0917  parts of one run
        self,
        futures: Futures,
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
        self._shuffling: list[RunningShuffle] = []

    @property
    def calls(self) -> int:
        """Number of refs that the shuffles wait for."""
        return sum(len(s.waiting.refs) for s in self._shuffling)

    @property
    def refs(self) -> set[Ref]:
        """Refs that the shuffles wait for."""
        return {ref for s in self._shuffling for ref in s.waiting.refs}

    @property
    def resumed(self) -> list[RunningShuffle]:
        """Shuffles that need not wait any more."""
        now = self._futures.now if self._shuffling else 0.0
        return [s for s in self._shuffling if s.waiting.over(now)]

    @property
    def timeouts(self) -> list[float | None]:
        """Seconds after which each shuffle is resumed in any case."""
        return [s.waiting.timeout(self._futures.now) for s in self._shuffling]

    def __len__(self) -> int:
        """Return the number of running shuffles."""
        return len(self._shuffling)

    def begin(self) -> None:
        """Start the shuffles whose inputs exist; they submit nothing before `advance`."""
        while self._queue.stages:
            stage = self._queue.stages.pop(0)
            self._watcher.started(stage_keys(stage))
            self._shuffling.append(self._start(stage))

    def _start(self, stage: Stage) -> RunningShuffle:
        config = self._config
        if not config.shuffle_integrity:
            stage = replace(stage, partitioner=stage.partitioner.without_checks())
        actors = None
        if stage.options.pool is not None:
            actors = MapActors(self._futures, self._pools, stage.options.pool)
        nodes = tuple(self._futures.nodes())
        workers = None if actors is None else actors.split
        spec = Spec(len(stage.columns), nodes, run_map, merge, workers=workers)
        block = int(BLOCK_SHARE * min(node.store for node in nodes))
        maps = StageMaps(stage, self._values, self._accounting, config, block)
        steps = run_shuffle(self._futures, maps, spec, limits_of(config), stage.label)
        shuffling = RunningShuffle(stage, steps, actors)
        if stage.checkpoint is not None:
            window = spec.slots * config.tasks_per_slot
            shuffling.steps = self._checkpointed(shuffling, steps, stage.checkpoint, window)
        return shuffling

    def _checkpointed(
        self,
        shuffling: RunningShuffle,
        steps: Steps[Shuffled],
        checkpoint: ShuffleCheckpoint,
        window: int,
    ) -> Steps[Shuffled]:
        """Run a shuffle, then write checkpoints of the outputs if that is worth its cost."""
        shuffled, stage = (yield from steps), shuffling.stage
        if not self._accounting.should_checkpoint(stage, shuffled.nbytes):
            return shuffled
        if shuffling.actors is not None:  # only the reader of an output has its device
            shuffling.checkpoint = checkpoint
            return shuffled
        yield from checkpoint_outputs(
            self._futures,
            list(zip(stage.columns, shuffled.inputs, strict=True)),
            checkpoint,
            (_split(stage, shuffled), self._config.settings),
            nbytes=_each(shuffled),
            window=window,
        )
        return shuffled

    def advance(self) -> None:
        """Resume each shuffle that need not wait any more."""
        for shuffling in self.resumed:
            stage = shuffling.stage
            try:
                shuffled = shuffling.advance(self._futures.now)
            except Exception as error:  # noqa: BLE001  raised there unless somebody takes it
                self._remove(shuffling)
                self._fail(shuffling, error)
                continue
            if shuffled is not None:
                reach("between", stage.name)
                self._remove(shuffling)
                self._accounting.add_sent(stage, shuffled.tally)
                self._queue.left -= 1
                self._watcher.finished(stage.key, stage_keys(stage), None)
                for key, output in shuffling.outputs(shuffled):
                    self._queue.fulfil(key, output)

    def finished(self, refs: Collection[Ref]) -> None:
        """Tell the shuffles which refs are done."""
        for shuffling in self._shuffling:
            shuffling.waiting.finished(refs)
            if shuffling.actors is not None:
                shuffling.actors.release_finished()

    def name(self, ref: Ref) -> str:
        """Return the name of the shuffle that waits for a ref, or an empty string."""
        names = (f"shuffle {s.stage.name}" for s in self._shuffling if ref in s.waiting.refs)
        return next(names, "")

    def stop(self) -> None:
        """End all shuffles."""
        for shuffling in self._shuffling:
            shuffling.steps.close()
        self._shuffling.clear()

    def _remove(self, shuffling: RunningShuffle) -> None:
        self._shuffling.remove(shuffling)
        if shuffling.actors is not None:
            shuffling.actors.close()

    def _fail(self, shuffling: RunningShuffle, error: Exception) -> None:
        """Fail the outputs of a shuffle that raised an exception."""
        error.add_note(f"dask_exo: in shuffle {shuffling.stage.name} ({shuffling.stage.key[0]})")
        traceback.clear_frames(error.__traceback__)  # whoever keeps it would keep the blocks
        self._futures.cancel(shuffling.waiting.refs)
        self._queue.left -= 1
        for part in shuffling.stage.parts:
            self._queue.exempt(part)
        for column in shuffling.stage.columns:
            self._queue.fail(column, error)


TOGETHER = 32 * 2**20  # bytes of outputs that one task writes


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

    If the readers wrote the checkpoints one by one, a program that dies meanwhile would leave a
    shuffle with some outputs, and the next program would have to recompute all maps for the others.

    Each of ``columns`` has the input of one output of about ``nbytes``. ``content`` is the
    partitioner that assembles it, and ``dask.config`` of the tasks, of which ``window`` may be in
    flight.
    """
    data = cloudpickle.dumps(content)
    in_flight: list[Ref] = []
    for column, outputs in _calls(columns, checkpoint, max(1, TOGETHER // max(nbytes, 1))):
        if len(in_flight) >= window:
            yield Until(any=list(in_flight))
            in_flight = _unfinished(futures, in_flight)
        in_flight.append(
            futures.submit(_write_outputs, data, outputs, *column.refs, node=column.node)
        )
    while in_flight:
        yield Until(any=list(in_flight))
        in_flight = _unfinished(futures, in_flight)


def _calls(
    columns: Sequence[tuple[OutputKey, ReducerInput]], checkpoint: ShuffleCheckpoint, most: int
) -> Iterator[tuple[ReducerInput, list[Output]]]:
    """Group the outputs by task: neighbours whose blocks are stored in the same objects."""
    outputs = [
        (column, Output(column.slot, place, checkpoint.keys[key.slot]))
        for place, (key, column) in enumerate(columns)
        if key.slot in checkpoint.keys
    ]
    for _, same in groupby(outputs, key=lambda one: id(one[0].refs)):
        for some in partition_all(most, same):
            yield some[0][0], [output for _, output in some]


def _unfinished(futures: Futures, in_flight: list[Ref]) -> list[Ref]:
    """Return the unfinished tasks; raise the error of one that failed."""
    done, pending = futures.wait(in_flight, timeout=0)
    for one in futures.get(done):
        raise_remote(one)
    return list(pending)


def _write_outputs(data: bytes, outputs: Sequence[Output], *packed: Any) -> messages.JobReceipt:
    """Write the checkpoints of some outputs."""
    split, settings = load_call(data, packed)
    start = time.perf_counter()

    def write() -> None:
        for output in outputs:
            value, _ = split.assemble(packed, output.slot, output.place)
            output.checkpoint.write(value)

    with dask.config.set(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, failure = catch_failure(outputs[0].checkpoint.group, write)
    return messages.JobReceipt(
        time.perf_counter() - start, warnings=distinct(caught), failure=failure
    )
