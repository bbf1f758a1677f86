"""Input and output in an object store: an emulator of S3, where `moto` and `s3fs` are installed."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._data import run_python

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[s3fs.S3FileSystem]:
    """A bucket; programs find it by their environment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    address = f"http://127.0.0.1:{port}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        fs = s3fs.S3FileSystem(endpoint_url=address, skip_instance_cache=True)
        deadline = time.monotonic() + 60
        while True:
            try:
                fs.mkdir("bucket")
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield fs
    server.kill()
    server.wait()


def test_cloudsort_from_bucket_to_bucket(s3) -> None:
    place = ["--store", "s3://bucket/sort", "--upload", "6MB"]
    options = ["--size", "100MB", "--parts", "8", "--reducers", "6", "--skew", "2"]
    done = run_python(ROOT / "examples" / "cloudsort.py", *options, *place)
    assert done.returncode == 0, done.stderr
    assert "1000000 records" in done.stdout
    assert "all in order" in done.stdout
    found = s3.ls("bucket/sort/output", detail=True)
    assert len(found) == 6
    assert sum(each["size"] for each in found) == 10**8
    parts = [int(each["ETag"].strip('"').partition("-")[2]) for each in found]
    assert sum(parts) >= 10**8 // 6_000_000  # each was uploaded in several parts


PROGRAM = """
import dask, dask.dataframe as dd, dask_exo, pandas as pd
if __name__ == "__main__":
    with dask_exo.enable(num_cpus=2), dask.config.set({"exo.engine": "ray"}):
        ddf = dd.from_pandas(pd.DataFrame({"k": range(1000), "x": 1.5}), npartitions=5)
        ddf.exo.to_parquet("s3://bucket/table", target_file_size="4kB")
        back = dd.read_parquet("s3://bucket/table")
        print(int(back.k.sum().compute()), len(back))
        print(int(back.shuffle("k").exo.checkpoint().k.sum().compute()))
"""


def test_tables_are_written_once_and_read_back(s3, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_EXO__CHECKPOINT__PATH", "s3://bucket/kept")
        for _ in range(2):
            done = run_python(program)
            assert done.returncode == 0, done.stderr
            assert done.stdout.split() == [str(sum(range(1000))), "1000", str(sum(range(1000)))]
            files = s3.find("bucket/table")
            s3.rm("bucket/table", recursive=True)
    parts = [name for name in files if name.endswith(".parquet")]
    assert len(parts) > 1
    assert [Path(name).name for name in files if name not in parts] == ["_exo_manifest.json"]
    assert s3.find("bucket/kept")
