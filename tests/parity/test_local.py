"""Small computations run on threads of this process: right for whatever a cell may hold."""

from __future__ import annotations

import decimal
from collections import Counter

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.dask_expr._shuffle import DiskShuffle
from pandas.testing import assert_frame_equal

import dask_exo

ROWS = 600
COLUMNS = {
    "lists": [[i, i + 1] for i in range(ROWS)],
    "dicts": [{"a": i} for i in range(ROWS)],
    "sets": [{i} for i in range(ROWS)],
    "nested": [{"a": [i, (i, {"b": None})]} for i in range(ROWS)],
    "tuples": [(i, str(i)) for i in range(ROWS)],
    "arrays": [np.arange(i % 3) for i in range(ROWS)],
    "bytes": [bytes([i % 256]) for i in range(ROWS)],
    "decimals": [decimal.Decimal(i) / 4 for i in range(ROWS)],
    "mixed": [i if i % 2 else str(i) for i in range(ROWS)],
    "missing": [None if i % 5 == 0 else [i] for i in range(ROWS)],
    "strings": pd.array([f"é{i}" for i in range(ROWS)], dtype="str"),
    "nullable": pd.array([pd.NA if i % 5 == 0 else i for i in range(ROWS)], dtype="Int64"),
    "booleans": pd.array([pd.NA if i % 5 == 0 else i % 2 > 0 for i in range(ROWS)], "boolean"),
    "categories": pd.Categorical([str(i % 7) for i in range(ROWS)]),
    "times": pd.date_range("2020", periods=ROWS, tz="Europe/Paris"),
    "periods": pd.period_range("2000", periods=ROWS, freq="D"),
    "arrow lists": pd.array(
        [[i, i + 1] for i in range(ROWS)], dtype=pd.ArrowDtype(pa.list_(pa.int64()))
    ),
    "arrow structs": pd.array(
        [{"a": i} for i in range(ROWS)], dtype=pd.ArrowDtype(pa.struct([("a", pa.int64())]))
    ),
}


@pytest.fixture(autouse=True)
def threads():
    with dask.config.set(
        {
            "scheduler": dask_exo.get,
            "exo.engine": "local",
            "dataframe.convert-string": False,
        }
    ):
        yield


def frame(name: str = "lists") -> pd.DataFrame:
    column = COLUMNS[name]
    if isinstance(column, list):
        column = pd.Series(column, dtype=object)
    return pd.DataFrame({"k": np.arange(ROWS) * 7 % 97, "n": np.arange(ROWS), "o": column})


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compare, whatever the order of rows; types inside of cells count."""
    found = found.sort_values("n").reset_index(drop=True)
    expected = expected.sort_values("n").reset_index(drop=True)
    assert_frame_equal(found, expected)
    assert list(map(repr, found.o)) == list(map(repr, expected.o))


@pytest.mark.parametrize("name", COLUMNS)
def test_every_kind_of_cell_is_shuffled(name: str) -> None:
    df = frame(name)
    ddf = dd.from_pandas(df, npartitions=5)
    same(ddf.shuffle("k", npartitions=4).compute(), df)
    same(ddf.set_index("k").reset_index().compute()[df.columns], df)
    ends = pd.DataFrame({"k": range(50), "m": range(50)})
    merged = ddf.merge(dd.from_pandas(ends, npartitions=3), on="k", shuffle_method="disk")
    same(merged.compute(), df.merge(ends, on="k"))


@pytest.mark.parametrize("method", ["tasks", "disk", "p2p", None])
def test_no_method_of_dask_shuffles_by_disk(method, monkeypatch) -> None:
    monkeypatch.setattr(DiskShuffle, "_layer", lambda self: pytest.fail("a disk shuffle ran"))
    df = frame()
    with dask.config.set({"dataframe.shuffle.method": method}):
        same(dd.from_pandas(df, npartitions=5).shuffle("k").compute(), df)


def test_other_collections_are_shuffled_too() -> None:
    bag = db.from_sequence(range(40), npartitions=4)
    for method in ("tasks", "disk"):
        groups = dict(bag.groupby(lambda i: i % 3, shuffle=method).compute())
        assert {key: sorted(items) for key, items in groups.items()} == {
            key: [i for i in range(40) if i % 3 == key] for key in range(3)
        }
    array = da.arange(64, chunks=8).reshape(8, 8)
    with dask.config.set({"array.rechunk.method": "p2p"}):
        assert array.rechunk((8, 2)).compute().tolist() == np.arange(64).reshape(8, 8).tolist()


def test_a_frame_is_persisted_and_shuffled_again() -> None:
    df = frame()
    kept = dd.from_pandas(df, npartitions=5).shuffle("k").persist()
    same(kept.shuffle("n", npartitions=3).compute(), df)


def test_what_is_joined_with_every_partition_is_computed_once() -> None:
    calls = Counter[str]()

    def table(name: str, rows: int, npartitions: int) -> dd.DataFrame:
        def count(part: pd.DataFrame) -> pd.DataFrame:
            calls[name] += 1
            return part

        df = pd.DataFrame({"k": np.arange(rows) % 10, name: 1.0})
        return dd.from_pandas(df, npartitions=npartitions).map_partitions(count, meta=df[:0])

    colors = table("colors", 10, 1).rename(columns={"colors": "color"})
    shapes = table("shapes", 40, 2).repartition(npartitions=1).merge(colors, on="k")
    joined = table("items", 600, 6).merge(shapes, on="k")
    joined.groupby(["k", "color"]).items.sum(split_out=3).compute()
    assert calls == {"items": 6, "shapes": 2, "colors": 1}
