"""The map side that all algorithms share: parts in order, a window of them at a time.

Small parts share a call. How many, the first ones show: see `choose.batch_size`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from dask_exo.futures import Futures, Ref, Steps
from dask_exo.shuffle.choose import batch_size
from dask_exo.shuffle.integrity import Tally
from dask_exo.shuffle.spec import Receipt, Spec

Row = list[Ref]
"""(W,) the packed blocks of one map call."""


class Parts(Protocol):
    """(M,) parts that are still to be made."""

    def __len__(self) -> int:
        """M."""
        ...

    def call(self, start: int, stop: int) -> tuple[Any, ...]:
        """Arguments with which `Spec.map` makes and cuts parts ``start`` to ``stop``."""
        ...

    def settle(self, receipt: Receipt) -> None:
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

    def settle(self, receipt: Receipt) -> None:
        """Nothing to note."""


class Maps:
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

    Attributes
    ----------
    calls, parts, nbytes, seconds, tally
        Totals of the receipts of all finished calls.
    """

    def __init__(
        self, futures: Futures, parts: Parts, spec: Spec, *, window: int, target: float
    ) -> None:
        self._futures, self._parts, self._spec = futures, parts, spec
        self._window, self._target = window, target
        self._flying: deque[tuple[Ref, int]] = deque()
        self._ahead: list[Row] = []
        self._submitted = 0
        self._batch = 1
        self.calls = self.parts = self.nbytes = 0
        self.seconds = 0.0
        self.tally = Tally()

    def __len__(self) -> int:
        """M."""
        return len(self._parts)

    def __bool__(self) -> bool:
        """Whether a part has not been taken yet."""
        return bool(self._ahead) or self._submitted < len(self._parts)

    def probe(self, count: int) -> Steps[None]:
        """Map the first ``count`` parts by themselves and wait, to learn time and size."""
        rows = yield from self.take(count)
        yield from self.finish()
        self._ahead = rows

    @property
    def probed(self) -> bool:
        """Whether there are parts that `probe` mapped and nobody has taken."""
        return bool(self._ahead)

    def take(
        self, count: int, *, node: str | None = None, owned: Sequence[range] | None = None
    ) -> Steps[list[Row]]:
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

        Returns
        -------
        list : (T, W) or (T, G)
            T is less than ``count`` where parts share a call.
        """
        owned = self._spec.owned if owned is None else owned
        taken = 0 if self._ahead else self._submitted
        stop = min(taken + count, len(self._parts))
        rows, self._ahead = self._ahead, []  # the probed ones come first, and together
        while self._submitted < stop:
            if len(self._flying) >= self._window:
                yield [self._flying[0][0]]
                self._learn()
            size = min(self._batch, stop - self._submitted)
            start, self._submitted = self._submitted, self._submitted + size
            *blocks, receipt = self._futures.split(
                len(owned) + 1,
                self._spec.map,
                owned,
                *self._parts.call(start, start + size),
                node=node,
            )
            self.calls += 1
            self._flying.append((receipt, size))
            rows.append(blocks)
        return rows

    def finish(self) -> Steps[None]:
        """Wait until every map that was started has finished."""
        while self._flying:
            yield [ref for ref, _ in self._flying]
            self._learn()

    def _learn(self) -> None:
        """Read the receipts of calls that have finished; the oldest has."""
        refs = [ref for ref, _ in self._flying]
        done, _ = self._futures.wait(refs, timeout=0)
        finished = set(done)
        receipts: list[Receipt] = self._futures.get(done)
        sizes = dict(self._flying)
        for ref, receipt in zip(done, receipts, strict=True):
            self._parts.settle(receipt)
            self.parts += sizes[ref]
            self.nbytes += receipt.nbytes
            self.seconds += receipt.seconds
            self.tally += receipt.tally
        self._flying = deque(item for item in self._flying if item[0] not in finished)
        if self.parts:
            self._batch = batch_size(
                seconds=self.seconds / self.parts,
                nbytes=self.nbytes // self.parts,
                remaining=len(self._parts) - self._submitted,
                slots=self._spec.slots,
                target=self._target,
            )
