"""What a run waits for, on simulated clusters: the words are those of the admission rule."""

from __future__ import annotations

from operator import neg

import pytest

import dask_exo
from asv_bench.simulation.pipeline import SimPipeline, executor_of
from dask_exo import Scheduler, events
from dask_exo.cluster.futures import Node
from dask_exo.pipeline.policies import PartitionAdmission
from dask_exo.pipeline.streaming.blocks import StageSpec
from dask_exo.testing import Cost, SimFutures


def waits(graph, *, slots=2, nbytes=0, seconds=2.0, **resources) -> list[str]:
    """Return what a run waited for, once a second, without repetitions."""
    node = Node("n", slots, 10**6, resources={"CPU": slots, **resources} if resources else None)
    futures = SimFutures([node], lambda call: Cost(seconds, nbytes))
    heard: list[events.Event] = []
    with events.observing(heard.append, closely=False):
        Scheduler(futures)(graph, list(graph))
    return list(dict.fromkeys(e.waits for e in heard if isinstance(e, events.ClusterSeen)))


def test_the_first_measurement_is_no_lack_of_memory() -> None:
    graph = {("neg", i): (neg, i) for i in range(6)}
    assert waits(graph)[0] == "the first measurement"


def test_more_tasks_than_places_wait_for_slots() -> None:
    graph = {f"{name}-{'0' * 32}": (neg, i) for i, name in enumerate("abcdefghijkl")}
    assert waits(graph) == ["slots"]


def test_a_single_task_that_all_others_read_keeps_them_waiting_for_input() -> None:
    graph = {"first": (neg, 1), **{("neg", i): (neg, "first") for i in range(6)}}
    assert waits(graph)[0] == "input"


@pytest.mark.parametrize("stored", [0, 200_000])
def test_outputs_above_the_budget_wait_for_memory_or_for_the_disk_that_frees_it(stored) -> None:
    graph = {("part", i): (bytes, 200_000) for i in range(40)}
    told = waits({**graph, "all": (len, [*graph])}, nbytes=stored)
    assert set(told) <= {"the first measurement", "slots", "memory", "disk", "input"}
    assert ("disk" if stored else "memory") in told
    assert stored or "disk" not in told


def test_partitions_before_a_model_wait_for_its_actor() -> None:
    model = dask_exo.options(num_gpus=1)(neg)
    graph = {("model", i): (model, i) for i in range(12)}
    assert waits(graph, GPU=1)[0] == "an actor"


def pipeline_waits(*stages, works, limit=10_000, **resources) -> list[str]:
    """Return what a pipeline of 40 inputs waited for, without repetitions."""
    pipeline = SimPipeline(stages, resources, lambda stage, _: works[stage])
    executor = executor_of(pipeline, 40, PartitionAdmission(), limit=limit, target=100)
    reasons: dict[str, None] = {}
    while not executor.finished:
        executor.step(1000.0)
        reasons[executor.bottleneck()[1]] = None
        while executor.outputs:
            executor.take()
    return list(reasons)


LOAD, MODEL = StageSpec("load", {"CPU": 1}), StageSpec("model", {"GPU": 1})


def test_a_slow_model_makes_a_pipeline_wait_for_its_gpu_and_not_for_input() -> None:
    works = [[(1.0, 100)], [(5.0, 100)]]
    first, *others = pipeline_waits(LOAD, MODEL, works=works, CPU=8, GPU=1)
    assert first == "the first measurement"
    assert "GPU" in others
    assert not {"memory", "concurrency", "an actor"} & set(others)


def test_a_slow_source_makes_a_pipeline_wait_for_slots() -> None:
    works = [[(5.0, 100)], [(1.0, 100)]]
    told = pipeline_waits(LOAD, MODEL, works=works, CPU=2, GPU=2)
    assert "slots" in told
    assert not {"memory", "GPU"} & set(told)


def test_a_small_limit_makes_a_pipeline_wait_for_memory() -> None:
    works = [[(1.0, 100)] * 5, [(1.0, 100)]]
    assert "memory" in pipeline_waits(LOAD, MODEL, works=works, limit=300, CPU=8, GPU=8)


def test_a_stage_waits_for_what_the_user_has_limited() -> None:
    works, few = [[(1.0, 100)], [(5.0, 100)]], MODEL._replace(limit=2)
    assert "concurrency" in pipeline_waits(LOAD, few, works=works, CPU=8, GPU=8)


def moved(*stages, works) -> list[int]:
    """Return the bytes that each stage of a pipeline of 40 inputs has moved at its end."""
    pipeline = SimPipeline(stages, {"CPU": 8}, lambda stage, _: works[stage])
    executor = executor_of(pipeline, 40, PartitionAdmission(), limit=10**6, target=100)
    while not executor.finished:
        executor.step(1000.0)
        while executor.outputs:
            executor.take()
    seen: list[events.Event] = []
    with events.observing(seen.append, closely=False):
        executor.report()
    return [event.moved for event in seen if isinstance(event, events.StageSeen)]


def test_a_stage_that_writes_moves_what_it_takes_and_nothing_that_is_known_by_itself() -> None:
    write = StageSpec("write", {"CPU": 1}, writes=True)
    assert moved(LOAD, write, works=[[(1.0, 500)], [(1.0, 7)]]) == [20_000, 20_000]
    assert moved(write, works=[[(1.0, 7)]]) == [0]
    assert moved(LOAD, works=[[(1.0, 7)]]) == [280]
