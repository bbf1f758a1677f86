"""Computations on a cluster whose nodes Ray's autoscaler starts when they are wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._data import run_python

pytestmark = pytest.mark.cluster

PORT = 6390
HEAD = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"  # of Ray's fake provider
STORE = 200_000_000
NODES = {
    "cpu": {"resources": {"CPU": 2, "object_store_memory": STORE}, "max_workers": 2},
    "gpu": {"resources": {"CPU": 1, "GPU": 1, "object_store_memory": STORE}, "max_workers": 1},
    "ray.head.default": {"resources": {"CPU": 0}, "max_workers": 0},
}
EMPTY = ("initialization_commands", "setup_commands", "head_setup_commands", "rsync_filter")
EMPTY += ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
EMPTY += ("cluster_synced_files", "rsync_exclude")


def config(address: str) -> dict[str, object]:
    """Return the configuration of an autoscaler whose nodes are processes of this machine."""
    provider = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    return {
        "cluster_name": "test",
        "max_workers": 4,
        "upscaling_speed": 100,
        "idle_timeout_minutes": 0.2,
        "provider": {
            "type": "external",
            "module": provider,
            "launch_multiple": True,
            "head_node_id": HEAD,
            "gcs_address": address,
        },
        "available_node_types": {name: {**kind, "node_config": {}} for name, kind in NODES.items()},
        "head_node_type": "ray.head.default",
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in EMPTY},
        "file_mounts_sync_continuously": False,
    }


@pytest.fixture
def address(ray_folder: Path) -> Iterator[str]:
    """Address of a head without slots; its autoscaler starts up to three nodes."""
    from ray.util import get_node_ip_address

    folder = ray_folder
    address, path = f"{get_node_ip_address()}:{PORT}", folder / "autoscaler.json"
    path.write_text(json.dumps(config(address)))
    own = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "RAY_AUTH_MODE": "disabled",
    }
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    command += [f"--port={PORT}", "--num-cpus=0", f"--object-store-memory={STORE}"]
    command += ["--include-dashboard=false", f"--temp-dir={folder}/r"]
    command += [f"--autoscaling-config={path}"]
    with (folder / "output").open("w") as output:
        head = subprocess.Popen(command, env={**os.environ, **own}, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in (folder / "output").read_text():
            assert time.monotonic() < deadline, (folder / "output").read_text()
            assert head.poll() is None, (folder / "output").read_text()
            time.sleep(0.2)
        yield address
    finally:
        head.kill()
        head.wait(30)


PROGRAM = """
import sys, time, dask, dask.dataframe as dd, pandas as pd, pytest, dask_exo
from dask_exo.cluster.on_ray import RayFutures
from dask_exo.errors import ClusterError, ExoError
import ray
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.experimental.internal_kv import internal_kv_get_gcs_client

def asked():
    reply = GetClusterStatusReply()
    reply.ParseFromString(internal_kv_get_gcs_client().get_cluster_status(timeout_s=10))
    constraints = reply.cluster_resource_state.cluster_resource_constraints
    return [r for constraint in constraints for r in constraint.resource_requests if r.count]

def where(part):
    time.sleep(0.5)
    return part.assign(node=ray.get_runtime_context().get_node_id())

dask_exo.enable(address=sys.argv[1])
df = pd.DataFrame({"a": range(100_000), "b": 1.0})
ddf = dd.from_pandas(df, npartitions=4)  # with more, the node with the GPU starts for its CPU
begin = time.monotonic()
total = ddf.shuffle("a", npartitions=4).map_partitions(where).compute()
assert total.a.sum() == df.a.sum()
print("cpu", total.node.nunique(), round(time.monotonic() - begin, 1))
found = ddf.exo.map_partitions(lambda part: part.assign(c=part.a * 2), num_gpus=1).compute()
assert found.c.sum() == 2 * df.a.sum()
print("gpu", round(time.monotonic() - begin, 1))
pipeline = ddf.exo.pipeline().map_batches(lambda part: part.assign(d=1), num_gpus=1)
assert sum(len(block) for block in pipeline.iter_batches()) == len(df)
print("pipeline", round(time.monotonic() - begin, 1))
with pytest.raises(ExoError, match="4 GPU"):  # no type of node has them: no wait
    ddf.exo.map_partitions(lambda part: part, num_gpus=4).compute()
print("refused", round(time.monotonic() - begin, 1))
busy = {"exo.fault.node-timeout": 2}
with dask.config.set(busy), pytest.raises(ExoError, match="1 x"):
    ddf.exo.map_partitions(lambda part: part, resources={"x": 1}).compute()
assert not asked(), asked()
print("done", round(time.monotonic() - begin, 1))
"""


def test_nodes_start_on_demand_from_zero(address: str) -> None:
    done = run_python("-W", "ignore", "-c", PROGRAM, address, timeout=250)
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waits for a node with 1 CPU to start" in done.stderr
    assert "waits for a node with 1 CPU, 1 GPU to start" in done.stderr
