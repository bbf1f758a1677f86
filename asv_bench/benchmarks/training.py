"""Training on rows sorted by their label: how they are shuffled, what waits, what is learned.

Stochastic gradient descent of a softmax regression, by NumPy, each batch followed by 50 ms in
which a GPU would compute. ``python -m asv_bench.benchmarks.training`` prints the table of
``docs/performance-pipelines.md``; the torch row is left out where there is no torch.

References: Exoshuffle section 3.5.3.3, figure 3.6.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow.dataset

from asv_bench.benchmarks.common import OnRay
from dask_exo.partitions.batching import prefetch, rebatch
from dask_exo.training import spread

ROWS, FEATURES, CLASSES, FILES = 1_200_000, 20, 10, 44
BATCH, EPOCHS = 8192, 3
GPU = 0.05  # seconds for each batch
WINDOW = 4  # of 44 partitions: 9 %
RATE = 0.05

COLUMNS = [f"x{i}" for i in range(FEATURES)]
Batch = dict[str, Any]
Batches = Callable[[int], Iterator[Batch]]
"""The batches of an epoch; epochs are asked for in order."""


def points(rows: int, seed: int) -> pd.DataFrame:
    """Points around the centers of their classes, sorted by class, in the order of ``row``."""
    centers = np.random.default_rng(7).normal(0, 0.6, (CLASSES, FEATURES))
    rng = np.random.default_rng(seed)
    label = np.sort(rng.integers(0, CLASSES, rows))
    data = pd.DataFrame(centers[label] + rng.normal(0, 1, (rows, FEATURES)), columns=COLUMNS)
    return data.assign(label=label, row=np.arange(rows))


def write(directory: Path, rows: int) -> dd.DataFrame:
    """The points, in so many files of Parquet."""
    data = points(rows, 1)
    for i in range(FILES):
        part = data.iloc[rows * i // FILES : rows * (i + 1) // FILES]
        part.to_parquet(directory / f"part-{i:02}.parquet", index=False)
    return dd.read_parquet(directory, split_row_groups=False, aggregate_files=False)


class Model:
    """A softmax regression."""

    def __init__(self) -> None:
        self.weights = np.zeros((FEATURES + 1, CLASSES))

    def scores(self, X: np.ndarray) -> np.ndarray:
        return X @ self.weights[:-1] + self.weights[-1]

    def learn(self, X: np.ndarray, y: np.ndarray) -> None:
        """One step down the gradient."""
        scores = self.scores(X)
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(y)), y] -= 1
        self.weights[:-1] -= RATE * X.T @ share / len(y)
        self.weights[-1] -= RATE * share.mean(axis=0)


class Epoch(NamedTuple):
    """What an epoch took (seconds, and the part of them spent waiting), and what it gave."""

    seconds: float
    waited: float
    accuracy: float
    mixed: float


def train(batches: Batches, test: pd.DataFrame, gpu: float = GPU) -> Iterator[Epoch]:
    """Train, epoch after epoch."""
    model = Model()
    X, y = test[COLUMNS].to_numpy(), test.label.to_numpy()
    for epoch in range(EPOCHS):
        started, waited, order = time.perf_counter(), 0.0, []
        coming = batches(epoch)
        while True:
            asked = time.perf_counter()
            batch = next(coming, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            model.learn(
                np.column_stack([batch[name] for name in COLUMNS]), np.asarray(batch["label"])
            )
            order.append(np.asarray(batch["row"]))
            time.sleep(gpu)
        seconds = time.perf_counter() - started
        accuracy = (model.scores(X).argmax(axis=1) == y).mean()
        yield Epoch(seconds, waited, accuracy, spread(np.concatenate(order), BATCH))


def unshuffled(ddf: dd.DataFrame) -> Batches:
    """As the rows lie; one partition is read ahead."""

    def epoch(_: int) -> Iterator[Batch]:
        with ThreadPoolExecutor(1) as pool:
            parts = (ddf.partitions[i].compute() for i in range(ddf.npartitions))
            for batch in rebatch(prefetch(parts, pool), BATCH):
                yield {name: batch[name].to_numpy() for name in batch.columns}

    return epoch


def shuffled(ddf: dd.DataFrame, window: int | None = None) -> Batches:
    """By dask_exo."""
    epochs = ddf.exo.epochs(EPOCHS, BATCH, seed=1, window=window, format="numpy")
    prefetch: list[Batch] = []

    def epoch(number: int) -> Iterator[Batch]:
        yield from prefetch
        prefetch.clear()
        for batch in epochs:
            if epochs.epoch > number:
                prefetch.append(batch)
                return
            yield batch

    return epoch


def ray_data(directory: Path, buffer: int | None) -> Batches:
    """By Ray Data: a buffer that is shuffled locally, or a full shuffle before each epoch."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = ray.data.read_parquet(str(directory))

    def epoch(number: int) -> Iterator[Batch]:
        if buffer is None:
            source = rows.random_shuffle(seed=number)
            return iter(source.iter_batches(batch_size=BATCH, batch_format="numpy"))
        return iter(
            rows.iter_batches(
                batch_size=BATCH,
                batch_format="numpy",
                local_shuffle_buffer_size=buffer,
                local_shuffle_seed=number,
            )
        )

    return epoch


