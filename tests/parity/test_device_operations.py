"""Operations of Dask's dataframes on partitions of a device, which are those of pandas.

The names are those of the table in ``docs/gpu.md``; a test holds both together.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo  # noqa: F401  the backend
from dask_exo.errors import DeviceOperationError
from dask_exo.partitions.gpu_frames import DeviceFrame, DeviceIndex, DeviceSeries
from tests._data import SIMULATED

ROWS = 48
KINDS = (DeviceFrame, DeviceSeries, DeviceIndex)
Frame = Any


def plain(df: pd.DataFrame) -> pd.DataFrame:
    """In the dtypes that Dask has."""
    return dd.from_pandas(df, npartitions=1).compute(scheduler="sync")


def rows() -> pd.DataFrame:
    random = np.random.default_rng(7)
    words = np.array(["fig", "apple", "Date", "", "kiwi é", "zoo"])
    gone = random.random((4, ROWS)) < 0.2
    return pd.DataFrame(
        {
            "k": random.integers(0, 5, ROWS),
            "i": random.permutation(ROWS) - 20,
            "f": np.where(gone[0], np.nan, random.normal(size=ROWS).round(3)),
            "s": pd.Series(words[random.integers(0, 6, ROWS)], dtype="str").mask(gone[1]),
            "t": pd.date_range("2019-12-30", periods=ROWS, freq="37h", unit="us"),
            "b": random.random(ROWS) < 0.5,
            "n": pd.array(random.integers(0, 9, ROWS), "Int64"),
        }
    ).assign(n=lambda df: df.n.mask(gone[3]))


def other() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "k": [1, 2, 2, 7],
            "s": pd.Series(["fig", None, "zoo", "fig"], dtype="str"),
            "z": [1.5, 2, 3, 4],
        }
    )


def numbers(df: Frame) -> Frame:
    return df[["k", "i", "f"]]


def with_other(df: Frame, how: str, on: Any) -> Frame:
    right: Any = plain(other())
    if isinstance(df, dd.DataFrame):
        right = dd.from_pandas(right, npartitions=2).to_backend("exo-cupy")
    return df.drop(columns="b").merge(right, how=how, on=on)


Op = Callable[[Frame], Any]
SAME: dict[str, Op] = {
    # choosing
    "len": len,
    "df[column]": lambda df: df["f"],
    "df[columns]": lambda df: df[["s", "n"]],
    "df[condition]": lambda df: df[(df.f > 0) & (df.k != 2) | df.b],
    "df.loc[condition, columns]": lambda df: df.loc[df.i > 0, ["i", "t"]],
    "df.loc[start:stop]": lambda df: df.loc[10:20],
    "df.drop": lambda df: df.drop(columns=["s", "n"]),
    "df.rename": lambda df: df.rename(columns={"f": "g"}),
    "df.select_dtypes": lambda df: df.select_dtypes("number"),
    "df.assign": lambda df: df.assign(z=df.i * 2 + df.f, w=1),
    "df.astype": lambda df: df.astype({"k": "float32", "n": "float64", "b": "Int8"}),
    "series.to_frame": lambda df: df.f.to_frame(),
    # row by row
    "series + - * / // % **": lambda df: (
        (df.i + df.f - 2) * 3 / (df.k + 1) + df.i // (df.k + 1) + df.i % (df.k + 3) + df.k**2
    ),
    "frame arithmetic": lambda df: numbers(df) * 2 + 1,
    "comparison of strings": lambda df: df[(df.s >= "apple") & (df.s < "kiwi")],
    "comparison of times": lambda df: df[df.t >= pd.Timestamp("2020-02-01")],
    "nullable arithmetic": lambda df: (df.n + df.k) / 2,
    "~ and |": lambda df: ~(df.b | (df.n > 3)),
    "abs": lambda df: numbers(df).abs(),
    "numpy functions": lambda df: np.sqrt(df.f.abs()),
    "isna, notna": lambda df: df.isna() | df.notnull(),
    "fillna": lambda df: df[["f", "n"]].fillna(3),
    "fillna by column": lambda df: df.fillna({"f": 0.5, "s": "none"}),
    "dropna": lambda df: df.dropna(subset=["f", "s"]),
    "time differences": lambda df: df.t - pd.Timestamp("2020-01-01"),
    # one value, or one for each column
    "sum": lambda df: df.f.sum(),
    "count": lambda df: df.s.count(),
    "mean": lambda df: df.n.mean(),
    "min, max": lambda df: df.i.max() - df.i.min(),
    "min of strings": lambda df: df.s.dropna().min(),
    "max of times": lambda df: df.t.max(),
    "var": lambda df: df.f.var(ddof=0),
    "std": lambda df: df.n.std(),
    "standardized": lambda df: (df.f - df.f.mean()) / df.f.std(),
    "nunique": lambda df: df.k.nunique(),
    # many rows
    "head": lambda df: df.head(5),
    "tail": lambda df: df.tail(5),
    "sort_values": lambda df: df.sort_values("i"),
    "sort_values, descending": lambda df: df.sort_values("i", ascending=False),
    "sort_values of strings": lambda df: df[["s", "i"]].dropna().sort_values(["s", "i"]),
    "reset_index(drop=True)": lambda df: df[["k"]].reset_index(drop=True).k.sum(),
    "concat": lambda df: (dd if isinstance(df, dd.DataFrame) else pd).concat([df, df]),
}

UNORDERED: dict[str, Op] = {
    "unique": lambda df: (
        df.s.unique() if isinstance(df, dd.DataFrame) else pd.Series(df.s.unique(), name="s")
    ),
    "drop_duplicates": lambda df: df[["k", "b"]].drop_duplicates(),
    "groupby.sum": lambda df: df.groupby("k")[["i", "f"]].sum(),
    "groupby.mean": lambda df: df.groupby("s").f.mean(),
    "groupby.count": lambda df: df.groupby("k").count(),
    "groupby.size": lambda df: df.groupby(["k", "b"]).size(),
    "groupby.min, max": lambda df: df.groupby("k")[["i", "f", "t"]].min(),
    "groupby.var": lambda df: df.groupby("k")[["i", "f"]].var(),
    "groupby.std": lambda df: df.groupby("k").f.std(),
    "groupby.agg(dict)": lambda df: df.groupby(["k", "s"]).agg({"i": "sum", "f": "mean"}),
    "groupby.agg(lists)": lambda df: df.groupby("k").agg(
        {"i": ["min", "max"], "f": ["count", "std"]}
    ),
    "groupby by expression": lambda df: df.groupby(df.i > 0).f.sum(),
    "groupby(dropna=False)": lambda df: df.groupby("s", dropna=False).i.sum(),
    "groupby.sum(split_out=2)": lambda df: df.groupby("k").i.sum(
        **({"split_out": 2} if isinstance(df, dd.DataFrame) else {})
    ),
    "merge, inner": lambda df: with_other(df, "inner", "k"),
    "merge, left": lambda df: with_other(df, "left", "k"),
    "merge on strings": lambda df: with_other(df, "inner", ["k", "s"]),
}

PANDAS: dict[str, tuple[Op, Op]] = {
    "map_partitions": (
        lambda df: df.map_partitions(lambda part: part[part.i > 0]),
        lambda df: df[df.i > 0],
    ),
    "repartition, fewer": (lambda df: df.repartition(npartitions=2), lambda df: df),
    "repartition, more": (lambda df: df.repartition(npartitions=9), lambda df: df),
    "shuffle": (lambda df: df.shuffle("s", npartitions=3), lambda df: df),
    "persist": (lambda df: df.persist(), lambda df: df),
    "to_backend and back": (
        lambda df: df.to_backend("pandas").to_backend("exo-cupy"),
        lambda df: df,
    ),
    "partitions": (lambda df: df.partitions[0], lambda df: df.iloc[:12]),
    "quantile": (
        lambda df: df.i.quantile([0.0, 1.0]),
        lambda df: df.i.quantile([0.0, 1.0]).astype(float),
    ),
    "set_index": (lambda df: df.set_index("i"), lambda df: df.set_index("i").sort_index()),
    "set_index of times": (lambda df: df.set_index("t"), lambda df: df.set_index("t").sort_index()),
    "to_dask_array": (
        lambda df: df[["k", "i"]].to_dask_array(lengths=True).sum(),
        lambda df: df[["k", "i"]].to_numpy().sum(),
    ),
    "to_delayed": (lambda df: sum(len(p.compute()) for p in df.to_delayed()), len),
    "exo.sort_values": (
        lambda df: df.exo.sort_values(["s", "n", "f"], ascending=[True, False, True]),
        lambda df: df.sort_values(["s", "n", "f"], ascending=[True, False, True], kind="stable"),
    ),
    "exo.merge": (
        lambda df: df.exo.merge(
            dd.from_pandas(other(), npartitions=1).to_backend("exo-cupy"), on="k"
        ),
        lambda df: df.merge(plain(other()), on="k"),
    ),
    "exo.random_shuffle": (lambda df: df.exo.random_shuffle(seed=3), lambda df: df),
}
UNSUPPORTED: dict[str, Op] = {
    "apply": lambda df: df.map_partitions(lambda part: part.apply(len)),
    "astype": lambda df: df.map_partitions(lambda part: part.s.astype("float64")),
    "sum": lambda df: numbers(df).sum(),
    "var": lambda df: numbers(df).var(),
    "str": lambda df: df.map_partitions(lambda part: part.s.str),
    "dt": lambda df: df.map_partitions(lambda part: part.t.dt),
    "describe": lambda df: df.map_partitions(lambda part: part.describe()),
    "cumsum": lambda df: df.map_partitions(lambda part: part.f.cumsum()),
    "merge(how='outer')": lambda df: with_other(df, "outer", "k"),
    "merge(left_index=...)": lambda df: df[["k"]].join(df[["f"]]),
    "isin": lambda df: df[df.s.isin(["fig", "zoo"])],
    "round": lambda df: df.f.round(1),
    "explode": lambda df: df.explode("k"),
    "corr": lambda df: df.map_partitions(lambda part: part.corr()),
}
TASKS = {**{k: (v, v) for k, v in {**SAME, **UNORDERED}.items()}, **PANDAS}
IN_ANY_ORDER = {*UNORDERED, "shuffle", "exo.merge", "exo.random_shuffle"}


def on_host(found: Any) -> Any:
    found = found.compute() if hasattr(found, "compute") else found
    return found.to_pandas() if isinstance(found, KINDS) else found


def in_order(found: Any, *, labelled: bool) -> Any:
    """Rows in an order of their own, whatever the one they came in."""
    frame = found.reset_index() if labelled else found.reset_index(drop=True)
    frame = frame.to_frame() if isinstance(frame, pd.Series) else frame
    text = frame.astype("str").fillna("?")
    rows = np.lexsort([text.iloc[:, i] for i in range(text.shape[1])])
    return frame.iloc[rows].reset_index(drop=True)


@pytest.fixture(scope="module")
def frames() -> tuple[Any, pd.DataFrame]:
    df = plain(rows())
    with dask.config.set({"exo.gpu.simulate": SIMULATED}):
        return dd.from_pandas(df, npartitions=4).to_backend("exo-cupy"), df


@pytest.fixture(autouse=True)
def settings():
    keys = {
        "exo.gpu.simulate": SIMULATED,
        "scheduler": "threads",
        "dataframe.shuffle.method": "tasks",
    }
    with dask.config.set(keys):
        yield


def test_the_table_of_the_documentation_is_what_is_tested() -> None:
    text = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    table = text.split("<!-- operations -->")[1]
    assert set(re.findall(r"`([^`]+)`", table)) == set(TASKS)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_operation_that_is_not_there_names_the_way_out(
    name: str, frames: tuple[Any, pd.DataFrame]
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  Dask wraps what its metadata meets
        on_host(UNSUPPORTED[name](frames[0]))
    error: BaseException | None = caught.value
    while error is not None and not isinstance(error, DeviceOperationError):
        error = error.__cause__ or error.__context__
    assert name in str(error)
    assert "to_backend('pandas')" in str(error)


@pytest.mark.parametrize("name", TASKS)
def test_an_operation_gives_what_pandas_gives(name: str, frames: tuple[Any, pd.DataFrame]) -> None:
    ddf, df = frames
    through_dask, through_pandas = TASKS[name]
    found, expected = on_host(through_dask(ddf)), through_pandas(df)
    if not isinstance(expected, (pd.DataFrame, pd.Series)):
        assert found == expected or found == pytest.approx(expected)
        return
    if name in IN_ANY_ORDER:
        labelled = not name.startswith(("merge", "exo.merge", "unique"))
        found, expected = (in_order(one, labelled=labelled) for one in (found, expected))
    check = (
        pd.testing.assert_frame_equal
        if isinstance(expected, pd.DataFrame)
        else pd.testing.assert_series_equal
    )
    check(found, expected, check_freq=False)
