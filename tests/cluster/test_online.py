"""What is looked at while it runs, on real Ray: streams of shuffles, and online aggregation."""

from __future__ import annotations

from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray

from dask_exo import shuffle

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def views(rows: int = 20_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"lang": rng.zipf(1.5, rows).clip(max=20), "views": range(rows)})


def summed(frame: pd.DataFrame) -> list[pd.Series]:
    sums = frame.groupby("lang").views.sum()
    return [sums[sums.index % 3 == r] for r in range(3)]


def add(*sums: pd.Series) -> pd.Series:
    return pd.concat(sums).groupby(level=0).sum()


def test_each_look_at_a_stream_is_the_result_of_the_parts_so_far() -> None:
    whole = views()
    parts = [whole.iloc[i::10] for i in range(10)]
    program = shuffle.Program(3, summed, add, add)
    stops = []
    for seen in shuffle.stream(parts, program, every=3):
        stops.append(seen.parts)
        found = pd.concat(ray.get(seen.outputs)).sort_index()
        expected = pd.concat(parts[: seen.parts]).groupby("lang").views.sum()
        pd.testing.assert_series_equal(found, expected)
    assert stops == [3, 6, 9, 10]


def test_online_aggregation_ends_with_the_exact_result() -> None:
    ddf = dd.from_pandas(views(), npartitions=30)
    spec = {"views": ["sum", "min", "mean", "var", "nunique"]}
    shares = []
    for estimate in ddf.exo.groupby("lang").agg_online(spec, every=0.2):
        shares.append(estimate.share)
    assert shares == pytest.approx([1 / 30, 2 / 30, 3 / 30, 4 / 30, 0.2, 0.4, 0.6, 0.8, 1.0])
    expected = views().groupby("lang").agg(spec)
    pd.testing.assert_frame_equal(estimate.frame.sort_index(), expected, check_dtype=False)


def test_who_has_seen_enough_leaves_the_others_undone(tmp_path: Path) -> None:
    def make(i: int) -> pd.DataFrame:
        (tmp_path / str(i)).touch()
        return views(100)

    ddf = dd.from_map(make, range(200), meta=views(1))
    looks = ddf.exo.groupby("lang").agg_online({"views": "count"}, every=4)
    assert next(looks).share == 1 / 200
    looks.close()
    assert len(list(tmp_path.iterdir())) <= 3 * 4  # at most three rounds
