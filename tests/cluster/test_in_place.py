"""Tasks that write into their inputs, as Dask users do: right results, and nobody else sees it."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

X = np.arange(200_000.0).reshape(400, 500) - 1000  # 800 kB in each of two chunks
FRAME = pd.DataFrame({"a": np.arange(60_000) - 100, "x": np.arange(60_000) * 0.5})


def add_one(x):
    x += 1
    return x


def clip(x):
    x[x < 0] = 0
    return x


def backwards(x):
    x.sort(axis=0)
    return x[::-1]


def into_itself(x):
    np.multiply(x, 2, out=x)
    return x


ARRAYS = [add_one, clip, backwards, into_itself]


@pytest.mark.parametrize("function", ARRAYS)
def test_numpy_in_map_blocks(function) -> None:
    x = da.from_array(X, chunks=(400, 250)).persist()
    changed, total = x.map_blocks(function, dtype=float), x.sum()
    expected = np.concatenate([function(X[:, :250].copy()), function(X[:, 250:].copy())], axis=1)
    found, after = dask.compute(changed, total)
    np.testing.assert_array_equal(found, expected)
    assert after == X.sum()
    np.testing.assert_array_equal(x.compute(), X)  # what is kept has not changed


def new_column(df):
    df["y"] = df.x * 2
    return df


def some_rows(df):
    df.loc[df.a < 0, "x"] = -1.0
    return df


def one_cell(df):
    df.iloc[0, 0] = 7
    return df


def values_of_a_column(df):
    df["x"].to_numpy()[:3]  # a view, read
    values = df["x"].values.copy()
    values[...] = 5
    df["x"] = values
    return df


def in_place(df):
    df.drop(columns="a", inplace=True)
    df.sort_values("x", ascending=False, inplace=True)
    return df


def other_names(df):
    df.columns = ["b", "z"]
    return df


FRAMES = [new_column, some_rows, one_cell, values_of_a_column, in_place, other_names]


@pytest.mark.parametrize("function", FRAMES)
@pytest.mark.filterwarnings("ignore")
def test_pandas_in_map_partitions(function) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=2).persist()
    parts = [ddf.partitions[i].compute() for i in range(2)]
    expected = pd.concat([function(part.copy()) for part in parts])
    changed = ddf.map_partitions(function, meta=expected.iloc[:0])
    found, total = dask.compute(changed, ddf.x.sum())
    pd.testing.assert_frame_equal(found, expected)
    assert total == FRAME.x.sum()
    pd.testing.assert_frame_equal(ddf.compute(), FRAME)


def test_memory_of_a_column() -> None:
    def overwrite(df):
        np.asarray(df["x"].array)[:] = 5.0
        return df

    ddf = dd.from_pandas(FRAME, npartitions=2).persist()
    try:
        found = ddf.map_partitions(overwrite, meta=FRAME.iloc[:0]).compute()
    except ValueError as error:  # pandas itself forbids it where copy-on-write is on
        assert "read-only" in str(error)  # noqa: PT017
    else:
        assert set(found.x) <= {5.0, *FRAME.x}
    pd.testing.assert_frame_equal(ddf.compute(), FRAME)


def grow(items):
    items.append("more")
    items[0]["seen"] = True
    return len(items)


def look(items):
    return [dict(item) if isinstance(item, dict) else item for item in items]


@pytest.mark.parametrize("size", [1, 100_000])
def test_containers_that_several_tasks_read(size) -> None:
    made = [{"n": 0, "blob": "x" * size}, {"n": 1}]
    shared = dask.delayed(lambda: [dict(item) for item in made])()
    tasks = [dask.delayed(grow)(shared) for _ in range(20)] + [
        dask.delayed(look)(shared) for _ in range(20)
    ]
    found = dask.compute(*tasks)
    assert found[:20] == (3,) * 20
    assert all(items == made for items in found[20:])


def test_arrays_that_several_small_tasks_write_to() -> None:
    shared = dask.delayed(np.zeros)(10)
    tasks = [dask.delayed(lambda x, i: float(add_one(x).sum()) + i)(shared, i) for i in range(50)]
    assert dask.compute(*tasks) == tuple(10.0 + i for i in range(50))


def test_bags() -> None:
    def tag(items):
        items = list(items)
        for item in items:
            item["tag"] = item["n"] % 2
        return items

    bag = db.from_sequence([{"n": i} for i in range(1000)], npartitions=3).persist()
    assert bag.map_partitions(tag).pluck("tag").sum().compute() == 500
    assert bag.compute() == [{"n": i} for i in range(1000)]


def test_scipy() -> None:
    signal = pytest.importorskip("scipy.signal")
    ndimage = pytest.importorskip("scipy.ndimage")
    x = da.from_array(X, chunks=(400, 250)).persist()

    def both(block):
        return ndimage.gaussian_filter(signal.detrend(block, overwrite_data=True), 1, output=block)

    def filtered(block):
        both(block)
        return block

    expected = np.concatenate([filtered(X[:, :250].copy()), filtered(X[:, 250:].copy())], axis=1)
    np.testing.assert_allclose(x.map_blocks(filtered, dtype=float).compute(), expected)
    np.testing.assert_array_equal(x.compute(), X)


def test_scikit_learn() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    cluster = pytest.importorskip("sklearn.cluster")
    x = da.from_array(X, chunks=(200, 500)).persist()

    def scaled(block):
        return preprocessing.StandardScaler(copy=False).fit_transform(block)

    def labels(block):
        model = cluster.KMeans(2, n_init=1, random_state=0, copy_x=False)
        return model.fit_predict(block)[:, None].astype(float)

    expected = np.concatenate([scaled(X[:200].copy()), scaled(X[200:].copy())])
    np.testing.assert_allclose(x.map_blocks(scaled, dtype=float).compute(), expected)
    expected = np.concatenate([labels(X[:200].copy()), labels(X[200:].copy())])
    found = x.map_blocks(labels, dtype=float, chunks=((200, 200), (1,))).compute()
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(x.compute(), X)
