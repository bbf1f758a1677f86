"""The sort job: right output or none, and a clear refusal of what cannot be sorted."""

from __future__ import annotations

import errno
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_exo.cli import sort
from dask_exo.cli.sort import input_checksum, read, sort_rows, sort_to_parquet
from dask_exo.cli.validate import checksum, require, validate
from dask_exo.dataframe import parquet_commit
from dask_exo.errors import ColumnError, InputError, OutputError, OutputExistsError, SortKeyError
from dask_exo.testing.gensort import KEYS, frame, records

# Dask 2026.8 reads Parquet with a call that pandas 3.1 will give up
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")


@pytest.fixture(autouse=True)
def _without_a_cluster():
    with dask.config.set(scheduler="sync", **{"dataframe.shuffle.method": "tasks"}):
        yield


def small() -> dd.DataFrame:
    numbers = np.arange(40) * 7 % 40
    return dd.from_pandas(pd.DataFrame({"a": numbers, "s": numbers.astype(str)}), npartitions=4)


def names(directory: Path) -> list[str]:
    return [f.name for f in directory.iterdir()]


def in_order(output: Path) -> pd.DataFrame:
    count = len(names(output))
    return pd.concat([pd.read_parquet(output / f"part.{i}.parquet") for i in range(count)])


def contents(directory: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in directory.iterdir()}


@pytest.mark.parametrize("skew", [0.0, 100.0])
def test_records(tmp_path, skew):
    given_rows = frame(300_000, seed=1, skew=skew, partition_bytes=40_000)
    output = sort_to_parquet(given_rows, list(KEYS), tmp_path / "out")
    assert output == tmp_path / "out"
    assert names(tmp_path) == ["out"]
    summary = validate(output, list(KEYS))
    require(summary, input_checksum(given_rows), where=output)
    assert input_checksum(given_rows) == checksum([records(0, 3000, seed=1, skew=skew)])
    if skew == 0:
        assert len(names(output)) == given_rows.npartitions
    # and pandas, the other judge, can read what was written
    have = pd.read_parquet(output)
    assert list(have.columns) == ["key_hi", "key_lo", "payload"]
    key = have["key_hi"].astype(object) * 2**16 + have["key_lo"].astype(object)
    expected = records(0, 3000, seed=1, skew=skew)
    wanted = expected["key_hi"].astype(object) * 2**16 + expected["key_lo"].astype(object)
    assert sorted(key) == sorted(wanted)
    assert sorted(have["payload"]) == sorted(expected["payload"])


@pytest.mark.parametrize(
    "by", ["i", "f", "s", "t", "n", ["s", "i"], ["f", "z"], ["none", "i"], ["i", "z"]]
)
def test_keys_of_any_type_with_nulls(tmp_path, by):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "i": rng.integers(-5, 5, 200),
            "f": rng.choice([0.5, -1.0, np.nan], 200),
            "s": rng.choice(["b", "é", "a", "Z"], 200),
            "z": rng.choice(["b", "é", "a", None], 200),
            "t": pd.to_datetime(rng.integers(0, 10**9, 200), unit="s"),
            "n": pd.array(rng.integers(0, 9, 200), "Int64"),
            "none": np.full(200, np.nan),
        }
    )
    rows.loc[::7, "n"] = pd.NA
    given_rows = dd.from_pandas(rows, npartitions=5)
    output = sort_to_parquet(given_rows, by, tmp_path / "out")
    keys = [by] if isinstance(by, str) else by
    have = in_order(output)[keys]
    expected = given_rows.compute()[keys].sort_values(keys, na_position="last")
    assert have.astype(object).where(have.notna(), None).to_numpy().tolist() == (
        expected.astype(object).where(expected.notna(), None).to_numpy().tolist()
    )
    require(validate(output, by), input_checksum(given_rows), where=output)
    assert validate(output, by).checksum == checksum([rows])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    st.sampled_from(["int64", "uint8", "float64", "Int64"]),
    st.booleans(),
)
def test_sort_rows_is_that_of_pandas(rows, kind, ignore_index):
    given_rows = pd.DataFrame(rows, columns=["a", "b"]).astype(kind)
    kwargs = {"ascending": True, "na_position": "last", "ignore_index": ignore_index}
    for by in (["a"], ["a", "b"], ["b", "a"]):
        have = sort_rows(given_rows, by=by, **kwargs)
        expected = given_rows.sort_values(by, **kwargs)
        assert have[by].to_numpy().tolist() == expected[by].to_numpy().tolist()
        assert have.dtypes.equals(expected.dtypes)
        if ignore_index:
            assert have.index.equals(expected.index)
            assert sorted(have.to_numpy().tolist()) == sorted(given_rows.to_numpy().tolist())
        else:
            pd.testing.assert_frame_equal(have.sort_index(), given_rows, check_index_type=False)


