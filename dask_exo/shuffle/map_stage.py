"""The map stage that all algorithms share: parts in order, a window of them at a time.

Small parts share a call. The first calls show how many: see `choose.batch_size`. Merges are
submitted while their maps still run, so the sizes of their blocks are estimated per part.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dask_exo.cluster.futures import Futures, Ref
from dask_exo.cluster.waiting import Steps, Until
from dask_exo.shuffle.choose import batch_size
from dask_exo.shuffle.spec import MapOutput, Owned, Receipt, Spec, Tally
from dask_exo.shuffle.speculation import MapAttempts, MapConsumer
from dask_exo.shuffle.stragglers import SpeculationPolicy

RECENT = 16  # receipts that are averaged; few, to follow parts that grow


class Parts(Protocol):
    """(M,) inputs of a shuffle, which the maps compute.

    ``may_wait`` says whether calls may wait for another shuffle, after the first one; ``left_out``
    counts rows that were not sent, since no reducer needs them.
    """

    may_wait: bool
    left_out: int

    def __len__(self) -> int:
        """M."""
        ...

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Return the arguments of `Spec.map` for parts ``start`` to ``stop``."""
        ...

    def note_receipt(self, receipt: Receipt) -> None:
        """Record a finished call; raise its exception if it failed."""
        ...

    def measured(self, nbytes: int, rows: int) -> Steps[None]:
        """Record the size of all map outputs, by the first ones; wait until others may follow."""
        ...


class Refs(list[Ref]):
    """Refs of parts that exist already."""

    may_wait: bool
    left_out: int

    may_wait, left_out = False, 0

    def call(self, start: int, stop: int) -> tuple[Ref, ...]:
        """Return the refs of parts ``start`` to ``stop``."""
        return tuple(self[start:stop])

    def note_receipt(self, receipt: Receipt) -> None:
        """Ignore the receipt."""

    def measured(self, nbytes: int, rows: int) -> Steps[None]:  # noqa: ARG002
        """Wait for nothing."""
        yield from ()


