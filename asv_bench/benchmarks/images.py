"""Image files through a decoder, a model and an encoder: pipelines, plain Dask, and Ray Data.

``python -m asv_bench.benchmarks.images`` prints the table of ``docs/performance-pipelines.md``:
images of the steps of ``examples/images.py`` in a second, where all systems have two CPUs. All have
to give the same labels and thumbnails.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from asv_bench.benchmarks.common import OnRay
from examples.images import Model, decode, encode, write

PER_PARTITION, BATCH = 32, 32


def arrays(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    return {name: frame[name].to_numpy() for name in frame.columns}


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    """All steps in one task, the model made for each."""
    made = Model()(arrays(decode(frame)))
    return encode(pd.DataFrame({name: list(values) for name, values in made.items()}))


def partitions(files: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(files, npartitions=max(1, len(files) // PER_PARTITION), sort=False)


def pipeline(files: pd.DataFrame) -> pd.DataFrame:
    """Decoding and encoding on two CPUs, the model beside them."""
    stages = (
        partitions(files)
        .exo.pipeline(memory="100MB", target="4MB")
        .map_partitions(decode)
        .map_batches(Model, batch_size=BATCH, num_cpus=0, concurrency=1, format="numpy")
        .map_partitions(encode)
    )
    return pd.concat(list(stages.iter_batches()))


def mapped(scheduler: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Plain Dask: one task a partition."""

    def run(files: pd.DataFrame) -> pd.DataFrame:
        meta = pd.DataFrame({"file": ["a"], "kind": ["a"], "thumbnail": [b"a"]}).iloc[:0]
        with dask.config.set({"dataframe.convert-string": False}):
            made = partitions(files).map_partitions(whole, meta=meta)
            return made.compute(scheduler=scheduler)

    return run


def ray_data(files: pd.DataFrame) -> pd.DataFrame:
    """Ray Data: two tasks, and one actor with the model."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    parts = [files[i : i + PER_PARTITION] for i in range(0, len(files), PER_PARTITION)]
    made = (
        ray.data.from_pandas(parts)
        .map_batches(decode, batch_size=None, batch_format="pandas")
        .map_batches(Model, batch_size=BATCH, batch_format="numpy", num_cpus=0, concurrency=1)
        .map_batches(encode, batch_size=None, batch_format="pandas")
    )
    return pd.concat(list(made.iter_batches(batch_size=None, batch_format="pandas")))


SYSTEMS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "dask_exo, pipeline": pipeline,
    "dask_exo, map_partitions": mapped("exo"),
    "Dask, threads": mapped("threads"),
    "Dask, processes": mapped("processes"),
    "Ray Data": ray_data,
}


def digest(found: pd.DataFrame) -> str:
    """Of all labels and thumbnails, in whatever order they came."""
    lines = [
        f"{row.file} {row.kind} {hashlib.sha256(bytes(row.thumbnail)).hexdigest()}"
        for row in found.itertuples()
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


class Images(OnRay):
    """Files in a second."""

    unit = "images/s"

    def setup(self) -> None:
        """Start Ray; write the files."""
        self.start()
        self._directory = tempfile.TemporaryDirectory()
        self.files = write(self._directory.name, 256)
        pipeline(self.files[:64])

    def teardown(self, *args: object) -> None:
        """Stop Ray; remove the files."""
        super().teardown()
        self._directory.cleanup()

    def track_pipeline(self) -> float:
        """Through a pipeline, workers started."""
        start = time.perf_counter()
        return len(pipeline(self.files)) / (time.perf_counter() - start)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m asv_bench.benchmarks.images")
    parser.add_argument("--images", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, dask_exo.enable(num_cpus=2):
        files = write(made, options.images)
        want = digest(whole(files))
        print("| | images/s, median | the first time |")
        print("|---|---|---|")
        for name in options.systems:
            rates = []
            for _ in range(options.rounds + 1):
                start = time.perf_counter()
                found = SYSTEMS[name](files)
                rates.append(len(files) / (time.perf_counter() - start))
                assert digest(found) == want, name
            median = statistics.median(rates[1:])
            print(f"| {name} | {median:.0f} | {rates[0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
