"""Shuffles that Dask has made a graph of, on real Ray, against pandas, numpy and plain Python."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.report import recording

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.fixture(params=["simple", "push"], autouse=True)
def algorithm(request):
    with dask.config.set({"exo.shuffle.algorithm": request.param}):
        yield


@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_a_bag_is_grouped_without_a_file(method, tmp_path) -> None:
    class Word:  # which the workers cannot import
        def __init__(self, text: str) -> None:
            self.text = text

    words = [f"w{i % 17}" for i in range(2000)]
    with dask.config.set(temporary_directory=str(tmp_path)):
        bag = db.from_sequence(words, npartitions=40).map(Word)
        grouped = bag.groupby(lambda word: len(word.text), shuffle=method)
        with recording() as stats:
            got = grouped.map(lambda kv: (kv[0], [word.text for word in kv[1]])).compute()
    assert dict(got) == {n: [w for w in words if len(w) == n] for n in (2, 3)}
    assert len(stats.shuffles) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["f8", "O"])
def test_an_array_is_rechunked(dtype) -> None:
    values = np.arange(300 * 200).reshape(300, 200).astype(dtype)
    with dask.config.set({"array.rechunk.method": "p2p", "array.chunk-size": "1B"}):
        x = da.from_array(values, chunks=(30, 200)).rechunk((300, 33))
    with recording() as stats:
        got = (x + 1).compute()
    np.testing.assert_array_equal(got, values + 1)
    assert stats.shuffles
    part = x.blocks[0, 1].map_blocks(_write, dtype=dtype).compute()
    np.testing.assert_array_equal(part, np.zeros((300, 33)))


def _write(chunk):
    chunk[:] = 0
    return chunk


def test_delayed_partitions_of_merged_frames() -> None:
    rng = np.random.default_rng(0)
    left = pd.DataFrame({"k": rng.integers(0, 100, 3000), "a": rng.random(3000)})
    right = pd.DataFrame({"k": rng.integers(0, 100, 500), "b": rng.random(500)})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        merged = dd.from_pandas(left, npartitions=7).merge(
            dd.from_pandas(right, npartitions=3), on="k", broadcast=False
        )
        parts = merged.to_delayed()
    with recording() as stats:
        got = dask.delayed(pd.concat)(list(parts)).compute()
    expected = left.merge(right, on="k")
    columns = list(expected.columns)
    pd.testing.assert_frame_equal(
        got.sort_values(columns, ignore_index=True),
        expected.sort_values(columns, ignore_index=True),
    )
    assert len(stats.shuffles) == 2
