"""The command ``dask exo sort``, here on Dask's threads."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dask
import pandas as pd
import pytest
from click.testing import CliRunner, Result

import dask_exo
from dask_exo import errors
from dask_exo.cli import main, sort, validate
from dask_exo.events import ShuffleFinished, emit
from dask_exo.testing.gensort import records

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")


@pytest.fixture
def clusters(monkeypatch) -> list[dict]:
    """Give the options of the clusters asked for; Dask's threads run instead."""
    asked: list[dict] = []

    @contextlib.contextmanager
    def enable(**cluster):
        asked.append(cluster)
        with dask.config.set(scheduler="threads", **{"dataframe.shuffle.method": "tasks"}):
            yield SimpleNamespace(cluster=None)

    monkeypatch.setattr(dask_exo, "enable", enable)
    return asked


def run(*args: object) -> Result:
    result = CliRunner().invoke(main.main, ["sort", *map(str, args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_made_up_records(tmp_path, clusters):
    out = tmp_path / "out"
    store = "--object-store-memory", "1GB"
    result = run("--size", "2MB", "--output", out, "--partition-size", "500kB", *store)
    assert result.exit_code == 0, result.output
    assert "validated: 20,000 rows in order, checksum equal, 0 duplicate keys" in result.output
    for stage in ("start Ray", "input checksum", r"sort \+ write", "validate"):
        assert re.search(rf"^{stage} +\d+\.\d\d s", result.output, re.MULTILINE), stage
    assert "4 partitions" in result.output
    assert len(list((tmp_path / "out").iterdir())) == 4
    assert validate.validate(tmp_path / "out", ["key_hi", "key_lo"]).first_disorder is None
    assert clusters[0]["shuffle.algorithm"] == "auto"


def test_little_is_sorted_on_threads(tmp_path, clusters):
    how = "--partition-size", "500kB", "--algorithm", "push"
    result = run("--size", "2MB", *how, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert clusters == []
    assert "start Ray" not in result.output
    assert re.search("^shuffle +push", result.output, re.MULTILINE)


def test_seed_and_skew(tmp_path, clusters):
    result = run("--size", "1MB", "--seed", 3, "--skew", 100, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    made = records(0, 10_000, seed=3, skew=100)
    duplicates = made.duplicated(["key_hi", "key_lo"]).sum()
    assert duplicates > 0
    assert f", {duplicates} duplicate keys" in result.output


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files(tmp_path, clusters, kind):
    rows = pd.DataFrame({"a": [2, 1, 2, 1], "b": [3, 4, 1, 1], "c": list("wxyz")})
    path = tmp_path / f"in.{kind}"
    rows.to_csv(path, index=False) if kind == "csv" else rows.to_parquet(path)
    result = run("--input", path, "--by", "a, b", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "4 rows in order" in result.output
    assert pd.read_parquet(tmp_path / "out")["c"].tolist() == ["z", "x", "y", "w"]


def test_temporary_output_is_named_and_removed(clusters):
    result = run("--size", "10kB")
    assert result.exit_code == 0, result.output
    place = re.search(r"writing to (\S+), removed at the end", result.output)[1]
    assert not Path(place).exists()


def test_without_validation(tmp_path, clusters, monkeypatch):
    monkeypatch.setattr(sort, "input_checksum", lambda frame: pytest.fail("not asked for"))
    result = run("--size", "10kB", "--no-validate", "--output", tmp_path / "out")
    assert result.exit_code == 0
    assert "not validated" in result.output


def test_wrong_output_is_told(tmp_path, clusters, monkeypatch):
    original = sort.sort_rows
    monkeypatch.setattr(sort, "sort_rows", lambda f, by, **kw: original(f, by, **kw)[1:])
    result = run("--size", "10kB", "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert "it has 99 rows, the input has 100" in result.stderr
    monkeypatch.setattr(sort, "sort_rows", lambda f, by, **kw: original(f, by, **kw)[::-1])
    result = run("--size", "10kB", "--output", tmp_path / "out", "--overwrite")
    assert result.exit_code == 1
    assert "row 1 of part.0.parquet is smaller" in result.stderr


def test_cluster_options(tmp_path, clusters):
    run("--size", "10kB", "--num-cpus", 3, "--object-store-memory", "1GB", "--algorithm", "push",
        "--spill-directory", "/spill", "--address", "auto")  # fmt: skip
    assert clusters == [
        {
            "address": "auto",
            "num_cpus": 3,
            "object_store_memory": 10**9,
            "spill_directory": "/spill",
            "shuffle.algorithm": "push",
        }
    ]


def test_report_of_shuffles(clusters, monkeypatch):
    original = sort.sort_to_parquet

    def with_event(*args, **kwargs):
        emit(ShuffleFinished("x", "push", "larger than the store", 8, 6, 3, 9, 100, 0, 10**9, 1.0))
        return original(*args, **kwargs)

    monkeypatch.setattr(sort, "sort_to_parquet", with_event)
    output = run("--size", "10kB").output
    assert "push, 8 maps → 6 reducers in 3 rounds" in output
    assert "larger than the store" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give either --size"),
        (["--size", "1kB", "--input", "x"], "give either --size"),
        (["--input", "x"], "needs --by"),
        (["--size", "many"], "'many' is not a size"),
        (["--size", "-1kB"], "not above 0"),
        (["--size", "1kB", "--skew", "-1"], "--skew"),
        (["--size", "1kB", "--algorithm", "bubble"], "--algorithm"),
        (["--size", "1kB", "--by", "nope"], "no column 'nope'"),
        (["--input", "/no/such/file", "--by", "a"], "matches '/no/such/file'"),
        (["--size", "1kB", "--output", "/no/such/dir/out"], "no directory '/no/such/dir'"),
        (["--size", "1PB", "--partition-size", "100TB"], "too small: need"),
        (["--size", "1kB", "--output", "/"], "output '/' exists"),
    ],
)
def test_bad_usage(clusters, args, message):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    # nothing was started for it
    assert clusters == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x y"), 2),
        (errors.ClusterError("x y"), 1),
        (errors.SpillError("x y"), 1),
    ],
)
def test_errors_are_one_line(monkeypatch, error, code):
    def enable(**cluster):
        raise error

    monkeypatch.setattr(dask_exo, "enable", enable)
    result = run("--size", "1kB", "--address", "auto")
    assert result.exit_code == code
    assert result.stderr == "dask exo: x y\n"


@pytest.mark.parametrize("nbytes", [1, 10**8, 10**9, 10**10, 10**13])
@pytest.mark.parametrize("slots", [1, 2, 64])
def test_partition_bytes(nbytes, slots):
    each = sort.partition_bytes(nbytes, slots)
    assert 8_000_000 <= each <= 128_000_000
    assert each == 8_000_000 or nbytes / each >= 4 * slots


def test_dask_has_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "dask", "exo", "sort", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "--object-store-memory" in done.stdout
