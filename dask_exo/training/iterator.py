"""The iterator of one consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.tokenize import tokenize

from dask_exo.errors import ShuffleArgumentError
from dask_exo.partitions.batching import as_numpy, rebatch
from dask_exo.pipeline.shard_server import ShardRows, ShardSource, fetch_rows
from dask_exo.training.epoch_shuffle import EpochShuffles, EpochSpec, skip_rows

Item = TypeVar("Item")
Step = tuple[int, int, int, Any]
"""Epoch, number of its batches so far and in all, and the last batch."""


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
        Batches of each epoch, the same for all consumers; 0 before the first batch.
    """

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
            self.epoch, self.batches, self.steps, batch = next(self._steps)
        except StopIteration:
            self._source.leave(self._consumer)
            raise
        except BaseException:
            self._steps = None  # the next call retries
            raise
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
        self._steps = iter(())
        self._source.leave(self._consumer)

    def __reduce__(self) -> tuple[Any, ...]:
        args = (self._source.remote(), self._spec, self._format, self._consumer, self._identity)
        return Epochs, args, self._position()


def _steps(
    share: Callable[[int], list[ShardRows]],
    spec: EpochSpec,
    format: str,  # noqa: A002  the usual name
    start: tuple[int, int],
) -> Iterator[Step]:
    """Yield the batches from ``start``: an epoch, and a number of batches to skip.

    This does not reference the iterator, so that the store is freed with its last reference.
    """
    first, done = start
    with ThreadPoolExecutor(2, "exo-epochs") as pool:  # a batch, and a partition for it
        for epoch in range(first, spec.count):
            done = done if epoch == first else 0
            spans = skip_rows(share(epoch), done * spec.batch_size)
            rows = sum(span.stop - span.start for span in spans)
            steps = done + -(-rows // spec.batch_size)
            parts = prefetch(fetch_rows(spans), pool)
            batches = map(FORMATS[format], rebatch(parts, spec.batch_size))
            for batch in prefetch(batches, pool):
                done += 1
                yield epoch, done, steps, batch


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


def prefetch(items: Iterator[Item], pool: Executor) -> Iterator[Item]:
    """Compute each item while the one before it is in use."""
    future = pool.submit(next, items, None)
    while (item := future.result()) is not None:
        future = pool.submit(next, items, None)
        yield item
        del item
