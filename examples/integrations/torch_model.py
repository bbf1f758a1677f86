"""Apply a model of PyTorch on a GPU, between stages on CPUs; without a GPU, on a CPU. Needs torch.

On a GPU the model reads columns of CuPy without a copy, and returns a column without one.
"""

from __future__ import annotations

from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import torch

import dask_exo
from dask_exo.partitions.gpu import arrays

LENGTH, SIGNALS = 64, 4_000
if not arrays.devices():  # numpy in place of cupy, and a slot that stands for a GPU
    dask.config.set({"exo.gpu.simulate": True})


def signals(frame: pd.DataFrame) -> pd.DataFrame:
    """Make waves, every other one with twice as many crests: a row for each sample."""
    crests = 4 + 4 * (frame.number.to_numpy() % 2)
    waves = np.sin(np.outer(crests, np.linspace(0, 2 * np.pi, LENGTH, endpoint=False)))
    return pd.DataFrame({"signal": waves.ravel().astype(np.float32)})


class Model:
    """Convolution and pooling: the mean of squared differences; a real one loads its weights."""

    def __init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.kernel = torch.tensor([[[-1.0, 1.0]]], device=self.device)

    def __call__(self, frame: Any) -> Any:
        rows = torch.from_dlpack(frame["signal"].values).reshape(-1, 1, LENGTH)
        with torch.inference_mode():
            steep = torch.nn.functional.conv1d(rows, self.kernel).square().mean(dim=(1, 2))
        scores = type(frame).from_pandas(pd.DataFrame({"n": range(len(steep))}), frame.module)
        return scores.assign(steep=arrays.module(frame.module).from_dlpack(steep))


def main() -> float:
    """Share of waves that are recognized."""
    numbers = dd.from_pandas(pd.DataFrame({"number": np.arange(SIGNALS)}), npartitions=8)
    with dask_exo.enable(num_cpus=2):
        decoded = numbers.exo.pipeline().map_partitions(signals)
        scored = decoded.map_batches(Model, format="device", num_cpus=0)
        chosen = scored.map_partitions(lambda frame: frame.assign(many=frame.steep > 0.2))
        found = pd.concat(chosen.iter_batches())
    right = (found.many == (found.n % 2 == 1)).mean()
    assert right == 1.0, right
    return float(right)


if __name__ == "__main__":
    print(f"{main():.1%} are recognized")
