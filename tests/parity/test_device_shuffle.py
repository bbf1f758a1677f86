"""Frames on a device through our scheduler: split, sent and put together, without Ray."""

from __future__ import annotations

from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.errors import ConfigError, DeviceError, DeviceTypeError
from dask_exo.partitions.gpu import arrays, shuffle
from dask_exo.partitions.gpu_frames import DeviceFrame
from dask_exo.partitions.wire_format import concat, load_schema
from dask_exo.report import recording
from tests._data import SIMULATED, inline

pytestmark = pytest.mark.filterwarnings("ignore:Merging dataframes with merge column data")


def rows(n: int = 400, seed: int = 3) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    words = pd.Series(["a", "bb", "", "é", None], dtype="str")
    return pd.DataFrame(
        {
            "k": random.integers(0, 9, n),
            "f": np.where(random.random(n) < 0.1, np.nan, random.random(n).round(3)),
            "s": words.take(random.integers(0, 5, n)).array,
            "n": pd.array(random.choice([1, 2, None], n), dtype="Int64"),
            "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(random.integers(0, 99, n), "h"),
        },
        index=pd.Index(random.integers(0, 50, n), name="idx"),
    )


def device(frame: pd.DataFrame, parts: int) -> dd.DataFrame:
    with dask.config.set({"exo.gpu.simulate": SIMULATED}):
        return dd.from_pandas(frame, npartitions=parts, sort=False).exo.to_gpu()


def compute(*collections: Any) -> tuple[Any, ...]:
    scheduler = inline(2)
    with dask.config.set({"scheduler": scheduler, "dataframe.shuffle.method": "tasks"}):
        return dask.compute(*(c.exo.to_pandas() for c in collections))


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """In the dtypes that Dask has."""
    return dd.from_pandas(frame, npartitions=1, sort=False).compute(scheduler="sync")


@pytest.mark.parametrize(
    ("by", "ascending"),
    [(["s", "f"], True), (["k", "n", "t"], [False, True, False]), (["idx"], True)],
)
def test_rows_are_sorted_over_all_partitions(by: list[str], ascending: Any) -> None:
    frame = rows()
    with recording() as record:
        (found,) = compute(device(frame, 5).exo.sort_values(by, ascending=ascending))
    expected = plain(frame).sort_values(by, ascending=ascending, kind="stable")
    pd.testing.assert_frame_equal(found, expected)
    assert record.shuffles


@pytest.mark.parametrize("by", ["k", ["s", "n"], "f", "t"])
def test_each_row_goes_where_it_goes_on_the_host(by: Any) -> None:
    frame = rows()
    there = device(frame, 4).shuffle(by, npartitions=3)
    here = dd.from_pandas(frame, npartitions=4, sort=False).shuffle(by, npartitions=3)
    found = compute(*(there.partitions[i] for i in range(3)))
    with dask.config.set(scheduler=inline(2)):
        expected = dask.compute(*(here.partitions[i] for i in range(3)))
    for mine, theirs in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(mine, theirs)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_joins_and_groups_meet_all_their_rows(how: str) -> None:
    left, right = rows(300), rows(60, seed=5)[["k", "s", "f"]]
    there, other = device(left, 5), device(right, 3)
    joined = there.merge(other, on=["k", "s"], how=how, broadcast=False)
    spread = there.exo.merge(other, on="k", how=how)
    grouped = there.groupby(["k", "s"]).agg({"f": "sum", "n": "max"}, split_out=2)
    found = compute(joined, spread, grouped)
    left, right = plain(left), plain(right)
    expected = [left.merge(right, on=["k", "s"], how=how), left.merge(right, on="k", how=how)]
    for mine, theirs in zip(found[:2], expected, strict=True):
        both = (df.sort_values([*theirs.columns]).reset_index(drop=True) for df in (mine, theirs))
        pd.testing.assert_frame_equal(*both)
    groups = left.groupby(["k", "s"]).agg({"f": "sum", "n": "max"})
    pd.testing.assert_frame_equal(found[2].sort_index(), groups)


@pytest.mark.parametrize("algorithm", ["simple", "push"])
def test_dtypes_that_differ_between_partitions_are_united(algorithm: str) -> None:
    parts = [pd.DataFrame({"c": column}) for column in ([1.5, 2], [3, 4], [None])]
    parts[2] = parts[2].astype("float64")
    with dask.config.set({"exo.gpu.simulate": SIMULATED}):
        there = dd.from_map(lambda part: part, parts).exo.to_gpu()
    with dask.config.set({"exo.shuffle.algorithm": algorithm}):
        (found,) = compute(there.exo.random_shuffle(npartitions=1))
    assert sorted(found.c.dropna()) == [1.5, 2.0, 3.0, 4.0]
    assert found.c.isna().sum() == 1


def test_what_is_merged_on_the_host_goes_back_to_where_it_was() -> None:
    ones, twos = DeviceFrame({"c": [1, 2]}), DeviceFrame({"c": [2.0, 3.5]})
    tables = [shuffle.to_wire(f, np.arange(2), module="cupy") for f in (ones, twos)]
    merged = concat(tables)
    assert load_schema(merged.schema).module == "cupy"
    there = load_schema(merged.schema)._replace(module="numpy").to_frame(4, merged.arrays)
    assert there.c.to_pandas().tolist() == [1.0, 2.0, 2.0, 3.5]


def test_the_backend_reads_and_comes_back(tmp_path: Any) -> None:
    frame = rows().reset_index(drop=True)
    frame.to_parquet(tmp_path / "a.parquet")
    with dask.config.set({"dataframe.backend": "exo-cupy", "exo.gpu.simulate": SIMULATED}):
        there = dd.read_parquet(tmp_path / "a.parquet")
        made = dd.from_dict({"a": [1, 2, 3]}, npartitions=2)
    assert isinstance(there._meta, DeviceFrame)
    assert isinstance(made.compute(scheduler="sync"), DeviceFrame)
    found = there.to_backend("pandas").compute(scheduler="sync")
    pd.testing.assert_frame_equal(found, plain(frame), check_dtype=False)
    assert there.to_backend("exo-cupy") is there


def test_without_a_gpu_it_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "devices", lambda: 0)
    monkeypatch.setattr("dask_exo.cluster.on_ray.running", lambda: False)
    with pytest.raises(DeviceError, match=r"needs 1 GPU.*has 0 GPUs.*exo\.gpu\.simulate"):
        dd.from_pandas(rows(), npartitions=1, sort=False).exo.to_gpu()


def test_a_column_of_objects_is_refused_before_anything_runs() -> None:
    frame = pd.DataFrame({"a": [1], "what": [[1]]})
    with (
        pytest.raises(DeviceTypeError, match="'what'"),
        dask.config.set({"dataframe.convert-string": False}),
    ):
        device(frame, 1)


def test_the_key_takes_true_and_false() -> None:
    from dask_exo.config import Config

    with dask.config.set({"exo.gpu.simulate": True}):
        assert Config.current().num_gpus == 1
    with dask.config.set({"exo.gpu.simulate": "yes"}), pytest.raises(ConfigError, match="simulate"):
        Config.current()
