"""The thesis's workloads on a virtual clock: policies beside the best schedule, and fixed slots."""

from __future__ import annotations

import pytest

from asv_bench.benchmarks.streaming_sim import WORKLOADS, bound, fused, inference, of_size, whole
from asv_bench.simulation.optimal_schedule import lower_bound
from asv_bench.simulation.static_policy import Static
from dask_exo.pipeline.policies import Adaptive, PartitionAdmission, StagedPolicy

# seconds of schedules found by `asv_bench.simulation.optimal_schedule.search`
BEST = {3: 642, 6: 269, 8: 201, 10: 161.5, 20: 152.5}


@pytest.mark.parametrize("partitions", BEST)
def test_the_default_is_near_the_best_schedule_at_every_limit(partitions):
    best = BEST[partitions]
    assert lower_bound(inference(partitions)) / 2 <= best
    out = WORKLOADS["inference"].run(PartitionAdmission(), partitions)
    assert out.seconds <= (1.3 if partitions < 6 else 1.15) * best
    assert out.peak <= partitions * 100


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "inference"])
def test_the_default_is_as_good_as_the_best_fixed_slots(name):
    work = WORKLOADS[name]
    ours, (slots, best) = work.run(PartitionAdmission()), work.static()
    assert bound(work) <= ours.seconds <= best.seconds / 0.95
    assert sum(slots) == sum(work.slots.values())
    assert ours.seconds <= min(work.run(StagedPolicy()).seconds, fused(work).seconds) / 0.95


def test_no_fixed_slots_are_good_where_the_work_differs():
    light, heavy = WORKLOADS["videos, light"], WORKLOADS["videos, heavy"]
    for slots in (light.static()[0], heavy.static()[0]):
        ratios = [
            work.run(Static(slots)).seconds / work.run(PartitionAdmission()).seconds
            for work in (light, heavy)
        ]
        assert max(ratios) > 1.5


def test_fixed_slots_take_a_quarter_longer_if_work_changes():
    work = WORKLOADS["changing"]
    ours = work.run(PartitionAdmission()).seconds
    assert work.run(Static([4, 4])).seconds >= 1.25 * ours
    assert work.run(Adaptive()).seconds <= work.run(Static([4, 4])).seconds


@pytest.mark.parametrize("partitions", [6, 8, 10, 20])
def test_the_adaptive_policy_uses_little_memory_and_keeps_the_limit(partitions):
    out = WORKLOADS["inference"].run(Adaptive(), partitions)
    assert out.peak <= partitions * 100
    assert out.seconds <= 1.4 * BEST[partitions]


def test_the_first_output_comes_long_before_staged():
    for name in ("images", "inference"):
        work = WORKLOADS[name]
        ours, staged = work.run(PartitionAdmission(), 40), work.run(StagedPolicy())
        assert ours.first <= staged.first / 10


def test_partitions_of_a_medium_size_are_best():
    """Figure 2.12: small ones cost a call each, of large ones there are too few."""
    took = {rows: of_size(rows).run(PartitionAdmission()).seconds for rows in (4, 64, 256, 2048)}
    assert took[64] <= 1.1 * bound(of_size(8192))
    assert took[4] > 1.15 * took[64]
    assert took[2048] > 1.5 * took[64]
    assert took[256] <= 1.1 * took[64]


def test_unsplit_source_outputs_keep_memory_short():
    work = WORKLOADS["inference"]
    assert (
        whole(work, PartitionAdmission(), 20).seconds > work.run(PartitionAdmission(), 20).seconds
    )
