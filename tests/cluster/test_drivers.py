"""Several programs on one cluster: each gets its share, and none harms another by its death."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_joined import run_beside

pytestmark = pytest.mark.cluster

DRIVER = """
import json, os, sys, time
import dask, dask.dataframe as dd, numpy as np, pandas as pd, dask_exo

def work(part, seconds):
    begun = time.time()
    time.sleep(seconds)
    return pd.DataFrame({"begun": [begun], "ended": [time.time()]})

def rows(i):
    return pd.DataFrame({"a": np.arange(1000) + i})

address, share, count, kind = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dask_exo.enable(address=address)
meta = pd.DataFrame({"begun": [0.0], "ended": [0.0]})
ddf = dd.from_map(rows, range(count), meta=rows(0))
if kind == "shuffle":
    ddf = ddf.map_partitions(lambda p: (time.sleep(0.2), p)[1], meta=ddf._meta)
    ddf = ddf.shuffle("a", npartitions=count)
print("ready", flush=True)
sys.stdin.readline()  # all programs begin at once
if kind == "keep":
    large = lambda i: pd.DataFrame({"a": np.zeros(10**6)})
    kept = dd.from_map(large, range(20), meta=rows(0) * 1.0).persist()
    len(kept)
    print("kept", flush=True)
with dask.config.set({"exo.share": share, "exo.fault.nondeterminism": "ignore"}):
    done = ddf.map_partitions(work, 0.2, meta=meta).compute()
print(json.dumps(done.values.tolist()), flush=True)
"""

PROGRAMS = """
import json, os, signal, subprocess, sys, time, ray
import dask_exo
from dask_exo.cluster.on_ray import RayFutures

address, driver = sys.argv[1:]

def start(*args):
    command = [sys.executable, "-W", "ignore", "-c", driver, address, *map(str, args)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **pipes)

def begin(*programs):
    for program in programs:
        assert program.stdout.readline() == "ready\\n"
    for program in programs:
        print(file=program.stdin, flush=True)

def used(tasks, begin, end):
    return sum(max(0.0, min(e, end) - max(b, begin)) for b, e in tasks)

def results(*programs):
    found = [json.loads(p.communicate(timeout=150)[0].splitlines()[-1]) for p in programs]
    assert not any(p.returncode for p in programs)
    return found

for shares, kind in (((1, 1), "tasks"), ((3, 1), "tasks"), ((1, 1), "shuffle")):
    programs = [start(share, 50 * (1 + share), kind) for share in shares]
    begin(*programs)
    first, second = results(*programs)
    # from the moment when both have run for a while until one of them ends
    since = max(min(b for b, _ in first), min(b for b, _ in second)) + 4
    until = min(max(e for _, e in first), max(e for _, e in second)) - 1
    assert until > since + 2, (since, until)
    parts = used(first, since, until), used(second, since, until)
    print(shares, kind, round(parts[0] / sum(parts), 2), round(until - since, 1))
    if kind == "tasks":
        assert abs(parts[0] / sum(parts) - shares[0] / sum(shares)) < 0.15, parts

dask_exo.enable(address=address)
other = start(1, 100, "tasks")
victim = start(1, 200, "keep")
begin(other, victim)
assert victim.stdout.readline() == "kept\\n"
futures = RayFutures()
assert futures.store().used > 150e6, futures.store()
victim.send_signal(signal.SIGKILL)
killed = time.monotonic()
while futures.store().used > 5e6:
    assert time.monotonic() < killed + 30, futures.store()
    time.sleep(0.2)
print("freed after", round(time.monotonic() - killed, 1))
(tasks,) = results(other)
assert len(tasks) == 100
JOB = '''
import dask, dask.dataframe as dd, pandas as pd, dask_exo
from dask_exo.cluster.on_ray import connection
from ray.experimental.internal_kv import _internal_kv_list
dask.config.set(scheduler=dask_exo.get)
ddf = dd.from_pandas(pd.DataFrame({"a": range(100)}), npartitions=4)
assert ddf.shuffle("a").a.sum().compute() == 4950
assert connection._cluster is not None and not connection.private()
for place in ("dask_exo-shares", "dask_exo-recomputed"):  # nothing of the dead program is left
    assert not _internal_kv_list("", namespace=place), place
print("job")
'''
environment = {**os.environ, "RAY_ADDRESS": address}
subprocess.run([sys.executable, "-W", "ignore", "-c", JOB], check=True, env=environment)
print("done")
"""


@pytest.mark.timeout(600)  # two minutes, where nothing else runs
def test_programs_share_a_cluster(tmp_path: Path) -> None:
    node = {"object_spilling_directory": str(tmp_path / "a"), "object_store_memory": 500_000_000}
    node["num_cpus"] = 4
    output = run_beside([node], "-W", "ignore", "-c", PROGRAMS, "ADDRESS", DRIVER, timeout=500)
    print(output)
    assert output.splitlines()[-1] == "done", output
