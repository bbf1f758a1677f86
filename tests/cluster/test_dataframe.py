"""What people do with dataframes, on real Ray, against pandas, whatever shuffle is configured.

``EXO_TEST_BYTES=1GB pytest tests/cluster/test_dataframe.py`` does it at size.
"""

from __future__ import annotations

import os

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.utils import parse_bytes
from pandas.util import hash_pandas_object

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

ROWS = parse_bytes(os.environ.get("EXO_TEST_BYTES", "4MB")) // 40
KEYS = ["i", "f", "s", "low"]


def make(rows: int, seed: int) -> pd.DataFrame:
    """Rows of 40 bytes or so: integers, floats, strings of high and low cardinality, a time."""
    rng = np.random.default_rng(seed)
    i = rng.integers(0, rows // 4 + 1, rows)
    return pd.DataFrame(
        {
            "i": i,
            "f": rng.random(rows).round(6),
            "s": pd.Series([f"user-{n:05d}" for n in range(1009)]).take(i % 1009).array,
            "low": pd.Series(list("abcdefg")).take(rng.integers(0, 7, rows)).array,
            "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 10**6, rows), "s"),
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("data")
    for name, rows, seed in (("left", ROWS, 1), ("right", ROWS // 4, 2)):
        with dask.config.set(scheduler="threads"):
            partitions = max(8, rows // 500_000)
            dd.from_pandas(make(rows, seed), npartitions=partitions).to_parquet(root / name)
    return {name: str(root / name) for name in ("left", "right")}


@pytest.fixture(params=["tasks", "disk", "p2p"])
def frames(request, files):
    with dask.config.set({"dataframe.shuffle.method": request.param}):
        ddf, other = (dd.read_parquet(files[name]) for name in ("left", "right"))
        yield ddf, pd.read_parquet(files["left"]), other, pd.read_parquet(files["right"])


def same(got: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Equal rows in any order, equal dtypes: sorted row by row, or at size by their hashes."""
    got, expected = (x.reset_index(drop=True) for x in (got, expected))
    pd.testing.assert_frame_equal(got.iloc[:0], expected.iloc[:0])
    if len(expected) > 10**6:
        hashes = (hash_pandas_object(x, index=False).to_numpy() for x in (got, expected))
        assert np.array_equal(*map(np.sort, hashes))
        return
    by = list(expected.columns)
    got, expected = (x.sort_values(by).reset_index(drop=True) for x in (got, expected))
    pd.testing.assert_frame_equal(got, expected)


def test_shuffle_brings_equal_keys_together(frames) -> None:
    ddf, df, _, _ = frames
    shuffled = ddf.shuffle("s")
    same(shuffled.compute(), df)
    homes = shuffled.map_partitions(lambda part: part[["s"]].drop_duplicates(), meta={"s": "str"})
    assert homes.compute()["s"].is_unique


def test_set_index(frames) -> None:
    ddf, df, _, _ = frames
    got = ddf.set_index("i").compute()
    assert got.index.is_monotonic_increasing
    same(got.reset_index()[df.columns], df)


def test_sort_values(frames) -> None:
    ddf, df, _, _ = frames
    got = ddf.sort_values(["f", "i"]).map_partitions(lambda part: part).compute()
    pd.testing.assert_frame_equal(
        got[["f", "i"]].reset_index(drop=True),
        df.sort_values(["f", "i"])[["f", "i"]].reset_index(drop=True),
    )
    same(got, df)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_merge(frames, how: str) -> None:
    ddf, df, other, small = frames
    columns = ["i", "f"]
    got = ddf[columns].merge(other[columns], on="i", how=how, broadcast=False).compute()
    same(got, df[columns].merge(small[columns], on="i", how=how))


def test_frequent_keys_of_outer_joins_and_groups(files) -> None:
    ddf, df = dd.read_parquet(files["left"]), pd.read_parquet(files["left"])
    ddf, df = (x[["low", "f"]].assign(k=x.i.where(x.i < 20, 7)) for x in (ddf, df))
    few = df.drop_duplicates("k").assign(k=lambda x: x.k + 3)[["k", "f"]]
    got = dd.from_pandas(few, npartitions=8).exo.merge(ddf, "outer", on="k").compute()
    same(got, few.merge(df, "outer", on="k"))
    spec = {"low": ["nunique"], "f": ["median", "max"]}
    got = ddf.exo.groupby("k").agg(spec).compute().sort_index()
    pd.testing.assert_frame_equal(got, df.groupby("k").agg(spec))


def test_groupby_agg_with_many_outputs(frames) -> None:
    ddf, df, _, _ = frames
    spec = {"f": ["sum", "mean", "count"], "t": ["max"]}
    got = ddf.groupby("i").agg(spec, split_out=4).compute().sort_index()
    pd.testing.assert_frame_equal(got, df.groupby("i").agg(spec).sort_index())


def test_groupby_apply(frames) -> None:
    ddf, df, _, _ = frames
    meta = pd.Series(dtype="f8")
    got = ddf[["s", "f"]].groupby("s").apply(lambda g: g["f"].max() - g["f"].min(), meta=meta)
    expected = df[["s", "f"]].groupby("s").apply(lambda g: g["f"].max() - g["f"].min())
    pd.testing.assert_series_equal(got.compute().sort_index(), expected, check_names=False)


def test_drop_duplicates(frames) -> None:
    ddf, df, _, _ = frames
    got = ddf[["i", "low"]].drop_duplicates(split_out=4).compute()
    same(got, df[["i", "low"]].drop_duplicates())


CELLS = {
    "lists": lambda i: [i, i + 1],
    "dicts": lambda i: {"a": i},
    "nested": lambda i: {"a": [i, (i, {"b": None})]},
    "sets": lambda i: {i},
}


@pytest.mark.parametrize("cells", CELLS)
def test_object_columns_are_equal_on_ray_and_threads(cells) -> None:
    column = pd.Series([CELLS[cells](i) for i in range(1000)], dtype=object)
    df = pd.DataFrame({"k": np.arange(1000) * 7 % 97, "n": range(1000), "o": column})
    found = []
    for engine in ("ray", "local"):
        with dask.config.set({"dataframe.convert-string": False, "exo.engine": engine}):
            ddf = dd.from_pandas(df, npartitions=5)
            found.append([ddf.shuffle("k").compute(), ddf.set_index("k").reset_index().compute()])
    for on_ray, in_threads in zip(*found, strict=True):
        for one in (on_ray, in_threads):
            rows = one.sort_values("n").reset_index(drop=True)
            pd.testing.assert_frame_equal(rows[df.columns], df)
            assert list(map(repr, rows.o)) == list(map(repr, df.o))