def torch_loader(directory: Path, buffer: int) -> Batches:
    """By torch: a DataLoader with a worker, over rows that go through a shuffle buffer."""
    import torch.utils.data

    class Rows(torch.utils.data.IterableDataset):
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def __iter__(self) -> Iterator[dict[str, Any]]:
            rng = np.random.default_rng(self.seed)
            held: list[Any] = []
            for fragment in pyarrow.dataset.dataset(directory).to_batches(batch_size=BATCH):
                data = np.column_stack([fragment[name].to_numpy() for name in names])
                for row, place in zip(data, rng.integers(0, buffer, len(data)), strict=True):
                    if len(held) < buffer:
                        held.append(row)
                    else:
                        yield held[place]
                        held[place] = row
            rng.shuffle(held)
            yield from held

    names = [*COLUMNS, "label", "row"]

    def epoch(number: int) -> Iterator[Batch]:
        loader = torch.utils.data.DataLoader(
            Rows(number), batch_size=BATCH, num_workers=1, collate_fn=np.stack
        )
        for batch in loader:
            found = dict(zip(names, batch.T, strict=True))
            yield {**found, "label": found["label"].astype(int), "row": found["row"].astype(int)}

    return epoch


class Training(OnRay):
    """A full shuffle, and windows of 9 %."""

    params = ("full", "windowed")
    param_names = ("shuffle",)
    unit = "share of the time"

    def setup(self, shuffle: str) -> None:
        """Start Ray; write the data."""
        self.start()
        self._directory = tempfile.TemporaryDirectory()
        self.ddf = write(Path(self._directory.name), ROWS // 4)

    def teardown(self, *args: object) -> None:
        """Stop Ray; remove the data."""
        super().teardown()
        self._directory.cleanup()

    def track_waiting(self, shuffle: str) -> float:
        """The consumer waits for batches; without the first epoch."""
        window = WINDOW if shuffle == "windowed" else None
        epochs = list(train(shuffled(self.ddf, window), points(20_000, 2)))[1:]
        return sum(one.waited for one in epochs) / sum(one.seconds for one in epochs)


def report(name: str, epochs: Iterator[Epoch]) -> None:
    """Print a row of the table."""
    done = list(epochs)
    later = done[1:]
    stall = sum(one.waited for one in later) / sum(one.seconds for one in later)
    seconds = " / ".join(f"{one.seconds:.1f}" for one in done)
    accuracy = " / ".join(f"{one.accuracy:.3f}" for one in done)
    print(
        f"| {name} | {seconds} | {done[0].waited:.2f} s | {stall:.1%} | {accuracy} "
        f"| {np.mean([one.mixed for one in done]):.2f} |",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    test = points(50_000, 2)
    buffer = ROWS * WINDOW // FILES
    print("| shuffle | seconds of each epoch | waited in the first | share of waiting later | "
          "accuracy after each | spread |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        ddf = write(directory, ROWS)
        try:
            report("torch DataLoader, buffer of 9 %", train(torch_loader(directory, buffer), test))
        except ModuleNotFoundError:
            print("| torch: not installed | | | | | |")
        on_ray = OnRay()
        on_ray.start()
        ways: dict[str, Callable[[], Batches]] = {
            "none": partial(unshuffled, ddf),
            "dask_exo, windows of 9 %": partial(shuffled, ddf, WINDOW),
            "dask_exo, full": partial(shuffled, ddf),
            "Ray Data, buffer of 9 %": partial(ray_data, directory, buffer),
            "Ray Data, random_shuffle": partial(ray_data, directory, None),
        }
        for name, way in ways.items():
            report(name, train(way(), test))
        on_ray.teardown()


if __name__ == "__main__":
    main()
