"""``ddf.exo`` on real Ray, against pandas."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.errors import SortKeyError
from dask_exo.report import recording

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

PARTS = 6


def make(part: int, log: str | None = None) -> pd.DataFrame:
    """Some 800 kB of ties, nulls, strings, categories and times, with an index that repeats."""
    if log is not None:
        with Path(log).open("a") as file:
            file.write(f"{part}\n")
    rng = np.random.default_rng(part)
    rows = 12_000 if part != 2 else 0
    user = rng.zipf(1.4, rows).clip(max=900)
    return pd.DataFrame(
        {
            "user": pd.Series([f"user-{n:03d}" for n in range(901)], dtype="str").take(user).array,
            "f": np.where(rng.random(rows) < 0.05, np.nan, rng.random(rows).round(3)),
            "n": pd.array(rng.choice([1, 2, None], rows), dtype="Int64"),
            "c": pd.Categorical(rng.choice(["low", "mid", "high"], rows), ["low", "mid", "high"]),
            "t": pd.Timestamp("2026-01-01", tz="UTC")
            + pd.to_timedelta(rng.integers(0, 99, rows), "h"),
            "row": np.arange(rows) + part * 100_000,
        },
        index=pd.Index(rng.integers(0, 50, rows), name="idx"),
    )


@pytest.fixture(scope="module")
def whole() -> pd.DataFrame:
    return pd.concat([make(i) for i in range(PARTS)])


@pytest.fixture
def ddf(whole: pd.DataFrame):
    with dask.config.set({"dataframe.convert-string": False}):
        yield dd.from_map(make, range(PARTS), meta=whole.iloc[:0])


@pytest.mark.parametrize(
    "options",
    [
        {"by": "user"},
        {"by": "f", "ascending": False, "na_position": "first"},
        {"by": ["c", "n", "t"], "ascending": [False, True, False], "ignore_index": True},
        {"by": ["idx", "user"], "na_position": "first"},
    ],
    ids=["strings", "nulls first", "three keys", "the index"],
)
@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_a_sort_is_that_of_pandas(ddf, whole, options, algorithm) -> None:
    with dask.config.set({"exo.shuffle.algorithm": algorithm}), recording() as stats:
        got = ddf.exo.sort_values(**options, npartitions=9).compute()
    pd.testing.assert_frame_equal(got, whole.sort_values(kind="stable", **options))
    assert [(s.maps, s.reducers) for s in stats.shuffles] == [(PARTS, 9)]


def test_each_partition_is_read_once(tmp_path, whole) -> None:
    log = tmp_path / "loads"
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = dd.from_map(make, range(PARTS), log=str(log), meta=whole.iloc[:0])
    ordered = ddf.exo.sort_values("t")
    assert ordered.npartitions == PARTS
    assert not log.exists()
    pd.testing.assert_frame_equal(ordered.compute(), whole.sort_values("t", kind="stable"))
    assert sorted(log.read_text().split()) == list("012345")


def test_one_value_is_spread_evenly(ddf, whole) -> None:
    ordered = ddf.assign(same=1).exo.sort_values("same", npartitions=8)
    sizes = ordered.map_partitions(len, meta=pd.Series(dtype="i8")).compute()
    assert sizes.between(0.8 * len(whole) / 8, 1.2 * len(whole) / 8).all()


def test_a_persisted_sort_and_what_is_made_of_it(ddf, whole) -> None:
    expected = whole.sort_values(["user", "row"])
    kept = ddf.exo.sort_values(["user", "row"]).persist()
    pd.testing.assert_frame_equal(kept.compute(), expected)
    pd.testing.assert_frame_equal(
        kept.partitions[0].compute(), expected.head(len(kept.partitions[0]))
    )
    counts = kept.groupby("user").row.count().compute().sort_index()
    pd.testing.assert_series_equal(counts, expected.groupby("user").row.count())


def test_an_index_whose_equal_values_are_in_several_partitions(ddf, whole) -> None:
    indexed = ddf.exo.set_index("user", split_equal=True, npartitions=7)
    expected = whole.sort_values("user", kind="stable").set_index("user")
    pd.testing.assert_frame_equal(indexed.compute(), expected)
    assert indexed.map_partitions(len, meta=pd.Series(dtype="i8")).compute().max() < 12_000


def test_dasks_own_index_and_sort(ddf, whole) -> None:
    indexed = ddf[["row", "f"]].exo.set_index("row")
    expected = whole[["row", "f"]].set_index("row")
    assert indexed.known_divisions
    pd.testing.assert_frame_equal(
        indexed.loc[100_010:300_010].compute(), expected.loc[100_010:300_010]
    )
    other = ddf[["row", "n"]].set_index("row", npartitions=3)
    pd.testing.assert_frame_equal(
        indexed.join(other).compute(), expected.join(whole[["row", "n"]].set_index("row"))
    )
    got = ddf.sort_values(["f", "row"]).map_partitions(lambda part: part).compute()
    pd.testing.assert_frame_equal(got, whole.sort_values(["f", "row"]))


def test_a_key_without_an_order_is_named() -> None:
    with dask.config.set({"dataframe.convert-string": False}):
        parts = [pd.DataFrame({"a": pd.Series([v] * 3, dtype=object)}) for v in (1, "x")]
        ddf = dd.concat([dd.from_pandas(part, npartitions=1) for part in parts])
    with pytest.raises(SortKeyError, match="sort key 'a'"):
        ddf.exo.sort_values("a").compute()
