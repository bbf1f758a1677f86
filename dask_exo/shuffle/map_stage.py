"""The map side that all algorithms share: parts in order, a window of them at a time.

Small parts share a call. How many, the first ones show: see `choose.batch_size`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dask_exo.cluster.futures import Futures, Ref, Steps, Until
from dask_exo.shuffle.choose import batch_size
from dask_exo.shuffle.integrity import Tally
from dask_exo.shuffle.spec import MapOutput, Receipt, Spec
from dask_exo.shuffle.speculation import MapAttempts, MapConsumer
from dask_exo.shuffle.stragglers import SpeculationPolicy


class Parts(Protocol):
    """(M,) parts that are still to be made."""

    def __len__(self) -> int:
        """M."""
        ...

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arguments with which `Spec.map` makes and cuts parts ``start`` to ``stop``."""
        ...

    def note_receipt(self, receipt: Receipt) -> None:
        """Take note of a finished call; raise what made it fail."""
        ...


class Refs(Sequence[Ref]):
    """Parts that exist already, as refs.

    Examples
    --------
    >>> Refs(["a", "b", "c"]).call(0, 2)
    ('a', 'b')
    """

    def __init__(self, refs: Sequence[Ref]) -> None:
        self._refs = refs

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, i: Any) -> Any:
        return self._refs[i]

    def call(self, start: int, stop: int) -> tuple[Ref, ...]:
        """Refs of parts ``start`` to ``stop``."""
        return tuple(self._refs[start:stop])

    def note_receipt(self, receipt: Receipt) -> None:
        """Nothing to note."""


class MapStage:
    """Submits the maps of one shuffle, in the order of their parts.

    Parameters
    ----------
    futures : Futures
    parts : Parts
        (M,)
    spec : Spec
    window : int
        Map calls in flight at most.
    target : float
        Seconds of work that one call should at least do.
    policy : SpeculationPolicy, optional
        When a call is late and is copied; never by default.

    Attributes
    ----------
    calls, parts, nbytes, seconds, tally
        Totals of the receipts of all finished calls.
    merges, merged : int
        Merges of their blocks that were started, and that are done as far as that was waited for.
    """

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
        self._window, self._target = window, target
        self._attempts = MapAttempts(futures, spec, policy)
        self._ahead: list[MapOutput] = []
        self._submitted = 0
        self._batch = 1
        self.policy = policy
        self.calls = self.parts = self.nbytes = self.merges = self.merged = 0
        self.seconds = 0.0
        self.tally = Tally()

    def __len__(self) -> int:
        """M."""
        return len(self._parts)

    def __bool__(self) -> bool:
        """Whether a part has not been taken yet."""
        return bool(self._ahead) or self._submitted < len(self._parts)

    @property
    def speculates(self) -> bool:
        """Whether copies of late calls may replace rows."""
        return self._attempts.speculates

    def reserve_slot(self, consumer: MapConsumer) -> None:
        """Leave a slot to another task: copies are made where slots are idle."""
        self._attempts.consumers.append(consumer)

    def block_sizes(self, rows: Sequence[MapOutput]) -> list[Sequence[float]]:
        """(T, W) bytes of packed blocks: as the calls have told, or as the last ones make expect.

        All T rows are packed for the same reducers.
        """
        self.collect_finished()
        expected = self._attempts.sizes.expected(rows[0].owned)
        return [row.sizes or [row.parts * size for size in expected] for row in rows]

    @property
    def speculation_budget(self) -> int:
        """Second calls that were made, of calls that were late."""
        return self._attempts.copies

    def probe(self, count: int) -> Steps[None]:
        """Map the first ``count`` parts by themselves and wait, to learn time and size.

        Nobody waits for calls that are late.
        """
        rows = yield from self.take(count, allow_speculation=True)
        while self._attempts.on_time:
            yield from self._attempts.wait()
            self.collect_finished()
        self._ahead = rows

    def exclude_slow_nodes(self) -> Spec:
        """Give no more work to nodes that `probe` has found to be slow, nor reducers.

        Returns
        -------
        Spec
            What the parts that are taken from now on are packed for. Those of `probe` are packed
            for another one then.
        """
        if slow := self._attempts.slow_nodes():
            self._spec = replace(self._spec, slow=slow)
        return self._spec

    @property
    def probed(self) -> bool:
        """Whether there are parts that `probe` mapped and nobody has taken."""
        return bool(self._ahead)

    def take(
        self,
        count: int,
        *,
        node: str | None = None,
        owned: Sequence[range] | None = None,
        allow_speculation: bool = False,
    ) -> Steps[list[MapOutput]]:
        """Start the maps of the next ``count`` parts (fewer at the end); return their blocks.

        Those that `probe` has mapped come first, and count among them.

        Parameters
        ----------
        count : int
            Parts.
        node : str, optional
            Where to map them.
        owned : sequence of range, optional
            (G,) reducers whose blocks are packed together; by default those of each node.
        allow_speculation : bool
            Whether who takes the rows can bear that they change until they are ``done``: only
            then late calls are copied.

        Returns
        -------
        list : (T, W) or (T, G)
            T is less than ``count`` where parts share a call. Each row says which reducers are
            packed together.
        """
        owned = self._spec.owned if owned is None else owned
        taken = 0 if self._ahead else self._submitted
        stop = min(taken + count, len(self._parts))
        rows, self._ahead = self._ahead, []  # the probed ones come first, and together
        while not allow_speculation and not all(row.final for row in rows):
            yield from self._attempts.wait()
            self.collect_finished()
        while self._submitted < stop:
            while len(self._attempts) >= self._window:
                yield from self._attempts.wait(oldest=True)
                self.collect_finished()
            size = min(self._batch, stop - self._submitted)
            start, self._submitted = self._submitted, self._submitted + size
            args = self._parts.call(start, start + size)
            row = self._attempts.start(
                owned, size, args, node=node, allow_speculation=allow_speculation
            )
            self.calls += 1
            rows.append(row)
        return rows

    def finish(self) -> Steps[None]:
        """Wait until every map that was started has finished, or a copy of it."""
        while self._attempts:
            yield from self._attempts.wait()
            self.collect_finished()

    def wait_condition(self, refs: Sequence[Ref]) -> Collection[Ref] | Until:
        """What to wait for in order to see all of ``refs``, and to `look` in time."""
        return self._attempts.wait_condition(refs)

    def collect_finished(self) -> None:
        """Read the receipts of calls that have finished; copy those that are late."""
        for size, receipt in self._attempts.collect_finished():
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