@pytest.mark.parametrize("npartitions", [1, 3])
def test_empty_input(tmp_path, npartitions):
    empty = pd.DataFrame({"a": pd.Series([], dtype="int64"), "s": pd.Series([], dtype="str")})
    given_rows = dd.from_map(lambda _: empty, range(npartitions), meta=empty)
    output = sort_to_parquet(given_rows, "a", tmp_path / "out")
    assert names(output) == ["part.0.parquet"]
    assert pq.read_schema(output / "part.0.parquet").names == ["a", "s"]
    summary = validate(output, "a")
    assert (summary.rows, summary.first_disorder, summary.duplicates) == (0, None, 0)
    require(summary, input_checksum(given_rows), where=output)


def test_index_is_not_written(tmp_path):
    given_rows = dd.from_pandas(pd.DataFrame({"a": [2, 1]}, index=pd.Index([5, 6], name="i")), 1)
    output = sort_to_parquet(given_rows, "a", tmp_path / "out")
    assert pd.read_parquet(output).to_dict("list") == {"a": [1, 2]}


def test_row_groups_are_bounded(tmp_path):
    given_rows = dd.from_pandas(pd.DataFrame({"a": range(sort.ROW_GROUP + 1)}), npartitions=1)
    output = sort_to_parquet(given_rows, "a", tmp_path / "out")
    file = pq.ParquetFile(output / "part.0.parquet").metadata
    assert [file.row_group(i).num_rows for i in range(2)] == [sort.ROW_GROUP, 1]


# ---- all of the output, or none of it


def failing(error: BaseException) -> dd.DataFrame:
    def fail(part):
        if (part["a"] == 2).any():
            raise error
        return part

    return small().map_partitions(fail, meta=small()._meta)


