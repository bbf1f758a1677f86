"""``ddf.exo.to_parquet``: all rows once, or what was there before, wherever the program dies."""

from __future__ import annotations

import itertools
from pathlib import Path

import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dask_exo import Scheduler
from dask_exo.checkpoint import atomic_io
from dask_exo.dataframe import parquet_commit
from dask_exo.dataframe.to_parquet import WriteOptions, committed, write_part
from dask_exo.errors import ColumnError, OutputError, OutputExistsError
from dask_exo.testing import InlineFutures
from tests._data import Killed, Unseen

PARTS, ROWS = 3, 50


class Death:
    """Ends the program before one of the calls that it knows, counted from 0."""

    def __init__(self) -> None:
        self.spare()

    def spare(self) -> None:
        self.at(-1)

    def at(self, step: int) -> None:
        self.step, self.seen = step, itertools.count()

    def before(self, function):
        def one(*args, **kwargs):
            if next(self.seen) == self.step:
                raise Killed
            return function(*args, **kwargs)

        return one


def table(seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    count = PARTS * ROWS
    return pd.DataFrame(
        {
            "k": rng.integers(0, 3, count),
            "v": rng.random(count),
            "t": pd.Series(rng.choice(["a/b", "c=d", None], count), dtype="str"),
        }
    )


def collection(df: pd.DataFrame) -> dd.DataFrame:
    return dd.from_pandas(df, npartitions=PARTS)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def rows(found: pd.DataFrame) -> pd.DataFrame:
    plain = found.astype({"k": "int64"})[["k", "v", "t"]].reset_index(drop=True)
    return plain.sort_values("v").reset_index(drop=True)


@pytest.fixture(autouse=True)
def inline():
    inline = Scheduler(InlineFutures())
    with dask.config.set({"scheduler": inline, "dataframe.convert-string": False}):
        made.clear()
        yield
        MemoryFileSystem.store.clear()
        MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def kept(tmp_path: Path):
    with dask.config.set({"exo.checkpoint.path": str(tmp_path / "kept")}):
        yield


def test_everybody_reads_it(tmp_path: Path) -> None:
    df, out = table(), tmp_path / "out"
    written = collection(df).exo.to_parquet(str(out))
    pd.testing.assert_frame_equal(pd.read_parquet(out), df)
    pd.testing.assert_frame_equal(dd.read_parquet(out).compute(), df)
    assert pads.dataset(out).to_table().num_rows == len(df)
    assert written.rows.sum() == len(df)
    assert dict(zip(written.file, written.nbytes, strict=True)) == {
        name: len(data) for name, data in tree(out).items()
    }
    polars = pytest.importorskip("polars")
    assert polars.read_parquet(out)["v"].to_list() == df.v.tolist()


def test_files_are_about_as_large_as_they_should_be(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"v": rng.random(40_000)})
    ddf = dd.from_pandas(df, npartitions=2)
    written = ddf.exo.to_parquet(str(tmp_path / "out"), target_file_size="50kB", write_index=False)
    assert written.nbytes.between(30_000, 70_000).all()
    again = pd.read_parquet(tmp_path / "out")
    pd.testing.assert_frame_equal(again, df)


def test_values_become_directories(tmp_path: Path) -> None:
    df = table()
    collection(df).exo.to_parquet(str(tmp_path / "out"), partition_on=["k", "t"])
    found = pads.dataset(tmp_path / "out", partitioning="hive").to_table().to_pandas()
    pd.testing.assert_frame_equal(rows(found), rows(df))
    assert {path.split("/")[1] for path in tree(tmp_path / "out")} == {
        "t=a%2Fb",
        "t=c%3Dd",
        "t=__HIVE_DEFAULT_PARTITION__",
    }
    plain = collection(df).exo.to_parquet(str(tmp_path / "plain"), partition_on="k")
    assert len(plain) == 3 * PARTS
    pd.testing.assert_frame_equal(rows(pd.read_parquet(tmp_path / "plain")), rows(df))


