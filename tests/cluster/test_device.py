"""Frames on a simulated device, on real Ray, against pandas."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_exo.errors import DeviceError
from tests._data import run_python

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def test_they_are_sorted_joined_and_grouped() -> None:
    random = np.random.default_rng(1)
    words = pd.array(["a", "b", "cc", "é", None], dtype="string[pyarrow]")
    frame = pd.DataFrame(
        {
            "k": random.integers(0, 40, 20_000),
            "f": random.random(20_000).round(6),
            "s": words.take(random.integers(0, 5, 20_000)),
        }
    )
    names = pd.DataFrame({"k": range(30), "z": np.arange(30) * 0.5})
    with dask.config.set({"exo.gpu.simulate": True}):
        there = dd.from_pandas(frame, npartitions=4).exo.to_gpu()
        other = dd.from_pandas(names, npartitions=2).exo.to_gpu()
        found = dask.compute(  # this Ray has no slots for GPUs either
            there.exo.sort_values(["s", "f"]).exo.to_pandas(),
            there.merge(other, on="k", broadcast=False).exo.to_pandas(),
            there.groupby(["k", "s"]).f.sum(split_out=2).exo.to_pandas(),
        )
    pd.testing.assert_frame_equal(found[0], frame.sort_values(["s", "f"], kind="stable"))
    joined = (
        df.sort_values(["k", "f"]).reset_index(drop=True) for df in (found[1], frame.merge(names))
    )
    pd.testing.assert_frame_equal(*joined)
    pd.testing.assert_series_equal(found[2].sort_index(), frame.groupby(["k", "s"]).f.sum())


def test_a_cluster_without_gpus_refuses_at_once() -> None:
    with dask.config.set({"exo.gpu.simulate": True}):
        there = dd.from_pandas(pd.DataFrame({"a": range(9)}), npartitions=3).exo.to_gpu()
    with pytest.raises(DeviceError, match="need 1 GPU each, and the 1 nodes have 0 GPUs"):
        there.a.sum().compute()


def test_stages_on_simulated_devices_need_no_slots_either() -> None:
    frame = pd.DataFrame({"a": np.arange(40)})
    with dask.config.set({"exo.gpu.simulate": True}):
        source = dd.from_pandas(frame, npartitions=4).exo.pipeline()
        doubled = source.map_batches(lambda batch: batch.assign(a=batch.a * 2), format="device")
        found = pd.concat(doubled.iter_batches())
    assert sorted(found.a) == list(range(0, 80, 2))


GPUS = """
import os
import dask, dask.dataframe as dd, pandas as pd
import dask_exo

def seen(part):
    return part.assign(gpu=int(os.environ.get("CUDA_VISIBLE_DEVICES") or -1), process=os.getpid())

def main():
    frame = pd.DataFrame({"k": range(60), "f": 1.0})
    simulate = dask.config.set({"exo.gpu.simulate": True, "exo.gpu.per-task": 0.5})
    with simulate, dask_exo.enable(num_cpus=2, num_gpus=2, object_store_memory="200MB"):
        ddf = dd.from_pandas(frame, npartitions=6)
        there = ddf.map_partitions(seen).rename(columns={"gpu": "before"}).exo.to_gpu()
        found = there.map_partitions(seen).shuffle("k").map_partitions(seen)
        found = found.exo.to_pandas().compute()
    print(sorted(found.k) == list(range(60)), set(found.before), set(found.gpu) <= {0, 1},
          found.process.nunique() <= 4)

main()
"""


def test_workers_see_the_gpus_that_ray_has_given_them() -> None:
    done = run_python("-c", GPUS)
    assert done.stdout.split() == ["True", "{-1}", "True", "True"], done.stderr


SHARED = """
import os, time
import dask, dask.dataframe as dd, pandas as pd
import dask_exo

def slow(part):
    time.sleep(0.3)
    return part.assign(before=os.getpid())

def seen(part):
    return part.assign(after=os.getpid())

def main():
    frame = pd.DataFrame({"k": range(60), "f": 1.0})
    simulate = dask.config.set({"exo.gpu.simulate": True})
    with simulate, dask_exo.enable(num_cpus=2, num_gpus=1, object_store_memory="200MB"):
        ddf = dd.from_pandas(frame, npartitions=4).exo.to_gpu()
        stored = ddf.map_partitions(slow).persist()
        computed = stored.map_partitions(seen).exo.to_pandas().compute()  # while that one runs
        shuffled = stored.shuffle("k").map_partitions(seen).exo.to_pandas().compute()
    print(len(set(computed.before) | set(computed.after) | set(shuffled.after)), len(shuffled))

main()
"""


def test_computations_at_once_or_in_turn_use_one_process_on_a_gpu() -> None:
    done = run_python("-c", SHARED)
    assert done.stdout.split() == ["1", "60"], done.stderr


KEPT = """
import dask, dask.dataframe as dd, numpy as np, pandas as pd
import dask_exo
from dask_exo.partitions.gpu import memory

def seen(part):
    return part.assign(hits=memory.residents("numpy").hits)

def main():
    frame = pd.DataFrame({"k": np.arange(320_000), "f": 1.0})
    settings = {"exo.gpu.simulate": True, "exo.gpu.memory": "500MB"}
    with dask.config.set(settings), dask_exo.enable(num_cpus=2, num_gpus=1):
        shuffled = dd.from_pandas(frame, npartitions=4).exo.to_gpu().shuffle("k")
        found = shuffled.map_partitions(seen).exo.to_pandas().compute()
    print(len(found), found.f.sum(), found.hits.max())

main()
"""


BORROWED = """
import dask, dask.dataframe as dd, numpy as np, os, pandas as pd
import dask_exo
from dask_exo.partitions.gpu import memory

def seen(part):
    return part.assign(process=os.getpid(), borrowed=memory.residents("numpy").borrowed)

def main():
    frame = pd.DataFrame({"k": np.arange(4_000_000), "f": 1.0})
    settings = {"exo.gpu.simulate": True, "exo.gpu.memory": "500MB", "exo.gpu.per-task": 0.5}
    with dask.config.set(settings), dask_exo.enable(num_cpus=2, num_gpus=1):
        shuffled = dd.from_pandas(frame, npartitions=4).exo.to_gpu().shuffle("k")
        found = shuffled.map_partitions(seen).exo.to_pandas().compute()
    print(len(found), found.f.sum(), found.process.nunique(), found.borrowed.max() > 0)

main()
"""


def test_processes_on_a_gpu_read_the_blocks_of_each_other() -> None:
    done = run_python("-c", BORROWED)
    assert done.stdout.split() == ["4000000", "4000000.0", "2", "True"], done.stderr


def test_reducers_find_the_blocks_of_their_own_process() -> None:
    done = run_python("-c", KEPT)
    assert done.stdout.split() == ["320000", "320000.0", "32"], done.stderr
    # that many reads: of integers and floats, and of labels, of four maps, by four reducers
