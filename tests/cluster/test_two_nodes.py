"""Two Ray nodes with scratch directories of their own: not one row may be missing.

The same code on Ray's own ``enable_dask_on_ray()`` loses rows here, since that leaves Dask at its
disk shuffle: ``python tests/cluster/test_two_nodes.py`` shows both side by side.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests._data import run_python

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode,
        reason="needs the right to make mount namespaces",
    ),
]

ROWS = 200_000

DRIVER = """
import sys, numpy as np, pandas as pd, dask, dask.dataframe as dd
address, who = sys.argv[1:]
ddf = dd.from_pandas(
    pd.DataFrame({"k": np.arange(200_000) % 977, "v": np.arange(200_000)}), npartitions=20
)
if who == "exo":
    import dask_exo
    dask_exo.enable(address=address)
else:
    import ray
    from ray.util.dask import enable_dask_on_ray
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    enable_dask_on_ray()
import ray
assert len([n for n in ray.nodes() if n["Alive"]]) == 2
for _ in range(2):
    print(len(ddf.shuffle("k").compute()))
    print(len(ddf.set_index("v", npartitions=20, sort=True).compute()))
    print(len(ddf.merge(ddf, on="v", broadcast=False).compute()))
if who == "exo":
    from dask_exo import shuffle
    for name in shuffle.names():
        with dask.config.set({"exo.shuffle.algorithm": name}):
            print(len(ddf.shuffle("k").compute()))
    parts = [np.arange(i, 200_000, 50) for i in range(50)]
    count = lambda *arrays: sum(map(len, arrays))
    halves = shuffle.Program(2, lambda a: [a[a < 10_000], a[a >= 10_000]], count)
    print(sum(ray.get(shuffle.run(parts, halves, "riffle"))))
"""


@contextmanager
def two_nodes() -> Iterator[tuple[str, dict[str, str]]]:
    """A head and a worker node, each with a disk of its own at the same path."""
    base = Path(tempfile.mkdtemp(prefix="exo2-"))
    scratch = base / "scratch"
    scratch.mkdir()
    env = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "DASK_TEMPORARY_DIRECTORY": str(scratch),
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = Path(sys.executable).parent / "ray"
    start = f"{ray} start --block --num-cpus=1 --object-store-memory=150000000"
    head = f"--head --port={port} --temp-dir={base}/ray --include-dashboard=false"
    nodes = []
    try:
        for options in (head, f"--address=127.0.0.1:{port}"):
            command = f"mount -t tmpfs tmpfs {scratch} && exec {start} {options}"
            nodes.append(
                subprocess.Popen(
                    ["unshare", "-m", "sh", "-c", command],
                    env=env,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with socket.socket() as knock:
                    if knock.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.2)
            time.sleep(5)  # the node joins after the port is open
        yield f"127.0.0.1:{port}", env
    finally:
        for node in nodes:
            os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            try:
                node.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(node.pid, signal.SIGKILL)
                node.wait()
        shutil.rmtree(base, ignore_errors=True)


def lengths(address: str, env: dict[str, str], who: str) -> list[str]:
    """What each of the driver's computations has left of the rows."""
    done = run_python("-W", "ignore", "-c", DRIVER, address, who, **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_no_row_is_lost_with_private_scratch_directories() -> None:
    with two_nodes() as (address, env):
        assert lengths(address, env, "exo") == [str(ROWS)] * (6 + 6 + 1)


if __name__ == "__main__":
    with two_nodes() as (address, env):
        for who in ("stock", "exo"):
            print(who, *lengths(address, env, who))
