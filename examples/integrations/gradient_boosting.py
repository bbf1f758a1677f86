"""Train a model of XGBoost on all workers, from a Dask dataframe. Needs xgboost."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
from xgboost import dask as dxgb

import dask_exo


def main() -> float:
    """Share of rows whose label is predicted."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(4_000, 3)), columns=["a", "b", "c"])
    rows["label"] = (rows.a * rows.b > 0).astype(int)
    with dask_exo.Client(num_cpus=2, object_store_memory="500MB") as client:
        ddf = dd.from_pandas(rows, npartitions=4).persist()
        inputs, label = ddf[["a", "b", "c"]], ddf.label
        data = dxgb.DaskDMatrix(client, inputs, label)
        trained = dxgb.train(
            client, {"objective": "binary:logistic", "max_depth": 4}, data, num_boost_round=20
        )
        found = dxgb.predict(client, trained, inputs).compute() > 0.5
    right = float((np.asarray(found) == rows.label.to_numpy()).mean())
    assert right > 0.9, right
    return right


if __name__ == "__main__":
    print(f"{main():.1%} are right")
