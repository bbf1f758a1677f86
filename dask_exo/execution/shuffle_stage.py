"""The shuffles of one computation: their parts, their progress, and that nothing gets lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from dask_exo import events
from dask_exo.cluster.futures import Futures, Steps, Waiting
from dask_exo.config import Config
from dask_exo.errors import IntegrityError
from dask_exo.execution.actor_maps import Mappers
from dask_exo.execution.checkpoints.cost import cost
from dask_exo.execution.checkpoints.outputs import Keeping, Kept
from dask_exo.execution.checkpoints.writer import keep_all
from dask_exo.execution.determinism import Versions
from dask_exo.execution.tasks import messages
from dask_exo.execution.tasks.serialize import parcel, seal, unseal
from dask_exo.execution.tasks.worker import run_map
from dask_exo.execution.values import Pile, Values
from dask_exo.planning.normalize import Key
from dask_exo.planning.partitioners import Split
from dask_exo.planning.plan import ColumnKey, Stage
from dask_exo.shuffle.blocks import merge
from dask_exo.shuffle.integrity import Tally, verify
from dask_exo.shuffle.run import Shuffled, exchange, limits_of
from dask_exo.shuffle.spec import Receipt, Spec

BLOCK_SHARE = 0.8  # of a node's store: a larger object leaves no room for the ones it is made of


class Ledger:
    """What each shuffle sent, what the tasks after it have assembled, and what all that took.

    Parameters
    ----------
    versions : Versions
        Of what the maps, and other tasks of the computation, have made.
    """

    def __init__(self, versions: Versions) -> None:
        self.versions = versions
        self._sent: dict[str, Tally] = {}
        self._arrived: dict[Key, Tally] = defaultdict(Tally)
        self._stages: dict[str, Stage] = {}
        self._excused: set[Key] = set()
        self._work, self._spent = 0.0, 0.0

    def sent(self, stage: Stage, tally: Tally) -> None:
        """Note what the maps of a shuffle have sent."""
        name = f"shuffle {stage.name} ({stage.key[0]})"
        self._sent[name], self._stages[name] = tally, stage

    def arrived(self, arrived: Iterable[messages.Arrived]) -> None:
        """Add what a task has assembled."""
        for one in arrived:
            self._arrived[one.stage] += one.tally

    def worked(self, seconds: float, spent: float = 0.0) -> None:
        """Add what tasks took, and what of it went into keeping values."""
        self._work += seconds
        self._spent += spent

    def keeps(self, stage: Stage, nbytes: int) -> bool:
        """Whether the outputs of a shuffle are worth keeping; from then on that is spent."""
        if stage.keeping is None:
            return False
        kept = stage.keeping.worth(nbytes, self._work, self._spent)
        self._spent += cost(nbytes) if kept else 0.0
        events.emit(events.ShuffleKept(stage.name, kept, nbytes, self._work))
        return kept

    def excuse(self, stage: Key) -> None:
        """Some outputs of a shuffle will not be assembled, since a task failed."""
        self._excused.add(stage)

    def verify(self) -> None:
        """Compare both sides of every shuffle; raise `IntegrityError` where they differ."""
        for name, sent in self._sent.items():
            stage = self._stages[name]
            if stage.key in self._excused:
                continue
            try:
                verify(name, sent, self._arrived[stage.key])
            except IntegrityError:
                if stage.keeping is not None:
                    stage.keeping.forget()  # another program must not take it for right
                raise


@dataclass(slots=True)
class Shuffling:
    """A shuffle under way: a coroutine, and what it waits for."""

    stage: Stage
    ledger: Ledger
    steps: Steps[Shuffled]
    mappers: Mappers | None = None
    waiting: Waiting = field(default_factory=Waiting)
    keeping: Keeping | None = None  # of outputs that are kept by those who read them

    @classmethod
    def start(
        cls,
        stage: Stage,
        futures: Futures,
        values: Values,
        ledger: Ledger,
        config: Config,
        *,
        mappers: Mappers | None = None,
    ) -> Shuffling:
        """Begin a shuffle; nothing is submitted before `advance`."""
        if not config.shuffle_integrity:
            stage = replace(stage, split=stage.split.unchecked())
        nodes = tuple(futures.nodes())
        workers = None if mappers is None else mappers.split
        spec = Spec(len(stage.columns), nodes, run_map, merge, workers=workers)
        limits = limits_of(config)
        block = int(BLOCK_SHARE * min(node.store for node in nodes))
        parts = StageParts(stage, values, ledger, config, block)

        steps = exchange(futures, parts, spec, limits, stage.label)
        shuffling = cls(stage, ledger, steps, mappers)
        if stage.keeping is not None:
            shuffling.steps = shuffling._kept(steps, futures, spec.slots, config)
        return shuffling

    def advance(self, now: float) -> Shuffled | None:
        """Go on until it waits for something; return the result if it has ended."""
        try:
            while self.waiting.over(now):
                self.waiting = Waiting(next(self.steps))
        except StopIteration as stop:
            result: Shuffled = stop.value
            return result
        return None

    def _kept(
        self, steps: Steps[Shuffled], futures: Futures, slots: int, config: Config
    ) -> Steps[Shuffled]:
        """Shuffle; then keep the outputs, if that is worth it."""
        shuffled = yield from steps
        keeping = self.stage.keeping
        if keeping is None or not self.ledger.keeps(self.stage, shuffled.nbytes):
            return shuffled
        if self.mappers is not None:  # only who reads an output has its device
            self.keeping = keeping
        else:
            yield from keep_all(
                futures,
                list(zip(self.stage.columns, shuffled.columns, strict=True)),
                keeping,
                self._split(shuffled),
                nbytes=_each(shuffled),
                window=slots * config.tasks_per_slot,
                settings=config.settings,
            )
        return shuffled

    def _split(self, shuffled: Shuffled) -> Split:
        split, whole = self.stage.split, shuffled.choice.whole
        return split if whole is None else split.within(whole)

    def outputs(self, shuffled: Shuffled) -> Iterator[tuple[ColumnKey, Pile]]:
        """What the tasks after it have to assemble."""
        nbytes, split, keeping = _each(shuffled), self._split(shuffled), self.keeping
        # the split knows only the outputs that are read, by their places among those
        for place, (key, column) in enumerate(
            zip(self.stage.columns, shuffled.columns, strict=True)
        ):
            mine = split
            if keeping is not None and key.slot in keeping.labels:
                mine = Kept(count=split.count, inner=split, label=keeping.labels[key.slot])
            yield key, Pile(ColumnKey(key.stage, place), column, mine, nbytes)


def _each(shuffled: Shuffled) -> int:
    """Bytes of an output, about."""
    return shuffled.nbytes // max(len(shuffled.columns), 1)


class StageParts:
    """The parts of one stage, as the map side of a shuffle wants them.

    Parameters
    ----------
    stage : Stage
    values : Values
    ledger : Ledger
        Where receipts are noted.
    config : Config
    block : int
        Bytes that one packed block may have.
    """

    def __init__(
        self, stage: Stage, values: Values, ledger: Ledger, config: Config, block: int
    ) -> None:
        self._stage, self._values, self._ledger = stage, values, ledger
        self._options = (config.settings, config.compares, stage.split, block)
        self._told = events.listening()

    def __len__(self) -> int:
        """M."""
        return len(self._stage.parts)

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arguments with which `run_map` makes and cuts parts ``start`` to ``stop``."""
        jobs, refs = parcel(self._stage.parts[start:stop], self._values)
        data = seal((jobs, *self._options, start, self._told), jobs, refs)
        return data, *refs

    def settle(self, receipt: Receipt) -> None:
        """Add up what a map call assembled of an earlier shuffle; raise what made it fail."""
        detail: messages.Detail = receipt.detail
        unseal(detail)
        self._ledger.versions.note(detail.made)
        self._ledger.arrived(detail.arrived)
        self._ledger.worked(receipt.seconds, detail.spent)
        name, place = self._stage.label, detail.ran
        each = ((f"{name} {detail.start}", receipt.seconds, receipt.nbytes),)
        gpus = self._stage.parts[detail.start].asked.gpus
        events.emit(
            events.TasksFinished(
                name, detail.parts, receipt.seconds, receipt.nbytes, place, each, gpus
            )
        )
        if detail.sent is not None:
            events.emit(events.PartsCut(name, detail.start, detail.parts, len(self), detail.sent))
