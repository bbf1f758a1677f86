"""Units of a run that are ready or pending, and the values that they read.

A ref that the driver holds is memory that the store cannot free. So a value is dropped when its
last reader takes it: from then on Ray keeps it for as long as that task needs it.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dask_exo.cluster.futures import Ref
from dask_exo.cluster.resources import ResourceRequest
from dask_exo.execution.accounting import ShuffleAccounting
from dask_exo.execution.persisted import Local, Remote, checked
from dask_exo.planning.normalize import Key
from dask_exo.planning.partitioners import Partitioner
from dask_exo.planning.plan import Bundle, OutputKey, Plan, Stage
from dask_exo.shuffle.spec import Places
from dask_exo.shuffle.spread import Piece

Entry = tuple[float, int, int, Bundle]
"""A bundle with its sort key: priority, and Dask's order."""


def _entry(bundle: Bundle) -> Entry:
    return -bundle.options.priority, bundle.priority, id(bundle), bundle


class Consumer(Protocol):
    """Receiver of results, one by one. With it, a failure affects only dependent results."""

    def is_wanted(self) -> bool:
        """Return whether any result is still wanted."""
        ...

    def take(self, key: Key, location: Local | Remote) -> None:
        """Receive a result."""
        ...

    def fail(self, key: Key, error: BaseException) -> None:
        """Receive the error in place of a result."""
        ...


class RunAbandoned(Exception):  # noqa: N818  no error: it ends a run
    """All promises of a run's results have been dropped."""