def test_all_files_have_one_schema_despite_null_columns(tmp_path: Path) -> None:
    df = pd.DataFrame({"o": pd.Series([None, None, "x", "y"], dtype=object), "i": range(4)})
    dd.from_pandas(df, npartitions=2).exo.to_parquet(str(tmp_path / "out"))
    assert len({pads.dataset(f).schema for f in (tmp_path / "out").iterdir()}) == 1
    odd = pd.DataFrame({"o": pd.Series([[1], [2]], dtype=object)})
    ddf = dd.from_pandas(odd, npartitions=1, sort=False)
    with pytest.raises(OutputError, match="schema"):
        ddf.exo.to_parquet(str(tmp_path / "odd"))
    schema = pa.schema([("o", pa.list_(pa.int64()))])
    ddf.exo.to_parquet(str(tmp_path / "odd"), schema=schema, write_index=False)
    assert pd.read_parquet(tmp_path / "odd").o.map(list).tolist() == [[1], [2]]


def test_no_rows_are_an_output_too(tmp_path: Path) -> None:
    df = table()
    ddf = collection(df)
    ddf[ddf.v > 2].exo.to_parquet(str(tmp_path / "out"))
    found = pd.read_parquet(tmp_path / "out")
    pd.testing.assert_frame_equal(found, df.iloc[:0], check_index_type=False)


@pytest.mark.parametrize("url", ["{}/out", "memory://out"], ids=["local", "memory"])
def test_what_is_there_stays_unless_overwrite(tmp_path: Path, url: str) -> None:
    out, df, new = url.format(tmp_path), table(), table(1)
    collection(df).exo.to_parquet(out)
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        collection(new).exo.to_parquet(out)
    pd.testing.assert_frame_equal(dd.read_parquet(out).compute(), df)
    collection(new).exo.to_parquet(out, overwrite=True)
    pd.testing.assert_frame_equal(dd.read_parquet(out).compute(), new)
    collection(new).exo.to_parquet(out, overwrite=True)  # the same again
    pd.testing.assert_frame_equal(dd.read_parquet(out).compute(), new)


