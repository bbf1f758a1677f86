"""One run of a pipeline for several consumers, in threads and in other processes."""

from __future__ import annotations

import os
import threading

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import ray

from dask_exo.errors import PipelineError
from dask_exo.pipeline.shard_server import lease_of

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

ROWS, PARTS = 501, 16


@pytest.fixture
def pipeline():
    def part(i: int) -> pd.DataFrame:
        return pd.DataFrame({"n": np.arange(i * ROWS, (i + 1) * ROWS)})

    return dd.from_map(part, range(PARTS)).exo.pipeline().map_partitions(lambda f: f.assign(m=-f.n))


def consume(batches):
    got = [batch["n"] for batch in batches]
    return os.getpid(), np.concatenate([np.array([], dtype=int), *got])


def test_processes_get_equal_shares_and_the_server_ends(pipeline) -> None:
    before = set(threading.enumerate())
    task = ray.remote(consume).options(num_cpus=0)
    splits = pipeline.iter_split(3, equal=True, batch_size=100, format="numpy")
    pids, got = zip(*ray.get([task.remote(one) for one in splits]), strict=True)
    assert len({*pids, os.getpid()}) == 4
    assert {len(rows) for rows in got} == {ROWS * PARTS // 3}
    dealt = np.concatenate(got)
    assert len(np.unique(dealt)) == len(dealt) > ROWS * PARTS - 3
    for thread in set(threading.enumerate()) - before:
        if thread.name in ("dask_exo-shards", "dask_exo-pipeline"):
            thread.join(timeout=20)
            assert not thread.is_alive()


def test_a_process_that_dies_holds_nobody_up(pipeline) -> None:
    def dies(batches):
        next(batches)
        os._exit(1)

    first, second = pipeline.iter_split(2, equal=True)
    lease = lease_of(first._source.remote().name, 0)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(ray.remote(dies).options(num_cpus=0, max_retries=0).remote(first))
    lease.release()  # as time would do
    got = consume(second)[1]
    assert len(got) == ROWS * (PARTS - 1)


def test_threads_that_stop_early_leave_the_rest_to_others(pipeline) -> None:
    one, two, three = pipeline.limit(3000).iter_split(3, batch_size=50)
    first = next(one)
    one.close()
    two.close()
    got = [*first.n, *consume(three)[1]]
    assert len(set(got)) == len(got) == 3000 - ROWS + 50
    assert list(one) == []


def test_what_cannot_be_split(pipeline) -> None:
    with pytest.raises(PipelineError, match="count=0"):
        pipeline.iter_split(0)
    one, two = pipeline.iter_split(2)
    next(one)
    with pytest.raises(PipelineError, match="has begun"):
        ray.put(one)
    del one
    two.close()

    def fail(frame):
        raise KeyError("no such thing")

    for one in pipeline.map_partitions(fail).iter_split(2):
        with pytest.raises(KeyError, match="no such thing"):
            next(one)