class MapStage:
    """Maps of one shuffle, submitted in the order of their parts.

    At most ``window`` calls are in flight, and a call should last for ``target`` seconds at least.
    Without a ``policy`` no call is late.
    """

    calls: int
    parts: int
    nbytes: int
    seconds: float
    tally: Tally

    def __init__(
        self,
        futures: Futures,
        parts: Parts,
        spec: Spec,
        *,
        window: int,
        target: float,
        policy: SpeculationPolicy | None = None,
    ) -> None:
        self._parts, self._spec = parts, spec
        self._per_slot, self._target = window / max(spec.slots, 1), target
        self._attempts = MapAttempts(futures, spec, policy)
        self._sizes = BlockSizes()
        self._ahead: list[MapOutput] = []
        self._submitted = 0
        self._batch = 1
        self.policy = policy
        self.planned_slots: int = max(1, spec.places.all_slots)  # for which rounds are chosen
        self.rounds: int = 0  # calls of `take`
        self.merges = self.merged = 0  # submitted, and known to be finished
        # totals of submitted calls, and of the receipts of finished ones
        self.calls = self.parts = self.nbytes = 0
        self.seconds, self.tally = 0.0, Tally()

    def __len__(self) -> int:
        """M."""
        return len(self._parts)

    def __bool__(self) -> bool:
        """Return whether a part has not been taken yet."""
        return bool(self._ahead) or self._submitted < len(self._parts)

    @property
    def _window(self) -> float:
        """Calls in flight; where others share the cluster, none waits at a worker."""
        share = self._spec.places.share
        return self._spec.slots * (self._per_slot if share == 1.0 else 1.0)

    @property
    def remaining(self) -> range:
        """Parts that no call has taken yet."""
        return range(self._submitted, len(self._parts))

    @property
    def needs(self) -> dict[str, Any] | None:
        """Options of the next task of the shuffle: more slots, once a map has lacked memory."""
        return self._attempts.needs

    @property
    def speculates(self) -> bool:
        """Return whether speculative attempts may replace map outputs."""
        return self._attempts.speculates

    def reserve_slot(self, consumer: MapConsumer) -> None:
        """Reserve a slot for another task: speculative attempts get idle slots only."""
        self._attempts.consumers.append(consumer)

    def block_sizes(self, rows: Sequence[MapOutput]) -> list[Sequence[float]]:
        """Return (T, W) bytes of packed blocks, estimated where a map still runs.

        All T rows are packed for the same reducers.
        """
        self.collect_finished()
        expected = self._sizes.expected(rows[0].owned)
        return [row.sizes or [row.parts * size for size in expected] for row in rows]

    def probe(self, count: int) -> Steps[None]:
        """Map the first ``count`` parts, one per call, to measure time and size.

        It does not wait for late calls.
        """
        with self.unread():
            rows = yield from self.take(count, allow_speculation=True)
        while self._attempts.on_time:
            yield from self._attempts.wait()
            self.collect_finished()
        self._ahead, self.rounds = rows, 0

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """Take maps, inside the block, whose outputs no task reads before they have finished.

        So a map that lacks memory can run again.
        """
        self._attempts.unread = True
        try:
            yield
        finally:
            self._attempts.unread = False

    def exclude_slow_nodes(self) -> Spec:
        """Give no more maps, and no reducers, to nodes that were slow in `probe`.

        All further maps pack their blocks for the shuffle that is returned. Those of `probe` are
        packed for the previous one.
        """
        if slow := self._attempts.slow_nodes():
            self._spec = replace(self._spec, slow=slow)
        return self._spec

    @property
    def probed(self) -> bool:
        """Return whether `take` has not returned the parts of `probe` yet."""
        return bool(self._ahead)

    def take(
        self,
        count: int,
        *,
        node: str | None = None,
        owned: Sequence[range] | None = None,
        allow_speculation: bool = False,
    ) -> Steps[list[MapOutput]]:
        """Submit the maps of the next ``count`` parts (fewer at the end); return their blocks.

        There are more if nodes have joined since the size of a round was chosen. The parts of
        `probe` come first and are counted.

        Parameters
        ----------
        node : str, optional
            Node that runs the maps.
        owned : sequence of range, optional
            (G,) reducers whose blocks are packed together; by default those of each node.
        allow_speculation : bool
            Whether the caller accepts that rows change until they are ``final``. Only then late
            calls get speculative attempts.

        Returns
        -------
        list : (T, W) or (T, G)
            T is less than ``count`` where parts share a call.
        """
        self.rounds += 1
        owned = self._spec.owned if owned is None else owned
        if (now := self._spec.places.all_slots) > self.planned_slots:  # with more stores
            count = count * now // self.planned_slots
        first = 0 if self._ahead else self._submitted
        stop = min(first + count, len(self._parts))
        rows, self._ahead = self._ahead, []  # the probed ones come first, and together
        while not allow_speculation and not all(row.final for row in rows):
            yield from self._attempts.wait()
            self.collect_finished()
        while self._submitted < stop:
            parts = range(self._submitted, stop)
            row = yield from self._take_call(
                parts, node=node, owned=owned, allow_speculation=allow_speculation
            )
            rows.append(row)
        return rows

    def take_on_nodes(self, parts: Mapping[str, range]) -> Steps[dict[str, list[MapOutput]]]:
        """Submit maps of the parts for each node, by its id; return their blocks.

        Calls for the nodes alternate, so that all have work. Parts may be in any order; each is
        taken once. Rows may change until they are ``final``.
        """
        self.rounds += 1
        rows: dict[str, list[MapOutput]] = {node: [] for node in parts}
        waiting = deque(parts.items())
        while waiting:
            node, left = waiting.popleft()
            row = yield from self._take_call(
                left, node=node, owned=self._spec.owned, allow_speculation=True
            )
            rows[node].append(row)
            waiting.extend([(node, left[row.parts :])] if len(left) > row.parts else [])
        return rows

    def _take_call(
        self, parts: range, *, node: str | None, owned: Sequence[range], allow_speculation: bool
    ) -> Steps[MapOutput]:
        """Submit one call, for the first of some ``parts``."""
        while len(self._attempts) >= self._window:
            yield from self._attempts.wait(oldest=True)
            self.collect_finished()
        size = min(self._batch, len(parts))
        args = self._parts.call(parts.start, parts.start + size)
        row = MapOutput(owned, size)
        self._attempts.start(row, args, node=node, allow_speculation=allow_speculation)
        self._submitted += size
        self.calls += 1
        return row

    def finish(self) -> Steps[None]:
        """Wait until all maps have finished."""
        while self._attempts:
            yield from self._attempts.wait()
            self.collect_finished()

    def wait_condition(self, refs: Sequence[Ref]) -> Collection[Ref] | Until:
        """Return a condition that waits for ``refs`` and wakes up for late calls."""
        return self._attempts.wait_condition(refs)

    def collect_finished(self) -> None:
        """Read the receipts of finished calls; start speculative attempts of late ones."""
        for owned, size, receipt in self._attempts.collect_finished():
            self._sizes.record(owned, size, receipt.sizes, receipt.nbytes)
            self._parts.note_receipt(receipt)
            self.parts += size
            self.nbytes += receipt.nbytes
            self.seconds += receipt.seconds
            self.tally += receipt.tally
        if self.parts:
            self._batch = batch_size(
                seconds=self.seconds / self.parts,
                nbytes=self.nbytes // self.parts,
                remaining=len(self._parts) - self._submitted,
                slots=self._spec.slots,
                target=self._target,
            )


class BlockSizes:
    """Estimated sizes of blocks whose maps still run, from the last receipts.

    If blocks are packed for other ranges of reducers, sizes are divided proportionally.
    """

    def __init__(self) -> None:
        self._recent: dict[Owned, deque[list[float]]] = {}
        self._last: Owned | None = None

    def record(self, owned: Owned, parts: int, sizes: Sequence[int], nbytes: int = 0) -> None:
        """Record (W,) ``sizes`` of a finished call for a number of ``parts``.

        If they are empty, all reducers are assumed to get the same share of ``nbytes``.
        """
        if not sizes:
            reducers = max(sum(map(len, owned)), 1)
            sizes = [nbytes * len(part) // reducers for part in owned]
        recent = self._recent.setdefault(owned, deque(maxlen=RECENT))
        recent.append([size / max(parts, 1) for size in sizes])
        self._last = owned

    def expected(self, owned: Owned) -> list[float]:
        """Return (W,) bytes of each packed block, for one part; 0 if nothing is known."""
        if owned in self._recent:
            recent = self._recent[owned]
            return [sum(sizes) / len(recent) for sizes in zip(*recent, strict=True)]
        if self._last is None:
            return [0.0] * len(owned)
        known = list(zip(self._last, self.expected(self._last), strict=True))
        return [sum(size * _share(other, target) for other, size in known) for target in owned]


def _share(other: range, target: range) -> float:
    """Return the share of the reducers in ``other`` that are also in ``target``."""
    common = min(other.stop, target.stop) - max(other.start, target.start)
    return max(common, 0) / len(other) if other else 0.0