def test_wrong_arguments_are_refused_before_anything_runs(tmp_path: Path) -> None:
    ddf, out = collection(table()), str(tmp_path / "out")
    with pytest.raises(ColumnError, match="did you mean 'k'"):
        ddf.exo.to_parquet(out, partition_on="kk")
    with pytest.raises(OutputError, match="leaves no column"):
        ddf.exo.to_parquet(out, partition_on=["k", "v", "t"])
    with pytest.raises(OutputError, match="not above 0"):
        ddf.exo.to_parquet(out, target_file_size=0)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(OutputError, match=r"letter\.txt.*not a Parquet file"):
        ddf.exo.to_parquet(str(tmp_path / "home"), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


@pytest.mark.parametrize("url", ["{}/out", "memory://out"], ids=["local", "memory"])
def test_a_job_that_fails_leaves_everything_as_it_was(tmp_path: Path, url: str) -> None:
    out, df = url.format(tmp_path), table()
    collection(df).exo.to_parquet(out)
    fs, root = atomic_io.located(out)
    before = sorted(fs.find(root))

    def fail(part: pd.DataFrame) -> pd.DataFrame:
        if part.index[0] >= 2 * ROWS:
            raise ZeroDivisionError
        return part

    bad = collection(df).map_partitions(fail, meta=df)
    with pytest.raises(ZeroDivisionError):
        bad.exo.to_parquet(out, overwrite=True)
    assert sorted(fs.find(root)) == before
    assert fs.find(str(tmp_path)) == before if "memory" not in url else True
    pd.testing.assert_frame_equal(dd.read_parquet(out).compute(), df)


def test_a_task_that_runs_twice_and_differs_writes_each_row_once(tmp_path: Path) -> None:
    df, out = table(), tmp_path / "out"
    how = WriteOptions(pa.Schema.from_pandas(df), None, (), True, "snappy")

    folder = tmp_path

    def twice(part: pd.DataFrame) -> pd.DataFrame:
        (staging,) = folder.glob(".out.exo-*")
        write_part(part.assign(v=part.v + 1), 0, str(staging), how)  # it got lost
        (folder / f"attempt-{part.index[0]}").touch()
        return part

    collection(df).map_partitions(twice, meta=df).exo.to_parquet(str(out))
    assert len(list(folder.glob("attempt-*"))) == len(list(out.iterdir())) == PARTS
    pd.testing.assert_frame_equal(pd.read_parquet(out), df)


made: list[int] = Unseen()


def _counted(part: pd.DataFrame) -> pd.DataFrame:
    made.append(int(part.index[0]) // ROWS)
    return part


def test_death_at_any_step_on_a_disk(tmp_path: Path, kept: None, monkeypatch) -> None:
    """Before each write of a file, the renaming, and what follows it, is a place to die at."""
    df, old = table(), table(1)
    collection(df).exo.to_parquet(str(tmp_path / "whole"))
    whole = tree(tmp_path / "whole")
    death = Death()
    monkeypatch.setattr(atomic_io, "put", death.before(atomic_io.put))
    monkeypatch.setattr(parquet_commit, "exchange", death.before(parquet_commit.exchange))
    monkeypatch.setattr(atomic_io, "remove", death.before(atomic_io.remove))
    for step in itertools.count():
        out = tmp_path / f"out-{step}"
        death.spare()
        collection(old).exo.to_parquet(str(out))
        before = tree(out)
        death.at(step)
        job = collection(df).map_partitions(_counted, meta=df)
        try:
            job.exo.to_parquet(str(out), overwrite=True)
        except Killed:
            assert tree(out) in (before, whole)  # never anything else
        else:
            break
        if tree(out) == whole:
            continue
        made.clear()
        death.spare()
        done = {int(f.name[5:10]) for f in tmp_path.glob(f".{out.name}.exo-*/*.parquet")}
        job.exo.to_parquet(str(out), overwrite=True)
        assert tree(out) == whole
        # of those with a receipt, one is made again, to be compared; a file may have none
        assert len(made) in {PARTS - len(done) + more for more in (0, 1, 2)}
        assert sorted(path.name for path in tmp_path.glob(f".{out.name}*")) == []
    assert step == 2 * PARTS + 2


def test_death_at_any_step_in_an_object_store(kept: None, monkeypatch) -> None:
    """Each change of the store is a place to die at; `committed` gives old or new files."""
    df, old = table(), table(1)
    death = Death()
    monkeypatch.setattr(atomic_io, "put", death.before(atomic_io.put))
    for name in ("cp_file", "rm_file", "rm"):
        monkeypatch.setattr(MemoryFileSystem, name, death.before(getattr(MemoryFileSystem, name)))

    def read(out: str) -> pd.DataFrame:
        return pd.concat([pd.read_parquet(fsspec.open(url).open()) for url in committed(out)])

    for step in itertools.count():
        out = f"memory://out-{step}"
        death.spare()
        collection(old).exo.to_parquet(out)
        death.at(step)
        try:
            collection(df).exo.to_parquet(out, overwrite=True)
        except Killed:
            death.spare()
            found = read(out)
            assert found.equals(old) or found.equals(df)
        else:
            break
        collection(df).exo.to_parquet(out, overwrite=True)
        fs, root = atomic_io.located(out)
        assert len(fs.find(root)) == PARTS + 1  # and the manifest
        pd.testing.assert_frame_equal(read(out), df)
    assert step > 2 * PARTS + 2 * PARTS + 4


def test_where_names_cannot_be_exchanged_the_old_data_comes_back(tmp_path, monkeypatch) -> None:
    out, df = tmp_path / "out[1]", table()
    collection(df).exo.to_parquet(str(out))
    before = tree(out)
    monkeypatch.setattr(parquet_commit, "exchange", lambda one, two: False)
    collection(df).exo.to_parquet(str(out), overwrite=True)
    assert tree(out) == before
    out.rename(tmp_path / ".out[1].exo-123.old")  # it died between two renames
    with pytest.raises(OutputExistsError):
        collection(table(1)).exo.to_parquet(str(out))
    assert tree(out) == before


def test_deleted_partitions_are_written_again(tmp_path, kept) -> None:
    df = table()
    for _ in range(2):
        collection(df).exo.to_parquet(str(tmp_path / "out"))
        assert len(tree(tmp_path / "out")) == PARTS
        for file in (tmp_path / "out").iterdir():
            file.unlink()
        (tmp_path / "out").rmdir()


def test_it_runs_on_other_schedulers(tmp_path: Path) -> None:
    df = table()
    with dask.config.set(scheduler="sync"):
        collection(df).exo.to_parquet(str(tmp_path / "out"))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out"), df)