class ReadyQueue:
    """The units of one computation, from pending to done."""

    def __init__(
        self,
        plan: Plan,
        values: HeldValues,
        accounting: ShuffleAccounting,
        consumer: Consumer | None = None,
    ) -> None:
        self._values, self._accounting, self._consumer = values, accounting, consumer
        self._verifies = bool(plan.stages)  # the last result waits until shuffles are verified
        self._results_of: dict[Key, list[Key]] = defaultdict(
            list
        )  # key of a value → keys of results
        for key, source in plan.results.items():
            self._results_of[source].append(key)
        self.unfinished: int = len(plan.bundles) + len(plan.stages)  # units that have not finished
        self.stages: list[Stage] = []  # ready shuffles; starting one removes it
        self._ready: dict[ResourceRequest | None, list[Entry]] = defaultdict(list)  # by actor pool
        self._missing: dict[int, int] = {}  # number of missing inputs, by id of the unit
        self._removed: set[int] = set()  # units started before their inputs existed, or failed
        self._dependents: dict[Key, list[Bundle | Stage]] = defaultdict(list)
        self._link(plan)

    def _link(self, plan: Plan) -> None:
        """Record the dependents and the number of readers of each value."""
        units: list[tuple[Bundle | Stage, list[Bundle]]] = [(b, [b]) for b in plan.bundles]
        units += [(stage, stage.parts) for stage in plan.stages]
        for unit, readers in units:
            missing: set[Key] = set()
            for reader in readers:
                sources = set(reader.inputs.values())
                self._values.add_readers(sources)
                missing |= sources
            missing -= plan.literals.keys()
            self._missing[id(unit)] = len(missing)
            for source in missing:
                self._dependents[source].append(unit)
            if not missing:
                self._enqueue(unit)
        self._values.add_readers(list(self._results_of))  # the caller reads these
        for key in self._results_of.keys() & plan.literals.keys():
            self._deliver(key)

    # -- ready units

    @property
    def next_per_pool(self) -> list[Bundle]:
        """The next bundle of each actor pool, and of tasks without one, in order."""
        return [entry[-1] for entry in sorted(heap[0] for heap in self._ready.values() if heap)]

    def first(self, pool: ResourceRequest | None) -> Bundle | None:
        """Return the next bundle of a pool."""
        heap = self._ready[pool]
        return heap[0][-1] if heap else None

    def pop(self, pool: ResourceRequest | None) -> Bundle:
        """Remove and return the next bundle of a pool."""
        return heapq.heappop(self._ready[pool])[-1]

    def ready(self, pool: ResourceRequest | None) -> int:
        """Return the number of ready bundles of a pool."""
        return len(self._ready[pool])

    def input_bytes(self, bundle: Bundle) -> tuple[int, int]:
        """Return the bytes of shuffled blocks that a bundle assembles, and of all inputs."""
        if not bundle.inputs:
            return 0, 0
        sources, read = bundle.sources, self._values.stored_bytes
        return read(sources, pending=True), read(sources)

    def newly_ready(self, key: Key, missing: dict[int, int]) -> Iterator[Entry]:
        """Yield the bundles that would be ready if this value existed, too.

        ``missing`` has the number of inputs that each bundle would still wait for; updated here.
        """
        for unit in self._dependents.get(key, ()):
            if isinstance(unit, Bundle):
                count = missing[id(unit)] = missing.get(id(unit), self._missing[id(unit)]) - 1
                if not count:
                    yield _entry(unit)

    def start(self, bundle: Bundle) -> None:
        """Remove a bundle whose inputs are computed by the same call."""
        self._removed.add(id(bundle))

    def _enqueue(self, unit: Bundle | Stage) -> None:
        if isinstance(unit, Stage):
            self.stages.append(unit)
        else:
            heapq.heappush(self._ready[unit.options.pool], _entry(unit))

    # -- values

    def fulfil(self, key: Key, location: Location) -> None:
        """Hold a new value for its readers; enqueue the units that it makes ready."""
        self._values.add(key, location)
        for unit in self._dependents.pop(key, ()):
            self._missing[id(unit)] -= 1
            if not self._missing[id(unit)] and id(unit) not in self._removed:
                self._enqueue(unit)
        if key in self._results_of:
            self._deliver(key)

    def fail(self, key: Key, error: Exception) -> None:
        """Fail a value and all that depend on it; without a consumer, raise the error."""
        if self._consumer is None:
            raise error
        failed = [key]
        while failed:
            key = failed.pop()
            for result in self._results_of.pop(key, ()):
                self._consumer.fail(result, error)
            for unit in self._dependents.pop(key, ()):
                if id(unit) not in self._removed:
                    self._removed.add(id(unit))
                    self.unfinished -= 1
                    self._drop_inputs(unit)
                    failed.extend([unit.key] if isinstance(unit, Bundle) else unit.columns)

    def is_removed(self, unit: Bundle | Stage) -> bool:
        """Return whether a unit will not be enqueued any more, as after a failure."""
        return id(unit) in self._removed

    def _drop_inputs(self, unit: Bundle | Stage) -> None:
        """Drop the readers of a unit that will not run."""
        for reader in [unit] if isinstance(unit, Bundle) else unit.parts:
            for source in reader.sources:
                self._values.drop_reader(source)
            self.exempt(reader)

    def exempt(self, reader: Bundle) -> None:
        """Exempt the shuffles that a failed task reads from verification."""
        for source in reader.sources:
            if isinstance(source, OutputKey):
                self._accounting.exempt(source.stage)

    # -- results

    def finish(self) -> dict[Key, Local | Remote]:
        """Hand over all remaining results, to the consumer or to the caller."""
        if self._consumer:
            for source in list(self._results_of):
                self._hand_over(source)
            self._values.clear()  # inputs of tasks that did not run because of a failure
            return {}
        locations = {source: self._values.result(source) for source in self._results_of}
        return {key: locations[source] for source, keys in self._results_of.items() for key in keys}

    def _deliver(self, source: Key) -> None:
        """Hand a value to the consumer, if there is one, and it is not to be verified before."""
        if self._consumer and not (self._verifies and len(self._results_of) == 1):
            self._hand_over(source)

    def _hand_over(self, source: Key) -> None:
        """Hand a value to the consumer, which holds it from then on."""
        assert self._consumer is not None
        location = self._values.result(source)
        for key in self._results_of.pop(source):
            self._consumer.take(key, location)
        self._values.drop_reader(source)


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """An output of a shuffle that is not assembled yet, and its approximate size."""

    stage: Key
    pieces: Sequence[Piece]
    split: Partitioner
    nbytes: int
    places: Places | None = None  # of its shuffle

    @property
    def node(self) -> str | None:
        """Node where its blocks are; None if nodes have joined that may assemble it, too."""
        node = self.pieces[0].column.node
        return node if self.places is None else self.places.prefer(node)


