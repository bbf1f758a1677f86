"""Pipelines that branch and meet, on a virtual clock: once each, within memory, no standstill."""

from __future__ import annotations

import statistics
from functools import partial

import pytest

from asv_bench.benchmarks import streaming_swarm
from asv_bench.simulation.pipeline import Fault, SimPipeline, simulate
from dask_exo.pipeline.policies import Adaptive, PartitionAdmission
from dask_exo.pipeline.streaming.blocks import StageSpec

CPU, GPU = {"CPU": 1.0}, {"GPU": 1.0}
run = partial(streaming_swarm.run, make=streaming_swarm.graph)


def test_random_graphs_end_complete_and_within_memory():
    runs = [run(seed) for seed in range(60)]
    assert any(len(one.case.inputs) > 1 for one in runs)
    assert any(one.out.lost for one in runs)
    assert not [one for one in runs if one.over and not one.out.forced]
    assert statistics.median(one.ratio for one in runs if one.case.room >= 1.5) <= 1.4


@pytest.mark.parametrize("policy", ["adaptive", "conservative", "staged"])
def test_other_policies_lose_nothing_either(policy):
    for seed in range(6):
        run(seed, policy)


def branched(limit, slow=0.5, faults=()):
    """Pieces of 100 bytes to three branches, of which one is slow; two meet again."""
    stages = [
        StageSpec("read", CPU),
        StageSpec("one", CPU, takes=(0,)),
        StageSpec("other", GPU, takes=(0,)),
        StageSpec("slow", CPU, takes=(0,)),
        StageSpec("both", GPU, takes=(1, 2)),
    ]
    seconds = [0.5, 0.5, 0.25, slow, 0.25]

    def work(stage, inputs):
        return [(seconds[stage], 100)]

    runner = SimPipeline(stages, [{"CPU": 4, "GPU": 2}], work, faults, sinks=[(4,), (3,), (0,)])
    return simulate(runner, 60, PartitionAdmission(), limit=limit, target=100)


@pytest.mark.parametrize("slow", [0.1, 4.0])
@pytest.mark.parametrize("limit", [700, 1000, 3000])
def test_what_several_take_counts_once_and_until_the_last_has_it(limit, slow):
    out = branched(limit, slow)
    assert not out.forced
    assert max(out.peak, out.live) <= limit
    assert out.left == 0
    assert sorted(out.places) == sorted(
        [(0, i, 0, 0, k, 0) for i in range(60) for k in (0, 1)]
        + [(1, i, 0, 0) for i in range(60)]
        + [(2, i, 0) for i in range(60)]
    )
    assert out.seconds <= 1.7 * max(60 * (1.0 + slow) / 4, 60 * 0.75 / 2, 60 * 100 * slow / limit)


def test_a_process_that_dies_costs_its_work_and_nothing_else():
    out = branched(1500, faults=[Fault(1.3 + 2 * i, 0) for i in range(8)])
    assert out.lost == 8
    assert len(out.places) == len(set(out.places)) == 240


@pytest.mark.parametrize("policy", [PartitionAdmission, Adaptive])
@pytest.mark.parametrize("counts", [(20, 200), (200, 20), (50, 50)])
@pytest.mark.parametrize("sizes", [(100, 100), (100, 300)])
def test_sources_of_a_union_are_mixed_in_proportion(policy, counts, sizes):
    stages = [
        StageSpec("one", CPU),
        StageSpec("other", CPU, takes=()),
        StageSpec("both", CPU, takes=(0, 1)),
    ]

    def work(stage, inputs):
        return [(0.5, sizes[stage])] if stage < 2 else [(0.25, 100)]

    runner = SimPipeline(stages, {"CPU": 4}, work)
    out = simulate(runner, counts, policy(), limit=3000, target=100)
    assert len(set(out.places)) == sum(counts)
    taken = [0, 0]
    for place in out.places:
        taken[place[0] >= counts[0]] += 1
        assert abs(taken[0] / counts[0] - taken[1] / counts[1]) <= 0.25
    assert out.seconds <= 1.05 * sum(counts) * 0.75 / 4 + 1