@pytest.mark.parametrize("error", [ZeroDivisionError("here"), KeyboardInterrupt()])
@pytest.mark.parametrize("stage", ["read", "write", "publish"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_failure_leaves_things_as_they_were(tmp_path, monkeypatch, error, stage, overwrite):
    target, before = tmp_path / "out", {}
    if overwrite:
        before = contents(sort_to_parquet(small()[["a"]], "a", target))
    given_rows = small()
    seen = []
    if stage == "read":
        given_rows = failing(error)
    elif stage == "write":
        original = sort.NamelessEngine._pandas_to_arrow_table

        def break_second(df, **kwargs):
            if len(seen) == 1:
                assert list(tmp_path.glob(".out.exo-*/part.*.parquet"))
                raise error
            seen.append(len(df))
            return original(df, **kwargs)

        monkeypatch.setattr(sort.NamelessEngine, "_pandas_to_arrow_table", break_second)
    else:

        def refuse(*args, **kwargs):
            raise error

        monkeypatch.setattr(parquet_commit, "exchange", refuse)
        if not overwrite:
            monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(type(error)):
        sort_to_parquet(given_rows, "a", target, overwrite=overwrite)
    if overwrite:
        assert names(tmp_path) == ["out"]
        assert contents(target) == before
    else:
        assert names(tmp_path) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_overwrite(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(parquet_commit, "exchange", lambda one, two: False)
    target = sort_to_parquet(
        dd.from_pandas(pd.DataFrame({"b": range(9)}), 3), "b", tmp_path / "out"
    )
    sort_to_parquet(small(), "a", target, overwrite=True)
    assert names(tmp_path) == ["out"]
    assert in_order(target)["a"].tolist() == [*range(40)]


def test_failed_rename_puts_the_old_output_back(tmp_path, monkeypatch):
    target = sort_to_parquet(small(), "a", tmp_path / "out")
    before, rename = contents(target), Path.rename

    def fail_second(self, to):
        if Path(to) == target and ".old" not in self.name:
            raise OSError(errno.EIO, "broken")
        return rename(self, to)

    monkeypatch.setattr(parquet_commit, "exchange", lambda one, two: False)
    monkeypatch.setattr(Path, "rename", fail_second)
    with pytest.raises(OSError, match="broken"):
        sort_to_parquet(small()[["a"]], "a", target, overwrite=True)
    assert names(tmp_path) == ["out"]
    assert contents(target) == before


def test_overwrite_of_the_input(tmp_path):
    target = sort_to_parquet(small(), "a", tmp_path / "out")
    sort_to_parquet(read(target), "s", target, overwrite=True)
    assert in_order(target)["s"].tolist() == sorted(map(str, range(40)))


def test_existing_output_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputExistsError, match=r"out' exists.*--overwrite"):
        sort_to_parquet(failing(ZeroDivisionError()), "a", tmp_path / "out")
    assert names(tmp_path) == ["out"]


def test_output_made_by_somebody_else_meanwhile(tmp_path):
    target = tmp_path / "out"

    def interfere(part):
        target.mkdir(exist_ok=True)
        (target / "mine").touch()
        return part

    with pytest.raises(OutputExistsError, match="created by another program"):
        sort_to_parquet(small().map_partitions(interfere, meta=small()._meta), "a", target)
    assert names(tmp_path) == ["out"]
    assert names(target) == ["mine"]


@pytest.mark.parametrize("inside", ["notes.txt", "sub.parquet/x"])
def test_overwrite_removes_nothing_but_parquet_files(tmp_path, inside):
    file = tmp_path / "out" / inside
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(OutputError, match="will not overwrite"):
        sort_to_parquet(small(), "a", tmp_path / "out", overwrite=True)
    assert file.exists()


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for target in (tmp_path / "no" / "out", tmp_path / "file" / "out"):
        with pytest.raises(OutputError, match="no directory"):
            sort_to_parquet(small(), "a", target)
    with pytest.raises(OutputError, match="cannot write to '/proc'"):
        sort_to_parquet(small(), "a", "/proc/out")


def test_full_disk(tmp_path):
    # as a worker reports it: the cause of another error
    error = RuntimeError("task failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OutputError, match=r"is full: need more than the .*B that are free"):
        sort_to_parquet(failing(error), "a", tmp_path / "out")
    assert names(tmp_path) == []


def test_disk_known_to_be_too_small(tmp_path):
    with pytest.raises(OutputError, match=r"too small: need .*EiB|PiB, have"):
        sort_to_parquet(failing(ZeroDivisionError()), "a", tmp_path / "out", nbytes=10**18)
    assert names(tmp_path) == []


# ---- keys that cannot be


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("A", r"there are \['a', 's'\]|did you mean 'a'"),
        ("amount", "no column 'amount'"),
    ],
)
def test_missing_column(tmp_path, by, message):
    with pytest.raises(ColumnError, match=message):
        sort_to_parquet(small(), by, tmp_path / "out")


@pytest.mark.parametrize("by", [["a"], ["b", "a"]])
def test_mixed_types(tmp_path, by):
    rows = pd.DataFrame({"a": pd.Series([1, "x", 2.5, "y"], dtype=object), "b": 1})
    with dask.config.set({"dataframe.convert-string": False}):
        given_rows = dd.from_pandas(rows, npartitions=2)
        with pytest.raises(SortKeyError, match=r"'a' .* float, int, str, .*\.astype\(str\)"):
            sort_to_parquet(given_rows, by, tmp_path / "out")
        assert names(tmp_path) == []
        given_rows["a"] = given_rows["a"].astype(str)
        output = sort_to_parquet(given_rows, by, tmp_path / "out")
    assert validate(output, by).first_disorder is None


@pytest.mark.parametrize("convert", [False, True])
def test_nulls_among_strings(tmp_path, convert):
    rows = pd.DataFrame({"a": ["x", None, "y", "z"], "b": 1})
    with dask.config.set({"dataframe.convert-string": convert}):
        given_rows = dd.from_pandas(rows, npartitions=2)
        sort_to_parquet(given_rows, ["b", "a"], tmp_path / "second")
        assert in_order(tmp_path / "second")["a"].tolist()[:3] == ["x", "y", "z"]


def test_many_nulls_among_strings_of_the_first_key(tmp_path):
    rows = pd.DataFrame({"a": ["x", None, "y", None] * 50})
    with pytest.raises(SortKeyError, match=r"'a' has nulls.*fillna"):
        sort_to_parquet(dd.from_pandas(rows, npartitions=5), "a", tmp_path / "out")
    assert names(tmp_path) == []


def test_objects_of_one_type(tmp_path):
    with dask.config.set({"dataframe.convert-string": False}):
        rows = dd.from_pandas(pd.DataFrame({"a": pd.Series(list("cab"), dtype=object)}), 2)
        output = sort_to_parquet(rows, "a", tmp_path / "out")
    assert pd.read_parquet(output)["a"].tolist() == ["a", "b", "c"]


def test_categories_have_no_order_in_parquet(tmp_path):
    rows = dd.from_pandas(pd.DataFrame({"a": pd.Categorical(["x", "y"])}), npartitions=1)
    with pytest.raises(SortKeyError, match="'a' is categorical"):
        sort_to_parquet(rows, "a", tmp_path / "out")


# ---- reading


@pytest.fixture
def inputs(tmp_path) -> Path:
    rows = pd.DataFrame({"a": range(6), "s": list("uvwxyz")})
    for kind in ("parquet", "csv"):
        (tmp_path / kind).mkdir()
        for i in range(2):
            part = rows[3 * i : 3 * i + 3]
            path = tmp_path / kind / f"{i}.{kind}"
            part.to_parquet(path) if kind == "parquet" else part.to_csv(path, index=False)
        (tmp_path / kind / "_SUCCESS").touch()
        (tmp_path / kind / ".hidden.csv").touch()
    (tmp_path / "0.txt").write_text("a,s\n1,x\n")
    return tmp_path


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("where", ["{}", "{}/*.{}", "{}/1.{}"])
@pytest.mark.parametrize("relative", [False, True])
def test_read(inputs, monkeypatch, kind, where, relative):
    monkeypatch.chdir(inputs)
    path = where.format(kind, kind)
    have = read(path if relative else inputs / path).compute()
    assert list(have.columns) == ["a", "s"]
    assert sorted(have["a"]) == ([3, 4, 5] if "1." in path else [0, 1, 2, 3, 4, 5])


def test_read_in_partitions(inputs):
    rows = pd.DataFrame({"a": np.arange(20_000)})
    rows.to_csv(inputs / "big.csv", index=False)
    assert read(inputs / "big.csv", partition_bytes=20_000).npartitions > 4


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "matches"),
        ("*.nothing", "matches"),
        ("0.txt", r"suffixes \['.txt'\]"),
        ("broken.parquet", "as parquet"),
        ("*/0.*", "need all parquet or all csv"),
        ("empty", "no Parquet or CSV files in the directory"),
    ],
)
def test_read_of_what_is_not_there(inputs, path, message):
    (inputs / "empty").mkdir()
    (inputs / "broken.parquet").write_text("a,s")
    with pytest.raises(InputError, match=message):
        read(inputs / path).compute()


def test_engine_keeps_the_type_names_that_pandas_can_read():
    plain = pd.DataFrame({"a": pd.array([1, None], "Int64")})
    fixed = plain.assign(b=pd.array([b"x", b"y"], pd.ArrowDtype(pa.binary(1))))
    tables = [sort.NamelessEngine._pandas_to_arrow_table(f) for f in (plain, fixed)]
    assert [t.schema.pandas_metadata is None for t in tables] == [False, True]