Location = Local | Remote | PendingOutput


class HeldValues:
    """The values of one computation that exist and are still to be read.

    ``literals`` are in the graph itself; ``put`` stores one when a task first reads it. ``nbytes``
    is the estimated size of the values in the object store.
    """

    def __init__(self, literals: dict[Key, Any], put: Callable[[Any], Ref]) -> None:
        self._literals, self._put = literals, put
        self._readers: Counter[Key] = Counter()
        self._locations: dict[Key, Location] = {}
        self.nbytes: int = 0

    def add_readers(self, keys: Iterable[Key]) -> None:
        """Count one more reader for each of ``keys``."""
        self._readers.update(keys)

    def has_readers(self, key: Key, beside: int = 0) -> bool:
        """Return whether a value has remaining readers, ``beside`` some."""
        return self._readers[key] > beside

    def drop_reader(self, key: Key) -> None:
        """Count one reader less: it will not read the value."""
        self._readers[key] -= 1
        location = None if self._readers[key] else self._locations.pop(key, None)
        self.nbytes -= location.nbytes if isinstance(location, Remote) else 0

    def add(self, key: Key, location: Location) -> None:
        """Hold a value if it has readers."""
        if self._readers[key]:
            self._locations[key] = location
            self.nbytes += location.nbytes if isinstance(location, Remote) else 0

    def take(self, key: Key) -> Location:
        """Return a value for a task that is being submitted; drop it with its last reader."""
        if key in self._literals and key not in self._locations:
            self._locations[key] = Remote(self._put(self._literals[key]), 0)
        location = self._locations[key]
        self._readers[key] -= 1
        if not self._readers[key]:
            del self._locations[key]
            self.nbytes -= location.nbytes if isinstance(location, Remote) else 0
        return location

    @property
    def refs(self) -> set[Ref]:
        """Refs of all values in the store, and of the blocks of those not assembled yet."""
        refs: set[Ref] = set()
        for location in self._locations.values():
            if isinstance(location, Remote):
                refs.add(location.ref)
            elif isinstance(location, PendingOutput):
                refs.update(ref for piece in location.pieces for ref in piece.column.refs)
        return refs

    def preferred_node(self, keys: Iterable[Key]) -> str | None:
        """Return the node on which all shuffled ones among these values are placed, if any."""
        locations = [self._locations.get(key) for key in keys]
        nodes = {location.node for location in locations if isinstance(location, PendingOutput)}
        return nodes.pop() if len(nodes) == 1 else None

    def fetch(self, key: Key, get: Callable[[list[Ref]], list[Any]]) -> Any:
        """Return a value for a task that runs in the driver."""
        if key in self._literals:
            self.drop_reader(key)
            return self._literals[key]
        location = self.take(key)
        assert not isinstance(location, PendingOutput)
        if isinstance(location, Local):
            return location.value
        return checked(get([location.ref])[0], location.digest)

    def result(self, key: Key) -> Local | Remote:
        """Return a value for the caller of the computation."""
        if key in self._literals:
            return Local(self._literals[key])
        location = self._locations[key]
        # the outputs of a shuffle are inputs of bundles only
        assert not isinstance(location, PendingOutput)
        return location

    def stored_bytes(self, keys: Iterable[Key], *, pending: bool = False) -> int:
        """Return the bytes of those of these values in the store, or of those not assembled yet."""
        kinds = PendingOutput if pending else (PendingOutput, Remote)
        locations = map(self._locations.get, keys)
        return sum(location.nbytes for location in locations if isinstance(location, kinds))

    def is_local(self, key: Key) -> bool:
        """Return whether a value is in the memory of the driver."""
        return isinstance(self._locations.get(key), Local)

    def clear(self) -> None:
        """Drop all values."""
        self._locations.clear()
