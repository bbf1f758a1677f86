"""Train a model of PyTorch on batches in a new random order each epoch. Needs torch."""

from __future__ import annotations

from collections.abc import Iterator

import dask.dataframe as dd
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, IterableDataset

import dask_exo
from dask_exo.training import Epochs


class Batches(IterableDataset):
    """The batches of one epoch, as tensors; `DataLoader` passes them on."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self._epochs:
            inputs = np.column_stack([batch["x"], batch["y"]]).astype(np.float32)
            yield torch.from_numpy(inputs), torch.from_numpy(batch["side"].astype(np.float32))
            if self._epochs.batches == self._epochs.steps:
                return


def main(epochs: int = 3) -> float:
    """Share of points on the right side of the line."""
    rng = np.random.default_rng(0)
    points = pd.DataFrame(rng.normal(size=(50_000, 2)), columns=["x", "y"])
    points["side"] = (points.x + 2 * points.y > 0).astype(np.int64)
    ddf = dd.from_pandas(points.sort_values("side", ignore_index=True), npartitions=8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with dask_exo.enable(num_cpus=2, object_store_memory="500MB"):
        batches = Batches(ddf.exo.epochs(epochs, 1000, seed=1, format="numpy"))
        for epoch in range(epochs):
            for inputs, side in DataLoader(batches, batch_size=None):
                found = model(inputs.to(device)).squeeze(1)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(found, side.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    inputs = torch.tensor(points[["x", "y"]].to_numpy(np.float32), device=device)
    right = ((model(inputs).squeeze(1) > 0).cpu().numpy() == points.side).mean()
    assert right > 0.95, right
    return float(right)


if __name__ == "__main__":
    print(f"{main():.1%} are right")
