"""Image files are decoded, classified by a model with its own worker, encoded. Needs Pillow."""

import io
import tempfile

import dask.dataframe as dd
import numpy as np
import pandas as pd
from PIL import Image

import dask_exo

SIZE, KINDS, rng = 96, np.array(["horizontal", "vertical", "diagonal"]), np.random.default_rng(0)


def write(directory: str, count: int) -> pd.DataFrame:
    """Files of stripes in three directions, with noise."""
    y, x = np.mgrid[: 2 * SIZE, : 2 * SIZE]
    names = [f"{directory}/{i}-{KINDS[i % 3]}.{('png', 'jpg')[i % 2]}" for i in range(count)]
    for i, name in enumerate(names):
        waves = 128 + 60 * np.sin((y, x, x + y)[i % 3] / rng.uniform(3, 9))
        Image.fromarray(rng.normal(waves, 20).clip(0, 255).astype("u1")).convert("RGB").save(name)
    return pd.DataFrame({"file": names})


def decode(frame: pd.DataFrame) -> pd.DataFrame:
    """Read the files: (SIZE, SIZE, 3) bytes of each."""
    files = map(Image.open, frame.file)
    return frame.assign(pixels=[np.asarray(file.resize((SIZE, SIZE))) for file in files])


class Model:
    """Compares how brightness changes along the rows, the columns and the diagonals."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        gray = np.stack(batch["pixels"]).mean(axis=3)
        along = (gray[:, 1:-1, 2:], gray[:, 2:, 1:-1], gray[:, 2:, :-2])
        change = [np.abs(gray[:, 1:-1, 1:-1] - moved).mean(axis=(1, 2)) for moved in along]
        return {**batch, "kind": KINDS[np.argmin(change, axis=0)]}


def encode(frame: pd.DataFrame) -> pd.DataFrame:
    """Thumbnails as JPEG."""
    files = [io.BytesIO() for _ in frame.pixels]
    for image, file in zip(map(Image.fromarray, frame.pixels), files, strict=True):
        image.resize((32, 32)).save(file, "jpeg")
    return frame[["file", "kind"]].assign(thumbnail=[file.getvalue() for file in files])


def main(count: int = 120) -> None:
    with tempfile.TemporaryDirectory() as made, dask_exo.enable(num_cpus=2):
        source = dd.from_pandas(write(made, count), npartitions=8).exo.pipeline(memory="50MB")
        labels = source.map_partitions(decode).map_batches(Model, num_cpus=0.5, format="numpy")
        found = pd.concat(labels.map_partitions(encode).iter_batches())
    print(f"{sum(map(str.__contains__, found.file, found.kind))} of {len(found)} are right")


if __name__ == "__main__":
    main()
