"""Checkpoints of values: markers in a graph, and the code that writes and reads them in tasks."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask.sizeof import sizeof

from dask_exo.checkpoint import CheckpointStore, StoredValue
from dask_exo.errors import CheckpointError
from dask_exo.execution.admission import single_write_seconds, worth_checkpointing
from dask_exo.planning.partitioners import Partitioner
from dask_exo.shuffle.blocks import Blocks
from dask_exo.shuffle.spec import Tally


@dataclass(frozen=True)
class CheckpointMark:
    """Identity function of a task whose value is to be checkpointed.

    ``is_valid`` returns whether the checkpoint of an earlier program is still valid.
    """

    is_valid: Callable[[Any], bool] | None = None

    def __call__(self, value: Any) -> Any:
        """Return the value unchanged."""
        return value


@dataclass(frozen=True, slots=True)
class CheckpointKey:
    """Place of a checkpoint; an entry of an earlier program is compared with the new value."""

    store: CheckpointStore
    group: str
    key: str
    before: StoredValue | None = None

    def write(self, value: Any) -> Any:
        """Write a checkpoint of a value; return the value.

        Raise `CheckpointError` if it differs from that of an earlier program. Warn if the value
        cannot be written, or could not be read by another program.
        """
        try:
            self.store.write(self.group, self.key, value, self.before)
        except CheckpointError:
            raise
        except (OSError, pickle.PicklingError) as error:
            warnings.warn(
                f"a value of {self.group!r} is not stored in {self.store.url!r}: {error}. The "
                f"computation continues; another program would recompute it",
                stacklevel=2,
            )
        return value


@dataclass(frozen=True, slots=True)
class PartCheckpoint:
    """Checkpoint of a map's input, written by the task that computes it.

    Writing it may take ``share`` of the task's seconds.
    """

    key: CheckpointKey
    share: float

    def write(self, value: Any, seconds: float) -> float:
        """Write a value that took so many seconds, if worth it; return the seconds of writing."""
        cost = single_write_seconds(sizeof(value), seconds=seconds, share=self.share)
        if cost is not None or self.key.before is not None:
            self.key.write(value)
        return cost or 0.0


@dataclass(frozen=True)
class ShuffleCheckpoint:
    """Checkpoint of the outputs of a shuffle that are read, by number of their reducers.

    Writing it may take ``share`` of the work so far, or any time if None.
    """

    keys: Mapping[int, CheckpointKey]
    share: float | None

    def worth(self, nbytes: int, work: float, checkpoint_seconds: float) -> bool:
        """Return whether to write ``nbytes`` of outputs after so many seconds of ``work``."""
        if self.share is None or any(key.before for key in self.keys.values()):
            return True
        return worth_checkpointing(
            nbytes, work=work, checkpoint_seconds=checkpoint_seconds, share=self.share
        )

    def forget(self) -> None:
        """Delete the checkpoint."""
        for store, group in {(key.store, key.group) for key in self.keys.values()}:
            store.remove(group)


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckpointingSplit(Partitioner):
    """A partitioner that checkpoints an output in the task that reads it, which has its device."""

    inner: Partitioner
    key: CheckpointKey

    def cut(self, parts: Sequence[Any], owned: Sequence[range]) -> tuple[Sequence[Blocks], Tally]:
        """See `Partitioner.cut`."""
        return self.inner.cut(parts, owned)

    def assemble(self, packed: Sequence[Any], slot: int, column: int) -> tuple[Any, Tally]:
        """Assemble an output and write its checkpoint."""
        output, assembled = self.inner.assemble(packed, slot, column)
        return self.key.write(output), assembled


def read_checkpoint(store: CheckpointStore, entry: StoredValue) -> Any:
    """Read the checkpoint of an earlier program."""
    return store.read(entry)
