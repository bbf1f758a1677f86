"""A groupby whose partitions are not grouped where that makes nothing smaller."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal, assert_series_equal

from dask_exo import Scheduler
from dask_exo.partitions.kernels import groupby
from dask_exo.testing import InlineFutures

EXO = Scheduler(InlineFutures())
ROWS = 50_000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    df = pd.DataFrame(
        {
            "key": rng.integers(0, 200_000, ROWS),
            "few": rng.integers(0, 100, ROWS),
            "name": pd.array([f"é{i}" for i in rng.integers(0, 200_000, ROWS)], dtype="str"),
            "x": rng.random(ROWS),
            "f": rng.random(ROWS).astype("float32"),
            "i": rng.integers(-5, 5, ROWS).astype("int32"),
            "b": rng.random(ROWS) < 0.5,
            "t": pd.Timestamp("2020") + pd.to_timedelta(rng.integers(0, 10**6, ROWS), unit="s"),
            "s": pd.array(rng.choice(["a", "b", "c"], ROWS), dtype="str"),
            "n": pd.array(rng.integers(0, 9, ROWS), dtype="Int64"),
        }
    )
    df.loc[::7, "x"] = np.nan
    df.loc[::11, ["n", "s"]] = pd.NA
    df.loc[::4000, "name"] = None
    return df


@pytest.fixture
def ungrouped(monkeypatch) -> list[str]:
    """What is made of columns that are not grouped."""
    seen: list[str] = []
    original = groupby._ungrouped

    def see(frame, source, method):
        seen.append(method)
        return original(frame, source, method)

    monkeypatch.setattr(groupby, "_ungrouped", see)
    return seen


OUT = {"split_out": 3}
ALL = {
    "x": ["sum", "mean", "var", "count"],
    "f": ["sum", "prod"],
    "i": ["max", "sum", "std"],
    "b": ["sum", "max"],
    "t": ["min", "max"],
    "s": ["max", "count"],
    "n": ["sum", "min"],
}
SPARED = {
    "many functions": lambda d, **k: d.groupby("key").agg(ALL, **k),
    "strings with nulls": lambda d, **k: d.groupby("name").agg({"x": "sum", "n": "max"}, **k),
    "nulls kept": lambda d, **k: d.groupby("name", dropna=False).agg({"x": "sum"}, **k),
    "two keys": lambda d, **k: d.groupby(["few", "key"]).agg({"x": ["sum", "mean"]}, **k),
    "a column": lambda d, **k: d.groupby("key").x.sum(**k),
    "columns": lambda d, **k: d.groupby("key")[["x", "i"]].sum(**k),
    "all columns": lambda d, **k: d.groupby(["key", "few"]).min(**k),
    "count": lambda d, **k: d.groupby("key").count(**k),
    "mean": lambda d, **k: d.groupby("key")[["x", "i"]].mean(**k),
}
GROUPED = {
    "few keys": lambda d, **k: d.groupby("few").agg({"x": "sum"}, **k),
    "nullable keys": lambda d, **k: d.groupby("n", dropna=False).x.sum(**k),
    "a key that is no column": lambda d, **k: d.x.groupby(d.key).sum(**k),
    "an expression": lambda d, **k: d.groupby(d.key % 100_000).x.sum(**k),
    "first": lambda d, **k: d.groupby("key").agg({"x": "first"}, **k),
    "a list": lambda d, **k: d.groupby("few").agg({"i": list}, **k),
    "size": lambda d, **k: d.groupby("key").size(**k),
    "numbers only": lambda d, **k: d.groupby("key").sum(numeric_only=True, **k),
}


def same(got, expected) -> None:
    by = list(range(expected.index.nlevels))
    check = assert_frame_equal if expected.ndim == 2 else assert_series_equal
    check(got.sort_index(level=by), expected.sort_index(level=by), rtol=1e-5)


@pytest.mark.parametrize("name", [*SPARED, *GROUPED])
def test_groups_are_those_of_dask(name, frame, ungrouped) -> None:
    query = {**SPARED, **GROUPED}[name]
    ddf = dd.from_pandas(frame, npartitions=3, sort=False)
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        expected = query(ddf, **OUT).compute()
    got = query(ddf, **OUT).compute(scheduler=EXO)
    same(got, expected)
    assert bool(ungrouped) == (name in SPARED)


@pytest.mark.parametrize("name", ["many functions", "two keys"])
def test_functions_keep_the_order_of_groups(name, frame, ungrouped) -> None:
    """`agg` sorts neither partial groups nor groups."""
    ddf = dd.from_pandas(frame, npartitions=3, sort=False)
    with dask.config.set({"scheduler": "sync", "dataframe.shuffle.method": "tasks"}):
        expected = SPARED[name](ddf, **OUT).compute()
    got = SPARED[name](ddf, **OUT).compute(scheduler=EXO)
    assert ungrouped
    assert got.index.equals(expected.index)


NUMBERS = np.random.default_rng(3).integers(0, 100, 20_000)
NULLABLE = ["boolean", "Int8", "UInt16", "Int64", "Float32", "Float64", "string"]
ARROW = ["bool", "int8", "uint16", "int64", "float32", "float64", "string", "large_string"]
METHODS = ["sum", "prod", "mean", "min", "max", "count", "var", "size", "first", "nunique"]


def column(dtype: str) -> pd.Series:
    """Numbers of a dtype, of which some are missing."""
    values = pd.Series(NUMBERS % 2 == 1 if "bool" in dtype else NUMBERS)
    if dtype in NULLABLE:
        values = values.astype(dtype)
    elif dtype == "decimal":
        values = values.astype(pd.ArrowDtype(pa.decimal128(21, 2)))
    else:
        text = values.astype(str) if "string" in dtype else values
        values = text.astype(pd.ArrowDtype(getattr(pa, {"bool": "bool_"}.get(dtype, dtype))()))
    return values.mask(NUMBERS % 7 == 0)


@pytest.mark.parametrize("dtype", [*NULLABLE, *ARROW, "decimal"])
def test_every_dtype_that_has_missing_values(dtype) -> None:
    df = pd.DataFrame({"k": np.arange(len(NUMBERS)), "B": column(dtype)})
    assert df.B.isna().any()
    groups = dd.from_pandas(df, npartitions=2).groupby("k", sort=False).B
    for method in METHODS:
        try:
            query = getattr(groups, method)(**OUT)
            expected = query.compute(scheduler="sync")
        except (TypeError, ValueError, NotImplementedError):  # not for this dtype
            continue
        same(query.compute(scheduler=EXO), expected)


def test_an_expression_that_was_fused_before(frame, ungrouped) -> None:
    ddf = dd.from_pandas(frame, npartitions=3, sort=False)
    query = ddf[ddf.x > 0.1].groupby("key").agg({"x": "sum"}, **OUT)
    got = query.optimize(fuse=True).compute(scheduler=EXO)
    same(got, frame[frame.x > 0.1].groupby("key").agg({"x": "sum"}))
    assert ungrouped


def test_each_partition_decides_for_itself(frame, ungrouped) -> None:
    df = frame[["key", "x"]].copy()
    df.loc[: ROWS // 2, "key"] = 7
    ddf = dd.from_pandas(df, npartitions=2, sort=False)
    got = ddf.groupby("key").agg({"x": "sum"}, **OUT).compute(scheduler=EXO)
    same(got, df.groupby("key").agg({"x": "sum"}))
    assert ungrouped == ["sum"]


def test_a_function_that_pandas_refuses_is_refused(frame) -> None:
    ddf = dd.from_pandas(frame, npartitions=3, sort=False)
    query = ddf.groupby("key")["t"]
    with pytest.raises(TypeError, match="datetime64"):
        query.sum(**OUT).compute(scheduler=EXO)


def test_a_single_partition_is_as_it_was(frame, ungrouped) -> None:
    ddf = dd.from_pandas(frame, npartitions=1)
    got = ddf.groupby("key").x.sum().compute(scheduler=EXO)
    same(got, frame.groupby("key").x.sum())
    assert not ungrouped
