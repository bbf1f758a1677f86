"""Nodes join, get notice of their end, and end, while computations run on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests._data import run_python

pytestmark = pytest.mark.cluster

SETUP = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
import dask, dask.dataframe as dd, numpy as np, pandas as pd, ray, dask_exo
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from dask_exo.cluster.on_ray import RayFutures

PREEMPTION = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")

def start(name, slots=2):
    return cluster.add_node(
        num_cpus=slots, object_store_memory=150_000_000, object_spilling_directory=sys.argv[1]
    )

def drain(node, seconds):
    deadline = int(1000 * (time.time() + seconds))
    reply = GcsClient(cluster.address).drain_node(node.node_id, PREEMPTION, "spot", deadline)
    assert reply[0], reply

cluster = Cluster()
head, a, b = start("head", 0), start("a"), start("b")
cluster.wait_for_nodes()
dask_exo.enable(address=cluster.address)
"""

SHUFFLE = (
    SETUP
    + """
def slowly(part, stage):
    begun = time.time()
    time.sleep(0.5)
    return part.assign(**{stage: ray.get_runtime_context().get_node_id(), stage + "_at": begun})

df = pd.DataFrame({"a": np.arange(2_000_000) % 1_000_003, "b": 1.0})
ddf = dd.from_pandas(df, npartitions=48).map_partitions(slowly, "map")
ddf = ddf.shuffle("a", npartitions=40).map_partitions(slowly, "reduce")
ddf = ddf.groupby(["map", "reduce"])[["b", "map_at", "reduce_at"]].agg(
    {"b": "sum", "map_at": "max", "reduce_at": "max"}
)
dask.config.set({"exo.fault.nondeterminism": "ignore"})  # times and nodes differ
pool = ThreadPoolExecutor(1)
future = pool.submit(ddf.compute)
time.sleep(2)
c = start("c").node_id
time.sleep(8)
drain(b, 60)
drained = time.time()
time.sleep(4)
cluster.remove_node(b, allow_graceful=False)
found = future.result().reset_index()
assert found.b.sum() == len(df), found
assert c in set(found["map"].astype(str)), "no map on the node that joined"
assert c in set(found["reduce"].astype(str)), "no reducer on the node that joined"
late = found[found["reduce"].astype(str) == b.node_id].reduce_at.max()
assert not late > drained + 3, late - drained
print("repeated", len(RayFutures().recomputed()))
print("done")
dask_exo.disable()
cluster.shutdown()
"""
)

PERSIST = (
    SETUP
    + """
from ray.experimental import get_local_object_locations
from dask_exo.execution.persisted import stored_refs

df = pd.DataFrame({"a": np.arange(4_000_000), "b": 1.0})
kept = dd.from_pandas(df, npartitions=16).map_partitions(lambda part: part.assign(b=part.b + 1))
kept = kept.persist()
assert kept.b.sum().compute() == 2 * len(df)

def only_on_b():
    places = get_local_object_locations(list(stored_refs()))
    return sum(set(place["node_ids"]) == {b.node_id} for place in places.values())

assert only_on_b(), "all values are on the other node"
drain(b, 60)
deadline = time.monotonic() + 30
while only_on_b():
    assert time.monotonic() < deadline, only_on_b()
    time.sleep(0.2)
cluster.remove_node(b, allow_graceful=False)
time.sleep(5)
assert [node.id for node in RayFutures().nodes()] == [a.node_id]
assert kept.b.sum().compute() == 2 * len(df)
assert not RayFutures().recomputed(), RayFutures().recomputed()
print("done")
dask_exo.disable()
cluster.shutdown()
"""
)


@pytest.mark.parametrize("program", [SHUFFLE, PERSIST], ids=["shuffle", "persist"])
def test_nodes_join_and_end(tmp_path: Path, program: str) -> None:
    done = run_python("-W", "ignore", "-c", program, tmp_path, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
