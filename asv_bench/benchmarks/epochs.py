"""Epochs of training: how soon the first batch comes, and how much of the store they take.

``python -m asv_bench.benchmarks.epochs`` shuffles 12 million rows of 32 bytes on a private Ray of
two slots, and prints the table of ``docs/performance-pipelines.md``: the time of a shuffle whose
rows are counted, that until the first of three epochs' batches, the time that the program waited
for later ones, and the largest number of bytes in the store, over those of the data.

References: Exoshuffle section 3.3.3.2, figure 3.2 d.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from asv_bench.benchmarks.common import OnRay, unit
from dask_exo.cluster.on_ray import RayFutures

PARTITIONS, BATCH, EPOCHS = 40, 20_000, 3
ROWS = int(os.environ.get("EXO_BENCH_EPOCHS", "300000"))  # of a partition
NBYTES = PARTITIONS * ROWS * 32  # three columns, and the labels of rows


def part(number: int) -> pd.DataFrame:
    """One partition."""
    rng = np.random.default_rng(number)
    numbers = np.arange(ROWS) + number * ROWS
    return pd.DataFrame({"n": numbers, "x": rng.random(ROWS), "y": rng.random(ROWS)})


CASES = {
    "2GB": [(None, 1, 0.02), (None, 1, 0.0), (4, 1, 0.02), (4, 1, 0.0), (None, 4, 0.02)],
    "600MB": [(None, 1, 0.02), (4, 1, 0.02)],
}
"""Window, consumers and seconds after each batch, by the size of the store."""


class Store:
    """The largest number of bytes in the object store, sampled by a thread."""

    def __init__(self) -> None:
        self.peak, self._stopped = 0, False
        self._futures = RayFutures()
        self._before = self._futures.store().spilled
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        while not self._stopped:
            self.peak = max(self.peak, self._futures.store().used)
            time.sleep(0.03)

    def stop(self) -> int:
        """End the samples; return the bytes that were spilled."""
        self._stopped = True
        self._thread.join()
        return self._futures.store().spilled - self._before


class Outcome(NamedTuple):
    """Seconds of one shuffle, until the first batch, and of waiting; bytes over those of data.

    ``peak`` are those in the store, and ``spilled`` those that were written to disk.
    """

    shuffle: float
    first: float
    waited: float
    peak: float
    spilled: float


def shuffle(ddf: dd.DataFrame, window: int | None) -> float:
    """Return the seconds of a shuffle."""
    began = time.perf_counter()
    shuffled = ddf.exo.random_shuffle(seed=1, npartitions=2 * PARTITIONS, window=window).persist()
    assert int(shuffled.n.size.compute()) == PARTITIONS * ROWS
    return time.perf_counter() - began


def run(window: int | None, consumers: int, pause: float) -> Outcome:
    """Consume all epochs, by turns, with a pause after each batch."""
    ddf = dd.from_map(part, range(PARTITIONS))
    shuffle(ddf, window)
    alone = shuffle(ddf, window)
    time.sleep(1)  # its values are dropped
    store, began = Store(), time.perf_counter()
    split: dict[str, Any] = {} if consumers == 1 else {"split": consumers}
    made = ddf.exo.epochs(EPOCHS, BATCH, seed=1, window=window, **split)
    live: list[Iterator[Any]] = list(made) if consumers > 1 else [made]
    first, waited, rows = 0.0, 0.0, 0
    while live:
        for each in list(live):
            asked = time.perf_counter()
            batch = next(each, None)
            if batch is None:
                live.remove(each)
                continue
            waited += (time.perf_counter() - asked) if first else 0.0
            first = first or time.perf_counter() - began
            rows += len(batch)
            time.sleep(pause)
    assert rows == EPOCHS * PARTITIONS * ROWS
    spilled = store.stop()
    return Outcome(alone, first, waited, store.peak / NBYTES, spilled / NBYTES)


class Epochs(OnRay):
    """One consumer, whose batches take longer than their shuffle."""

    def setup(self) -> None:
        """Start Ray."""
        self.start()

    @unit("times the data")
    def track_peak(self) -> float:
        """Bytes in the store over those of the data."""
        return run(None, 1, 0.02).peak

    @unit("seconds")
    def track_first_batch(self) -> float:
        """Seconds until the first batch, of windows of four partitions."""
        return run(4, 1, 0.0).first


def main() -> None:
    """Print the table."""
    print("| store | shuffle | consumers | pause | a shuffle | first batch | waited "
          "| most in the store | spilled |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for store, cases in CASES.items():
        with dask_exo.enable(num_cpus=2, object_store_memory=store):
            for window, consumers, pause in cases:
                found = run(window, consumers, pause)
                name = "full" if window is None else f"windows of {window} of {PARTITIONS}"
                share = found.first / found.shuffle
                print(f"| {store} | {name} | {consumers} | {pause * 1000:.0f} ms "
                      f"| {found.shuffle:.2f} s | {found.first:.2f} s ({share:.0%}) "
                      f"| {found.waited:.2f} s | {found.peak:.2f} | {found.spilled:.2f} |",
                      flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
