"""Values that are kept for the next program: what is said in a graph, and what runs in tasks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.sizeof import sizeof

from dask_exo.checkpoint import Entry, Store
from dask_exo.errors import CheckpointError
from dask_exo.execution.checkpoints.cost import single_write_seconds, worth_checkpointing
from dask_exo.planning.partitioners import Partitioner
from dask_exo.shuffle.blocks import Mergeable
from dask_exo.shuffle.integrity import Tally


@dataclass(frozen=True)
class CheckpointMark:
    """The function of a task whose value shall be kept: it gives back what it gets.

    Attributes
    ----------
    still : callable, optional
        Whether a value that was kept by an earlier program is worth anything now.
    """

    still: Callable[[Any], bool] | None = None

    def __call__(self, value: Any) -> Any:
        """Give back what it gets, where nothing is kept."""
        return value


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Where a value is kept, or has been by an earlier program, with which it is compared then."""

    store: Store
    group: str
    key: str
    before: Entry | None = None

    def keep(self, value: Any) -> Any:
        """Keep a value, and give it back.

        Raises
        ------
        CheckpointError
            It is not equal to what was kept before.

        Warns
        -----
        UserWarning
            It cannot be written, or read by another program.
        """
        try:
            self.store.write(self.group, self.key, value, self.before)
        except CheckpointError:
            raise
        except (OSError, pickle.PicklingError) as error:
            warnings.warn(
                f"a value of {self.group!r} is not kept in {self.store.url!r}: {error}. The "
                f"computation goes on; another program would make it again",
                stacklevel=2,
            )
        return value


@dataclass(frozen=True, slots=True)
class PartCheckpoint:
    """Where a value on the way into a shuffle is kept by the task that makes it, if worth it.

    Attributes
    ----------
    label : CheckpointKey
    share : float
        Of the seconds that making it took, which keeping it may cost.
    """

    label: CheckpointKey
    share: float

    def keep(self, value: Any, seconds: float) -> float:
        """Keep a value that took so many seconds; return those that keeping it is taken to cost.

        Raises
        ------
        CheckpointError
            It is not equal to what was kept before.
        """
        spent = single_write_seconds(sizeof(value), seconds=seconds, share=self.share)
        if spent is not None or self.label.before is not None:
            self.label.keep(value)
        return spent or 0.0


@dataclass(frozen=True)
class ShuffleCheckpoint:
    """What is known of the outputs of a shuffle that may be kept.

    Attributes
    ----------
    labels : dict
        Of each output that is read, by its place among those of the shuffle.
    share : float, optional
        Of the work so far that keeping may cost; None means that it is kept in any case.
    """

    labels: Mapping[int, CheckpointKey]
    share: float | None

    def worth(self, nbytes: int, work: float, spent: float) -> bool:
        """Whether to keep ``nbytes`` of outputs after so many seconds of ``work``."""
        if self.share is None or any(label.before for label in self.labels.values()):
            return True
        return worth_checkpointing(nbytes, work=work, spent=spent, share=self.share)

    def forget(self) -> None:
        """Delete what has been kept of them."""
        for store, group in {(label.store, label.group) for label in self.labels.values()}:
            store.remove(group)


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckpointingSplit(Partitioner):
    """A split of which one output is kept by the task that reads it, as no other has its device.

    Attributes
    ----------
    inner : Partitioner
    label : CheckpointKey
    """

    inner: Partitioner
    label: CheckpointKey

    def cut(
        self, parts: Sequence[Any], owned: Sequence[range]
    ) -> tuple[Sequence[Mergeable], Tally]:
        """See `Partitioner.cut`."""
        return self.inner.cut(parts, owned)

    def assemble(self, packed: Sequence[Any], slot: int, column: int) -> tuple[Any, Tally]:
        """Put an output together, and keep it."""
        output, arrived = self.inner.assemble(packed, slot, column)
        return self.label.keep(output), arrived


def keep(value: Any, label: CheckpointKey) -> Any:
    """Task: keep a value, and give it back."""
    return label.keep(value)


def restore(store: Store, entry: Entry) -> Any:
    """Task: give back what an earlier program has kept."""
    return store.read(entry)
