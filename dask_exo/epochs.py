"""Batches for training, from an Exoshuffle for each epoch.

The order of an epoch is decided by the seed and its number, so that a training run can stop
anywhere and go on exactly there.

References: Exoshuffle section 3.3.3.2: pipelined full shuffle and windowed shuffle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.tokenize import tokenize

from dask_exo.dask_adapter import Alias, GraphNode, convert_legacy_graph
from dask_exo.errors import ShuffleArgumentError

Fetch = Callable[[], pd.DataFrame]


def _numpy(frame: pd.DataFrame) -> dict[Any, np.ndarray]:
    return {name: frame[name].to_numpy() for name in frame.columns}


def _torch(frame: pd.DataFrame) -> dict[Any, Any]:
    import torch

    # a tensor must be able to write to its memory
    return {name: torch.from_numpy(np.array(frame[name])) for name in frame.columns}


FORMATS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "numpy": _numpy,
    "torch": _torch,
}


def number_from(least: int, name: str, value: Any) -> None:
    """Raise `ShuffleArgumentError` unless an argument is a whole number, ``least`` or more."""
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_int or value < least:
        raise ShuffleArgumentError(f"{name}={value!r}: need a number from {least}")


class Epochs(Iterator[Any]):
    """Batches of several epochs, one after the other; see ``ddf.exo.epochs``.

    Attributes
    ----------
    epoch : int
        Of the last batch, from 0.
    batches : int
        That this epoch has given.
    """

    def __init__(  # noqa: PLR0913, PLR0917  as the accessor has them
        self,
        frame: dd.DataFrame,
        count: int,
        batch_size: int,
        seed: int,
        window: int | None,
        format: str,  # noqa: A002
        drop_last: bool,  # noqa: FBT001
    ) -> None:
        number_from(1, "count", count)
        number_from(1, "batch_size", batch_size)
        if format not in FORMATS:
            raise ShuffleArgumentError(f"format={format!r}: there are {', '.join(FORMATS)}")
        frame.exo.random_shuffle(seed=seed, window=window)  # refuses what is wrong at once
        self._frame, self._count, self._size = frame, int(count), int(batch_size)
        self._seed, self._window, self._drop_last = int(seed), window, drop_last
        self._format = FORMATS[format]
        self._ahead: tuple[int, list[Fetch]] | None = None
        self._steps: Iterator[Any] | None = None
        self.epoch = self.batches = 0

    def __next__(self) -> Any:
        """The next batch."""
        if self._steps is None:
            self._steps = self._run()
        return next(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """Where it is, in numbers and text."""
        return {"epoch": self.epoch, "batches": self.batches, "of": self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batch at which ``state`` was taken.

        Raises
        ------
        ShuffleArgumentError
            The state is one of other data, or of other batches.
        """
        if state["of"] != self._identity():
            raise ShuffleArgumentError(
                f"the state is of {state['of']}, and this is {self._identity()}: batches would "
                f"not be the ones that are missing"
            )
        self.epoch, self.batches = state["epoch"], state["batches"]
        self._ahead = self._steps = None

    def _identity(self) -> str:
        how = f"seed {self._seed}, window {self._window}, batches of {self._size}"
        return f"{how}, drop_last={self._drop_last}, data {tokenize(self._frame)}"

    def _run(self) -> Iterator[Any]:
        with ThreadPoolExecutor(1, "exo-epochs") as pool:
            for epoch in range(self.epoch, self._count):
                done = self.batches if epoch == self.epoch else 0
                parts = self._shuffled(epoch)
                self._ahead = None
                if epoch + 1 < self._count:
                    self._ahead = epoch + 1, self._shuffled(epoch + 1)
                for batch in self._cut(_fetched(parts, pool), done * self._size):
                    done += 1
                    self.epoch, self.batches = epoch, done
                    yield self._format(batch)

    def _shuffled(self, epoch: int) -> list[Fetch]:
        """Start the shuffle of an epoch, unless it has been; how to get its partitions."""
        if self._ahead is not None and self._ahead[0] == epoch:
            return self._ahead[1]
        seed = int(np.random.SeedSequence([self._seed, epoch]).generate_state(1, np.uint64)[0])
        persisted = self._frame.exo.random_shuffle(seed=seed, window=self._window).persist()
        graph = convert_legacy_graph(persisted.__dask_graph__())
        return [_fetch(graph, key) for key in persisted.__dask_keys__()]

    def _cut(self, parts: Iterator[pd.DataFrame], skip: int) -> Iterator[pd.DataFrame]:
        """Cut the rows of an epoch into batches, without the first ``skip`` rows."""
        rest: list[pd.DataFrame] = []
        for part in parts:
            skipped = min(skip, len(part))
            skip -= skipped
            whole = pd.concat([*rest, part.iloc[skipped:]]) if rest else part.iloc[skipped:]
            full = len(whole) - len(whole) % self._size
            for start in range(0, full, self._size):
                yield whole.iloc[start : start + self._size]
            rest = [whole.iloc[full:]] if full < len(whole) else []
        if rest and not self._drop_last:
            yield rest[0]


def _fetch(graph: dict[Any, GraphNode], key: Any) -> Fetch:
    node = graph[key]
    while isinstance(node, Alias):
        node = graph[node.target]
    return lambda: node({})


def _fetched(parts: list[Fetch], pool: ThreadPoolExecutor) -> Iterator[pd.DataFrame]:
    """Fetch partitions one ahead of their use; each is let go when it is used up."""
    parts.reverse()
    ahead = pool.submit(parts.pop())
    while True:
        part = ahead.result()
        if parts:
            ahead = pool.submit(parts.pop())
            yield part
            continue
        del ahead
        yield part
        return


def spread(positions: Any, batch_size: int) -> float:
    """How well batches are mixed: their spread over the input, relative to that of random ones.

    Parameters
    ----------
    positions : (n,)
        Of each row that comes, its place in the input.
    batch_size : int

    Returns
    -------
    float
        The mean over full batches of the standard deviation of ``positions``, over that of all.
        About 1 for a full shuffle, about the share of the input in a window for a windowed one, and
        near 0 for rows in their old order.

    Examples
    --------
    >>> spread(np.arange(1000), 10) < 0.02
    True
    >>> 0.9 < spread(np.random.default_rng(0).permutation(1000), 10) < 1.0
    True
    """
    positions = np.asarray(positions)
    full = positions[: len(positions) - len(positions) % batch_size].reshape(-1, batch_size)
    return float(full.std(axis=1).mean() / positions.std())
