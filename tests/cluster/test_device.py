"""Frames on a simulated device, on real Ray, against pandas."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def test_they_are_sorted_joined_and_grouped() -> None:
    random = np.random.default_rng(1)
    words = pd.array(["a", "b", "cc", "é", None], dtype="string[pyarrow]")
    frame = pd.DataFrame(
        {
            "k": random.integers(0, 40, 20_000),
            "f": random.random(20_000).round(6),
            "s": words.take(random.integers(0, 5, 20_000)),
        }
    )
    names = pd.DataFrame({"k": range(30), "z": np.arange(30) * 0.5})
    with dask.config.set({"exo.gpu.simulate": True}):
        there = dd.from_pandas(frame, npartitions=4).exo.to_gpu()
        other = dd.from_pandas(names, npartitions=2).exo.to_gpu()
    found = dask.compute(
        there.exo.sort_values(["s", "f"]).exo.to_pandas(),
        there.merge(other, on="k", broadcast=False).exo.to_pandas(),
        there.groupby(["k", "s"]).f.sum(split_out=2).exo.to_pandas(),
    )
    pd.testing.assert_frame_equal(found[0], frame.sort_values(["s", "f"], kind="stable"))
    joined = (
        df.sort_values(["k", "f"]).reset_index(drop=True) for df in (found[1], frame.merge(names))
    )
    pd.testing.assert_frame_equal(*joined)
    pd.testing.assert_series_equal(found[2].sort_index(), frame.groupby(["k", "s"]).f.sum())
