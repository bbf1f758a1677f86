"""Two processes train one model on rows that lie sorted by their label.

After each epoch their weights are averaged. python examples/training.py
"""

from __future__ import annotations

from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_exo
from dask_exo.training import Epochs

EPOCHS, TRAINERS, RATE = 3, 2, 0.5
State = dict[str, Any]


def points(rows: int) -> pd.DataFrame:
    """Points on two sides of a line, all of one side first."""
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["x", "y"])
    side = (data.x + 2 * data.y + 0.3 * rng.normal(size=rows) > 0).astype(int)
    return data.assign(side=side).sort_values("side", ignore_index=True)


def predicted(weights: np.ndarray, batch: Any) -> tuple[np.ndarray, np.ndarray]:
    """How likely each point is on the second side, and the inputs that say so."""
    X = np.column_stack([batch["x"], batch["y"], np.ones(len(batch["x"]))])
    return 1 / (1 + np.exp(-X @ weights)), X


def train(weights: np.ndarray, batches: Epochs, state: State | None) -> tuple[np.ndarray, State]:
    """One epoch of a logistic regression, in a process of its own."""
    if state is not None:
        batches.load_state_dict(state)
    for batch in batches:
        likely, X = predicted(weights, batch)
        weights = weights - RATE * X.T @ (likely - batch["side"]) / len(X)
        if batches.batches == batches.steps:
            break
    return weights, batches.state_dict()


def main(rows: int = 200_000) -> float:
    """Share of points on the right side."""
    test = points(rows)
    ddf = dd.from_pandas(test, npartitions=8)
    weights = np.zeros(3)
    states: list[State | None] = [None] * TRAINERS
    with dask_exo.Client(num_cpus=2, object_store_memory="500MB") as client:
        trainers = ddf.exo.epochs(EPOCHS, 1000, seed=1, split=TRAINERS, format="numpy")
        for epoch in range(EPOCHS):
            with dask.annotate(num_cpus=0):  # slots are for the shuffle of the next epoch
                futures = client.map(train, [weights] * TRAINERS, trainers, states, pure=False)
            trained, states = zip(*client.gather(futures), strict=True)
            weights = np.mean(trained, axis=0)
            right = float(np.mean((predicted(weights, test)[0] > 0.5) == test.side))
            print(f"epoch {epoch}: {right:.1%} are right")
    return right


if __name__ == "__main__":
    main()
