"""Clusters that cannot go on, on a virtual clock: an error in time, and none for what is slow."""

from __future__ import annotations

import dask
import dask.dataframe as dd
import pandas as pd
import pytest

from asv_bench.simulation.pipeline import Fault, SimPipeline, executor_of
from dask_exo import Scheduler
from dask_exo.cluster.futures import FetchTimeoutError, Node
from dask_exo.cluster.waiting import Watchdog
from dask_exo.errors import StalledError
from dask_exo.pipeline.policies import PartitionAdmission
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.shuffle import Program
from dask_exo.shuffle import run as shuffle
from dask_exo.testing import Cost, DeadlockError, NodeDeath, SimFutures

FRAME = pd.DataFrame({"k": range(200), "v": 1.0})


def cluster(seconds=1.0, faults=()):
    nodes = [Node(f"n{i}", 2, 10**6) for i in range(2)]
    return SimFutures(nodes, lambda call: Cost(seconds, 100), faults=faults)


def shuffled(futures, timeout="10m"):
    ddf = dd.from_pandas(FRAME, npartitions=12)
    config = {"exo.fault.stall-timeout": timeout, "exo.scheduler.bundle-target": 0}
    with dask.config.set(config):
        return ddf.shuffle("k", npartitions=6).compute(scheduler=Scheduler(futures))


@pytest.mark.parametrize("at", [1.5, 3.5, 5.0])
def test_losing_all_nodes_raises_after_the_timeout(at) -> None:
    futures = cluster(faults=[NodeDeath(at, "n0"), NodeDeath(at, "n1")])
    with pytest.raises(StalledError, match=r"no node has 1 CPU \(lost: n0, n1\)"):
        shuffled(futures)
    assert at < futures.now <= at + 2 * 600 + 2


def test_a_cluster_that_comes_back_in_time_is_waited_for() -> None:
    faults = [NodeDeath(2.0, "n0", back=500.0), NodeDeath(2.0, "n1", back=550.0)]
    futures = cluster(faults=faults)
    got = shuffled(futures).sort_values("k").reset_index(drop=True)
    pd.testing.assert_frame_equal(got, FRAME)
    assert futures.now > 500


def test_a_task_that_takes_hours_is_no_stall() -> None:
    futures = cluster(seconds=10_000.0)
    assert len(shuffled(futures, timeout="1h")) == len(FRAME)


def test_a_shuffle_of_its_own_is_watched_too() -> None:
    futures = cluster(faults=[NodeDeath(0.5, "n0"), NodeDeath(0.5, "n1")])
    program = Program(2, lambda word: [len(word), word], lambda *n: list(n))
    with pytest.raises(StalledError, match="Waiting for 3 tasks"):
        shuffle(["a", "bc", "def"], program, "simple", futures=futures)


def test_a_value_that_is_not_there_in_time() -> None:
    futures = cluster(seconds=100.0)
    ref = futures.submit(pow, 2, 5)
    with pytest.raises(FetchTimeoutError):
        futures.get([ref], timeout=60.0)
    assert futures.now == 60.0
    assert futures.get([ref], timeout=60.0) == [32]
    assert futures.now == 100.0


@pytest.mark.parametrize("never", [0, None])
def test_without_a_timeout_nobody_looks(never) -> None:
    futures = cluster(faults=[NodeDeath(0.5, "n0"), NodeDeath(0.5, "n1")])
    program = Program(2, lambda word: [len(word), word], lambda *n: list(n))
    keys = {"exo.fault.stall-timeout": never, "exo.shuffle.speculation": False}
    with dask.config.set(keys), pytest.raises(DeadlockError):  # of the simulated cluster
        shuffle(["a", "bc", "def"], program, "simple", futures=futures)


STAGES = [StageSpec("load", {"CPU": 1.0}), StageSpec("infer", {"GPU": 1.0})]


def executor(pipeline, inputs, timeout):
    watchdog = Watchdog(pipeline.futures, timeout)
    policy = PartitionAdmission()
    return executor_of(pipeline, inputs, policy, limit=10**4, target=100, watchdog=watchdog)


def run(*faults):
    made = SimPipeline(STAGES, [{"CPU": 2}, {"GPU": 1}], lambda *_: [(700.0, 100)], faults)
    running, out = executor(made, 8, 600.0), 0
    while not running.finished:
        running.step(100.0)
        while running.outputs:
            running.take()
            out += 1
    return out


def test_a_pipeline_of_long_tasks_is_no_stall() -> None:
    assert run() == 8


def test_a_pipeline_whose_gpus_have_gone_names_the_stage() -> None:
    with pytest.raises(StalledError, match=r"stage 'infer' .*no node has 1 GPU"):
        run(Fault(2000.0, 1, away=1e9))


def test_a_pipeline_whose_consumer_is_slow_is_no_stall() -> None:
    made = SimPipeline(STAGES, [{"CPU": 2, "GPU": 1}], lambda *_: [(1.0, 100)])
    running = executor(made, 1, 5.0)
    for _ in range(100):
        running.step(10.0)
    assert running.outputs == 1
