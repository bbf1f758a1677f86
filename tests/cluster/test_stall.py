"""On real Ray: what cannot run is an error that says why, and what runs is left alone."""

from __future__ import annotations

import time

import dask
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo.errors import StalledError

pytestmark = [pytest.mark.cluster]


@pytest.mark.filterwarnings("ignore:no node of the cluster has")
def test_a_task_that_asks_for_what_no_node_has_is_an_error(cluster) -> None:
    with dask.annotate(resources={"unobtainium": 1}):
        never = dask.delayed(np.ones, name="ones")(3, dask_key_name="never")
    with (
        dask.config.set({"exo.fault.stall-timeout": "2s"}),
        pytest.raises(StalledError, match=r"'never' .*no node has .*1 unobtainium.*\(2 CPU\)"),
    ):
        never.compute(optimize_graph=False)


def test_a_running_task_may_exceed_the_timeout(cluster) -> None:
    def slow(x):
        time.sleep(5 * x)
        return x + 1

    assert dask.delayed(slow)(0).compute() == 1  # a worker has started
    with dask.config.set({"exo.fault.stall-timeout": "1s"}):
        assert dask.delayed(slow)(1).compute() == 2


def test_a_pipeline_that_is_slow_is_left_alone(cluster) -> None:
    def slow(frame: pd.DataFrame) -> pd.DataFrame:
        time.sleep(4)
        return frame

    with dask.config.set({"exo.fault.stall-timeout": "1s"}):
        frames = (pd.DataFrame({"a": [i]}) for i in range(2))
        pipeline = dask_exo.pipeline.of(frames).map_partitions(slow)
        got = [a for batch in pipeline.iter_batches() for a in batch["a"]]
    assert sorted(got) == [0, 1]
