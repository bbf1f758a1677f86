"""The iterator of one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.tokenize import tokenize

from dask_exo.errors import ShuffleArgumentError
from dask_exo.partitions.batching import as_numpy, prefetch, rebatch
from dask_exo.pipeline.shard_server import NextRows, ShardSource, fetch_rows
from dask_exo.training.epoch_shuffle import EpochShuffles, EpochSpec

Step = tuple[int, int, int, Any]
"""Epoch, number of its batches so far and in all (0 if unknown), and the last batch."""


def _torch(frame: pd.DataFrame) -> dict[Any, Any]:
    import torch

    # a tensor must be able to write to its memory
    return {name: torch.from_numpy(np.array(frame[name])) for name in frame.columns}


FORMATS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "numpy": as_numpy,
    "torch": _torch,
}


class Epochs(Iterator[Any]):
    """Batches of several epochs, one after the other, for one consumer; see ``ddf.exo.epochs``.

    It can be sent to a task or an actor of the same Ray program, and continues there. Rows come
    from the driver, which must stay alive.

    Attributes
    ----------
    epoch : int
        Of the last batch, from 0.
    batches : int
        Batches of this epoch so far.
    steps : int
        Batches of each epoch, the same for all consumers. 0 before the first batch, and with one
        consumer until the first epoch has been shuffled.
    """

    epoch: int
    batches: int
    steps: int

    def __init__(
        self,
        source: ShardSource,
        spec: EpochSpec,
        format: str,  # noqa: A002  the usual name
        consumer: int,
        identity: str,
    ) -> None:
        self._source, self._spec, self._format = source, spec, format
        self._consumer, self._identity = consumer, identity
        self._steps: Iterator[Step] | None = None
        self.epoch = self.batches = self.steps = 0

    def __next__(self) -> Any:
        """Return the next batch."""
        if self._steps is None:
            ended = 0 < self.steps == self.batches
            start = (self.epoch + 1, 0) if ended else (self.epoch, self.batches)
            self._steps = _steps(
                partial(self._source.share, self._consumer), self._spec, self._format, start
            )
        try:
            self.epoch, self.batches, steps, batch = next(self._steps)
        except StopIteration:
            self._source.leave(self._consumer)
            raise
        except BaseException:
            self._steps = None  # the next call retries
            raise
        self.steps = steps or self.steps
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position, as numbers and text."""
        return {**self._position(), "of": self._identity}

    def _position(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batches": self.batches, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume after the batch at which ``state`` was taken.

        Raises
        ------
        ShuffleArgumentError
            The state is of other data, other batches, or another consumer.
        """
        if state["of"] != self._identity:
            raise ShuffleArgumentError(
                f"the state is of {state['of']}, and this is {self._identity}: batches would "
                f"not be the missing ones. Give the arguments with which the state was saved"
            )
        self.epoch, self.batches, self.steps = state["epoch"], state["batches"], state["steps"]
        self._steps = None

    def close(self) -> None:
        """End before the last batch: release the rows of this consumer."""
        self._source.leave(self._consumer)  # a waiting thread ends
        self._steps = iter(())

    def __reduce__(self) -> tuple[Any, ...]:
        args = (self._source.remote(), self._spec, self._format, self._consumer, self._identity)
        return Epochs, args, self._position()


def _steps(
    share: Callable[[tuple[int, int]], NextRows],
    spec: EpochSpec,
    format: str,  # noqa: A002  the usual name
    start: tuple[int, int],
) -> Iterator[Step]:
    """Yield the batches from ``start``: an epoch, and a number of batches to skip.

    This does not reference the iterator, so that the store is freed with its last reference.
    """
    (first, done), size = start, spec.batch_size
    pool = ThreadPoolExecutor(2, "exo-epochs")  # a batch, and a partition for it
    try:
        for epoch in range(first, spec.count):
            done = done if epoch == first else 0
            rows = _EpochRows(share, epoch, done * size)
            frames = rebatch(prefetch(iter(rows), pool), size)
            full = (frame for frame in frames if not spec.drop_last or len(frame) == size)
            for batch in prefetch(map(FORMATS[format], full), pool):
                done += 1
                yield epoch, done, -(-rows.total // size), batch
    finally:
        pool.shutdown(wait=False)  # a thread may wait for the next partition


class _EpochRows:
    """The rows of an epoch, by partition; ``total`` is their number, or 0 until it is known."""

    def __init__(
        self, share: Callable[[tuple[int, int]], NextRows], epoch: int, taken: int
    ) -> None:
        self._share, self._epoch, self._taken = share, epoch, taken
        self.total = 0

    def __iter__(self) -> Iterator[pd.DataFrame]:
        while True:
            span, rows = self._share((self._epoch, self._taken))
            self.total = rows or self.total
            if span is None:
                return
            self._taken += span.stop - span.start
            frame = fetch_rows(span)
            del span  # it keeps the partition
            yield frame
            del frame


def epochs(
    frame: dd.DataFrame,
    spec: EpochSpec,
    format: str,  # noqa: A002  the usual name
) -> list[Epochs]:
    """Return the iterators of all consumers."""
    if format not in FORMATS:
        raise ShuffleArgumentError(f"format={format!r}: there are {', '.join(FORMATS)}")
    source = EpochShuffles(frame, spec)
    identity = (
        f"seed {spec.seed}, window {spec.window}, batches of {spec.batch_size}, "
        f"drop_last={spec.drop_last}, data {tokenize(frame)}, consumer"
    )
    return [
        Epochs(source, spec, format, i, f"{identity} {i} of {spec.consumers}")
        for i in range(spec.consumers)
    ]
