"""Input and output in an object store: an emulator of S3, where `moto` and `s3fs` are installed."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests._data import run_python

s3fs = pytest.importorskip("s3fs")
pytest.importorskip("moto")

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


# One request of so many fails, and of each thousand the last thirty are throttled; all are counted.
SERVER = """
import itertools, sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

inner, port, one_of = DomainDispatcherApplication(create_backend_app), *map(int, sys.argv[1:])
number, lock = itertools.count(), threading.Lock()
seen = dict.fromkeys(("requests", "failed", "throttled"), 0)

def app(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/seen":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [" ".join(map(str, seen.values())).encode()]
    with lock:
        i = next(number)
        kind = ""
        if one_of:
            kind = "throttled" if i % 1000 >= 970 else "failed" if i % one_of == one_of - 1 else ""
        seen["requests"] += 1
        if kind:
            seen[kind] += 1
    if not kind:
        return inner(environ, start_response)
    body = environ["wsgi.input"]
    if environ.get("wsgi.input_terminated"):
        while body.read(2**20):
            pass
    else:  # beyond its length there is no end before the client gives up
        body.read(int(environ.get("CONTENT_LENGTH") or 0))
    status, code = ("503 Slow Down", "SlowDown") if kind == "throttled" else (
        "500 Internal Server Error", "InternalError")
    start_response(status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()]

run_simple("127.0.0.1", port, app, threaded=True)
"""


@pytest.fixture(scope="module", params=[0, 100], ids=["well", "faulty"])
def s3(request: pytest.FixtureRequest) -> Iterator[s3fs.S3FileSystem]:
    """A bucket; programs find it by their environment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-c", SERVER, str(port), str(request.param)]
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


def injected(s3: s3fs.S3FileSystem) -> dict[str, int]:
    """Return the requests that the emulator has seen, and those that it has refused."""
    with urllib.request.urlopen(f"{s3.endpoint_url}/seen") as page:
        numbers = map(int, page.read().split())
    return dict(zip(("requests", "failed", "throttled"), numbers, strict=True))


def test_a_sort_from_bucket_to_bucket(s3, tmp_path) -> None:
    rows = np.random.default_rng(0).integers(0, 10**9, (600_000, 4))
    frame = pd.DataFrame(rows, columns=list("abcd"))
    for i in range(6):
        frame[i::6].to_parquet(f"s3://bucket/in/{i}.parquet")
    before = injected(s3)
    command = ["-m", "dask", "exo", "sort", "--input", "s3://bucket/in", "--by", "a,b"]
    command += ["--output", "s3://bucket/out", "--partition-size", "1MB"]
    command += ["--object-store-memory", "200MB", "--num-cpus", "2"]
    done = run_python(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validated: 600,000 rows in order, checksum equal" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("object storage"))
    requests, retried, throttled = map(int, re.findall(r"([\d,]+) (?:req|ret|thr)", line))
    after = injected(s3)
    grown = {name: after[name] - before[name] for name in after}
    assert requests <= grown["requests"] <= 3 * requests, (line, grown)
    assert (retried > 0) == (grown["failed"] + grown["throttled"] > 0), (line, grown)
    assert throttled <= grown["throttled"]
    names = [Path(name).name for name in s3.find("bucket/out")]
    assert all(name.startswith("part-") or name == "_exo_manifest.json" for name in names), names
    s3.rm("bucket/out", recursive=True)
    s3.rm("bucket/in", recursive=True)


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
