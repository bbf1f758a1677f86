"""Which columns are written as dictionaries, and that the files say the same."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dask_exo import Scheduler
from dask_exo.partitions.kernels import parquet
from dask_exo.testing import InlineFutures

EXO = Scheduler(InlineFutures())
ROWS = 200_000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    return pd.DataFrame(
        {
            "differs": rng.random(ROWS),
            "few": rng.integers(0, 1000, ROWS),
            "city": pd.array(rng.choice(["Aachen", "Zürich", None], ROWS), dtype="str"),
            "name": pd.array([f"name-{i:09d}" for i in rng.integers(0, ROWS, ROWS)], dtype="str"),
            "flag": rng.random(ROWS) < 0.5,
            "ordered": np.arange(ROWS) // 10,
            "half": rng.integers(0, ROWS, ROWS).astype("int32"),
            "day": pd.Timestamp("2020") + pd.to_timedelta(rng.integers(0, 365, ROWS), unit="D"),
        }
    )


DICTIONARIES = ["few", "city", "ordered", "day"]


def encoded(file) -> list[str]:
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return [c.path_in_schema for c in columns if "RLE_DICTIONARY" in c.encodings]


def choose(table: pa.Table, **page: int) -> list[str] | bool:
    return parquet.dictionaries(len(table), table.take, **page)


def test_columns_that_a_dictionary_makes_smaller(frame, tmp_path) -> None:
    table = pa.Table.from_pandas(frame)
    assert choose(table) == DICTIONARIES
    sizes = {}
    for name in frame:
        for use in (True, False):
            file = tmp_path / f"{name}-{use}"
            pq.write_table(table.select([name]), file, use_dictionary=use, compression="none")
            sizes[name, use] = file.stat().st_size
    smaller = [name for name in frame if sizes[name, True] < sizes[name, False]]
    assert set(DICTIONARIES) <= set(smaller)
    lost = sum(
        sizes[name, False] - sizes[name, True] for name in smaller if name not in DICTIONARIES
    )
    assert lost < 0.05 * sum(sizes[name, True] for name in frame)


def test_files_of_dask_have_them_and_the_same_rows(frame, tmp_path) -> None:
    ddf = dd.from_pandas(frame, npartitions=1)
    ddf.to_parquet(tmp_path / "ours", compute_kwargs={"scheduler": EXO})
    ddf.to_parquet(tmp_path / "theirs", compute_kwargs={"scheduler": "sync"})
    ours, theirs = (next((tmp_path / who).glob("*.parquet")) for who in ("ours", "theirs"))
    assert [n for n in encoded(ours) if n in frame] == DICTIONARIES
    assert ours.stat().st_size < theirs.stat().st_size
    assert pq.read_schema(ours).equals(pq.read_schema(theirs), check_metadata=True)
    assert pq.read_table(ours).equals(pq.read_table(theirs))


@pytest.mark.parametrize("said", [True, False, ["name"]])
def test_what_the_user_says_counts(said, frame, tmp_path) -> None:
    ddf = dd.from_pandas(frame, npartitions=1)
    ddf.to_parquet(tmp_path, use_dictionary=said, compute_kwargs={"scheduler": EXO})
    found = encoded(next(tmp_path.glob("*.parquet")))
    assert ("name" in found) == (said is not False)
    assert ("few" in found) == (said is True)


def test_partitioned_output(frame, tmp_path) -> None:
    ddf = dd.from_pandas(frame.assign(half=frame.half % 2), npartitions=1)
    ddf.to_parquet(tmp_path, partition_on=["half"], compute_kwargs={"scheduler": EXO})
    files = list(tmp_path.glob("half=*/*.parquet"))
    assert len(files) == 2
    assert "differs" not in encoded(files[0])
    assert sum(pq.read_metadata(file).num_rows for file in files) == ROWS


def test_exactly_once_output_has_them(frame, tmp_path) -> None:
    ddf = dd.from_pandas(frame, npartitions=1)
    with dask.config.set(scheduler=EXO):
        ddf.exo.to_parquet(str(tmp_path / "out"), write_index=False)
    assert encoded(next((tmp_path / "out").rglob("*.parquet"))) == DICTIONARIES


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1]] * ROWS),
        pa.array([{"a": 1}] * ROWS),
        pa.array([1.5] * 1000),
    ],
    ids=["lists", "structs", "few rows"],
)
def test_all_columns_where_it_cannot_be_told_or_does_not_matter(column) -> None:
    assert choose(pa.table({"c": column})) is True


def test_kinds_of_columns_that_cannot_be_counted() -> None:
    column = pa.array(["a", "b"] * (ROWS // 2)).dictionary_encode()
    table = pa.table({"d": column, "n": pa.nulls(ROWS), "e": pa.array([""] * ROWS)})
    assert choose(table) == ["d", "n", "e"]


def test_the_largest_dictionary_can_be_set(frame) -> None:
    table = pa.Table.from_pandas(frame[["few"]])
    assert choose(table, page=1000) == []


def test_a_frame_that_arrow_refuses_is_refused_as_by_dask(tmp_path) -> None:
    values = pd.Series([1, "a"] * (ROWS // 2), dtype=object)
    with dask.config.set({"dataframe.convert-string": False}):
        ddf = dd.from_pandas(pd.DataFrame({"x": values, "y": 1.5}), npartitions=1)
    with pytest.raises(Exception, match=r"(?i)convert|expected") as ours:
        ddf.to_parquet(tmp_path / "a", compute_kwargs={"scheduler": EXO})
    with pytest.raises(Exception, match=r"(?i)convert|expected") as theirs:
        ddf.to_parquet(tmp_path / "b", compute_kwargs={"scheduler": "sync"})
    assert type(ours.value) is type(theirs.value)
