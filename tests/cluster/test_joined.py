"""A cluster that somebody else started is as safe as a private Ray."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dask_exo.cluster.on_ray.connection import WORKER_ENVIRONMENT
from tests._data import run_python

pytestmark = pytest.mark.cluster

SEEN = """
import sys, time, warnings, dask.array as da, dask_exo
from dask_exo.cluster.on_ray import RayFutures
from dask_exo.cluster.on_ray import futures as on_ray_futures

def asleep(block):
    time.sleep(2)
    return block

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    dask_exo.enable(address=sys.argv[1])
print("warned", [str(w.message) for w in warned if "without variables" in str(w.message)])
futures = RayFutures()
nodes = futures.nodes()
assert len(nodes) == 2
assert all(node.disk > 0 for node in nodes), nodes
before = futures.disks()
assert {disk.path for disk in before} == set(sys.argv[2:])
assert da.ones(20, chunks=1).map_blocks(asleep).sum().compute() == 20  # start workers on both
random = da.random.default_rng(0)
kept = random.random((100, 10**6), chunks=(5, 10**6)).persist()  # 800 MB, of two stores of 200 MB
assert 0 < kept.sum().compute() < 100 * 10**6
assert kept.map_blocks(asleep).max().compute() < 1
states = on_ray_futures._states.memory([node.id for node in nodes])
assert states.keys() == {node.id for node in nodes}, states  # both have just run calls
assert 0 < futures.memory() < 1
assert futures.memory() >= max(states.values()) - 0.05
used = {disk.path: disk.used for disk in futures.disks()}
assert min(used.values()) > 50e6, used
time.sleep(8)
assert on_ray_futures._states.memory([node.id for node in nodes]) == {}  # idle ones are unknown
print("seen")
dask_exo.disable()
"""


TESTS = """
import os, sys, pytest
os.environ["DASK_EXO_TEST_ADDRESS"] = sys.argv[1]
sys.exit(pytest.main(sys.argv[2:]))
"""

NODES = """
import json, subprocess, sys
from ray.cluster_utils import Cluster

nodes, command = json.loads(sys.argv[1]), sys.argv[2:]
cluster = Cluster()
try:
    for node in nodes:
        cluster.add_node(wait=True, **{"num_cpus": 2, **node})
    words = [cluster.address if word == "ADDRESS" else word for word in command]
    done = subprocess.run(words)
finally:
    cluster.shutdown()
sys.exit(done.returncode)
"""


def run_beside(nodes: list[dict[str, object]], *command: object, **options: Any) -> str:
    """Run Python with a command beside nodes of two slots; return its output.

    The word ``ADDRESS`` in the command stands for the address of the cluster. A process of its own
    starts the nodes, for Ray's `Cluster` resets the connection of the process that it is in.
    """
    for node in nodes:
        Path(str(node["object_spilling_directory"])).mkdir()
    words = [sys.executable, *map(str, command)]
    done = run_python("-c", NODES, json.dumps(nodes), *words, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_memory_and_disks_of_all_nodes_are_known(tmp_path: Path, monkeypatch) -> None:
    for name in WORKER_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    paths = [str(tmp_path / name) for name in "ab"]
    store = {"object_store_memory": 200_000_000}
    nodes = [{**store, "object_spilling_directory": path} for path in paths]
    output = run_beside(nodes, "-c", SEEN, "ADDRESS", *paths)
    assert output.splitlines()[-1] == "seen", output
    assert "export MALLOC_MMAP_THRESHOLD_=1073741824" in output
    assert "PYTHONHASHSEED=0" in output
    assert "before `ray start`" in output


def test_the_tests_of_disks_pass_on_a_joined_cluster(tmp_path: Path, monkeypatch) -> None:
    for name, value in WORKER_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    node = {
        "object_spilling_directory": str(tmp_path / "spill"),
        "object_store_memory": 300_000_000,
        "_system_config": {"min_spilling_size": 100 * 2**20},
    }
    output = run_beside(
        [node],
        *("-c", TESTS, "ADDRESS"),
        *("-q", "-p", "no:cacheprovider", "-W", "error::UserWarning"),
        Path(__file__).with_name("test_disks.py"),
        timeout=400,
    )
    assert "passed" in output
