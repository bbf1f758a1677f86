"""A cluster that somebody else started is as safe as a private Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

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
time.sleep(6)
assert on_ray_futures._states.memory([node.id for node in nodes]) == {}  # idle ones are unknown
print("seen")
dask_exo.disable()
"""


@contextlib.contextmanager
def started(*spill: Path, **head: object) -> Iterator[str]:
    """Start a node of two slots for each spill directory; yield the address of the cluster."""
    cluster = Cluster()
    try:
        for number, path in enumerate(spill):
            path.mkdir()
            options = {"object_store_memory": 200_000_000, **({} if number else head)}
            cluster.add_node(wait=True, num_cpus=2, object_spilling_directory=str(path), **options)
        yield str(cluster.address)
    finally:
        cluster.shutdown()


def test_memory_and_disks_of_all_nodes_are_known(tmp_path: Path, monkeypatch) -> None:
    for name in WORKER_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    paths = tmp_path / "a", tmp_path / "b"
    with started(*paths) as address:
        done = run_python("-c", SEEN, address, *paths)
    assert done.stdout.splitlines()[-1] == "seen", done.stdout + done.stderr
    assert "export MALLOC_MMAP_THRESHOLD_=1073741824" in done.stdout
    assert "PYTHONHASHSEED=0" in done.stdout
    assert "before `ray start`" in done.stdout


def test_the_tests_of_disks_pass_on_a_joined_cluster(tmp_path: Path, monkeypatch) -> None:
    for name, value in WORKER_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    config = {"min_spilling_size": 100 * 2**20}
    spill = tmp_path / "spill"
    with started(spill, object_store_memory=300_000_000, _system_config=config) as address:
        done = run_python(
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::UserWarning"),
            Path(__file__).with_name("test_disks.py"),
            timeout=400,
            DASK_EXO_TEST_ADDRESS=address,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
