"""Collections that outlive the program that has published them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_joined import run_beside

pytestmark = pytest.mark.cluster

WRITE = """
import sys, dask.dataframe as dd, pandas as pd, dask_exo
dask_exo.enable(address=sys.argv[1])
df = pd.DataFrame({"a": range(4_000_000), "b": 1.5})
dd.from_pandas(df, npartitions=8).exo.publish("numbers")
df.b = 2.5
dd.from_pandas(df, npartitions=8).shuffle("a", npartitions=4).exo.publish("shuffled")
dd.from_pandas(pd.Series([1, 2, 3], name="s"), npartitions=1).exo.publish("few")
"""

HALF = """
import os, sys, ray, dask_exo
from dask_exo.cluster.on_ray import publication
dask_exo.enable(address=sys.argv[1])
ref = ray.put(b"1" * 10**6)
publication.internal_kv._internal_kv_put = lambda *args, **kwargs: os._exit(9)
what = publication.Publication("half", "DataFrame", 1, 1, 10**6)
publication.publish_values(what, [ref], overwrite=False)
"""

READ = """
import gc, os, sys, time, dask.dataframe as dd, pandas as pd, pytest, ray, dask_exo
from ray.util import list_named_actors
from dask_exo.cluster import on_ray
from dask_exo.errors import InputError, OutputExistsError

def owners():
    return [a for a in list_named_actors(all_namespaces=True) if "published" in a["namespace"]]

def until(condition):
    for _ in range(100):
        gc.collect()
        if condition():
            return True
        time.sleep(0.2)
    return False

dask_exo.enable(address=sys.argv[1])
df = pd.DataFrame({"a": range(4_000_000), "b": 1.5})
ddf = dask_exo.published("numbers")
assert ddf.divisions[0] == 0 and ddf.known_divisions and ddf.npartitions == 8
pd.testing.assert_frame_equal(ddf.compute(), df)
assert dask_exo.published("shuffled").b.sum().compute() == 10**7
assert dask_exo.published("few").compute().tolist() == [1, 2, 3]
assert [p.name for p in on_ray.publications()] == ["few", "numbers", "shuffled"]
assert [p.rows for p in on_ray.publications()] == [3, 4_000_000, 4_000_000]
assert until(lambda: len(owners()) == 3), owners()  # that of the killed program ends
with pytest.raises(OutputExistsError, match="overwrite=True"):
    ddf.exo.publish("numbers")
with pytest.raises(InputError, match="few, numbers, shuffled"):
    dask_exo.published("letters")
used = on_ray.RayFutures().store().used
assert used > 120e6, used
ddf[ddf.a < 1000].exo.publish("numbers", overwrite=True)
assert [p.name for p in on_ray.publications()] == ["few", "numbers", "shuffled"]
for _ in range(10):  # this program keeps what it reads, and its owner does not end before
    assert len(owners()) == 4, owners()
    time.sleep(0.2)
assert ddf.a.sum().compute() == df.a.sum()
del ddf
assert len(dask_exo.published("numbers")) == 1000
for command in ("list", "delete shuffled"):
    line = f"{sys.executable} -m dask exo published {command} --address {sys.argv[1]}"
    assert os.system(line) == 0
assert until(lambda: on_ray.RayFutures().store().used < 10e6), on_ray.RayFutures().store()
assert until(lambda: len(owners()) == 2), owners()
on_ray.delete_publication("few"), on_ray.delete_publication("numbers")
print("read")
"""

PROGRAMS = """
import subprocess, sys
address, *programs = sys.argv[1:]
codes = [subprocess.call([sys.executable, "-W", "ignore", "-c", p, address]) for p in programs]
assert codes == [0, 9, 0], codes
"""


def test_published_collections_outlive_their_program(tmp_path: Path) -> None:
    store = {"object_store_memory": 300_000_000}
    nodes = [{**store, "object_spilling_directory": str(tmp_path / name)} for name in "ab"]
    output = run_beside(nodes, "-c", PROGRAMS, "ADDRESS", WRITE, HALF, READ)
    lines = output.splitlines()
    assert lines[-1] == "read", output
    assert "deleted shuffled, " in output
    assert any(line.endswith("  shuffled") and "4,000,000" in line for line in lines), output


def test_a_private_ray_cannot_publish(cluster: None) -> None:
    import dask.dataframe as dd
    import pandas as pd

    from dask_exo.errors import ClusterError

    ddf = dd.from_pandas(pd.DataFrame({"a": [1]}), npartitions=1)
    with pytest.raises(ClusterError, match=r"exo\.address names, or write files"):
        ddf.exo.publish("a")
